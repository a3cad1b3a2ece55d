"""Networks as users meet them: bounds, copies, shapes, dtypes, kept factors, normalisation."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import lben
from tests.problems import label

MAKERS: list[Callable[..., lben.EquilibriumNetwork]] = [
    lambda **options: lben.LBEN(8, 6, 3, gamma=0.5, **options),
    lambda **options: lben.LBEN(8, 6, 3, **options),
    lambda **options: lben.MON(8, 6, 3, **options),
    lambda **options: lben.UnconstrainedEN(8, 6, 3, **options),
]


@pytest.fixture(params=MAKERS, ids=["LBEN", "LBEN-no-gamma", "MON", "UnconstrainedEN"])
def net(request: pytest.FixtureRequest) -> lben.EquilibriumNetwork:
    torch.manual_seed(0)
    made: lben.EquilibriumNetwork = request.param(solver=lben.PeacemanRachford(tolerance=1e-5))
    return made


def test_output_satisfies_the_equation(net: lben.EquilibriumNetwork) -> None:
    net.double().solver = lben.PeacemanRachford(tolerance=1e-12)
    x = torch.randn(5, 8, dtype=torch.float64)
    for training in (True, False):
        net.train(training)
        w, solution = net.weights(), net.solve(x)
        z = torch.relu(solution.z @ w.W.T + x @ w.U.T + w.bz)
        assert torch.allclose(solution.z, z, atol=1e-10)
        assert torch.allclose(net(x), z @ w.Wo.T + w.by, atol=1e-10)


def test_deepcopy_state_dict_and_ema(net: lben.EquilibriumNetwork) -> None:
    x = torch.randn(5, 8)
    net.eval()
    y = net(x)
    twin = copy.deepcopy(net)
    assert torch.equal(twin(x), y)
    with torch.no_grad():
        next(iter(twin.parameters())).add_(1.0)
    assert not torch.equal(twin(x), y)
    assert torch.equal(net(x), y)
    twin.load_state_dict(net.state_dict())
    assert torch.equal(twin(x), y)
    average = AveragedModel(net)
    average.update_parameters(net)
    average.eval()
    assert torch.allclose(average(x), y)


def test_state_dict_brings_epsilon_back() -> None:
    torch.manual_seed(0)
    narrow = lben.LBEN(8, 6, 3, gamma=1.0, epsilon=0.01)
    net = lben.LBEN.from_weights(narrow.weights().detach())
    epsilon = float(net.get_buffer("parameterization.epsilon"))
    assert epsilon < 1.0
    fresh = lben.LBEN(8, 6, 3, gamma=1.0, epsilon=epsilon)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh.weights().W, net.weights().W)


def test_shapes(net: lben.EquilibriumNetwork) -> None:
    x = torch.randn(2, 3, 4, 8)
    for training in (True, False):
        net.train(training)
        y = net(x)
        assert y.shape == (2, 3, 4, 3)
        assert torch.allclose(net(x[1, 2]), y[1, 2], atol=1e-4)
        assert net(x[0, 0, 0]).shape == (3,)
        assert net(torch.zeros(0, 8)).shape == (0, 3)
        net(torch.zeros(0, 8, requires_grad=True)).sum().backward()
        strided = torch.randn(8, 5).T
        assert not strided.is_contiguous()
        assert torch.allclose(net(strided), net(strided.contiguous()), atol=1e-6)
        solution = net.solve(x)
        assert solution.z.shape == (2, 3, 4, 6)
        assert solution.residual.shape == solution.converged.shape == (2, 3, 4)
        empty = net.solve(torch.zeros(0, 8))
        assert empty.z.shape == (0, 6)
        assert bool(empty.converged.all())


def test_bias_from_outside(net: lben.EquilibriumNetwork) -> None:
    x, bias = torch.randn(2, 5, 8), torch.randn(6)
    moved = copy.deepcopy(net)
    with torch.no_grad():
        moved.get_parameter("parameterization.bz").add_(bias)
    for training in (True, False):
        net.train(training)
        moved.train(training)
        assert torch.allclose(net(x, bias=bias), moved(x), atol=1e-4)
        assert torch.allclose(net(x, bias=bias.expand(2, 5, 6)), moved(x), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_follows_the_dtype(net: lben.EquilibriumNetwork, dtype: torch.dtype) -> None:
    net.to(dtype)
    x = torch.randn(5, 8, dtype=dtype, requires_grad=True)
    for training in (True, False):
        net.train(training)
        y = net(x)
        y.sum().backward()
        assert y.dtype == dtype
        assert all(t.dtype == dtype for t in net.weights().tensors().values())
        assert all(p.grad is not None and p.grad.dtype == dtype for p in net.parameters())
        assert net.solve(x).residual.dtype == dtype


def test_nothing_assumes_the_cpu() -> None:
    """On the meta device no number exists: every tensor that is made must follow the parameters to get through."""
    with torch.device("meta"):
        net = lben.LBEN(8, 6, 3, gamma=0.5)
    weights = net.weights()
    assert all(t.device.type == "meta" for t in weights.tensors().values())
    assert weights.condition(0.5).device.type == "meta"
    for activation in (lben.Tanh(), lben.Softplus(), lben.PerUnit([lben.ReLU(), lben.Tanh()] * 3)):
        v = torch.randn(4, 6, device="meta")
        assert activation(v).device.type == activation.potential(v).device.type == "meta"


def test_factor_is_kept_until_a_parameter_changes(
    net: lben.EquilibriumNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    inversions = 0
    invert = torch.linalg.inv_ex

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal inversions
        inversions += 1
        return invert(*args, **kwargs)

    monkeypatch.setattr(torch.linalg, "inv_ex", counted)
    net.eval()
    x = torch.randn(5, 8, requires_grad=True)
    net(x)
    first = inversions
    net(x).sum().backward()
    net.solve(x)
    assert inversions == first
    y = net(x)
    for parameter in net.parameters():
        parameter.data.mul_(1.5)  # which no version counter sees
        break
    assert not torch.equal(net(x), y)
    hidden = net.get_parameter("parameterization.W" if isinstance(net, lben.UnconstrainedEN) else "parameterization.V")
    hidden.data.mul_(0.9)
    net(x)
    assert inversions > first


def test_mixed_precision_is_turned_off_inside(net: lben.EquilibriumNetwork) -> None:
    x = torch.randn(5, 8)
    for training in (True, False):
        net.train(training)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(x)
        assert y.dtype == torch.float32
        assert torch.allclose(y, net(x))


def test_training_with_large_weights_at_a_small_gamma_falls_back_safely() -> None:
    """(Wo'Wo + U U')/gamma is of size a million."""
    torch.manual_seed(0)
    net = lben.LBEN(3, 8, 2, gamma=1e-3).double()
    with torch.no_grad():
        net.parameterization.U.mul_(220)
        net.parameterization.Wo.mul_(220)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    x = torch.randn(64, 3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lben.ConvergenceWarning)
        for _ in range(10):
            optimizer.zero_grad()
            (net(x) - 1).square().mean().backward()
            optimizer.step()
    assert net.bound() == 1e-3


def test_training_falls_back_and_evaluation_raises(net: lben.EquilibriumNetwork) -> None:
    net.solver = lben.PeacemanRachford(tolerance=1e-5, max_iterations=1, alpha=5.0)
    x = torch.randn(5, 8)
    with pytest.warns(lben.ConvergenceWarning, match="Falling back to Newton"):
        y = net(x)
    net.solver = lben.PeacemanRachford(tolerance=1e-5, max_iterations=1, alpha=5.0)
    net.eval()
    with pytest.raises(lben.NotConverged):
        net(x)
    net.solver = lben.Newton(tolerance=1e-5)
    assert torch.allclose(net(x), y, atol=1e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "activation", [lben.ReLU(), lben.Tanh(), lben.Softplus(), lben.ELU(), lben.Identity()], ids=label
)
def test_no_slope_exceeds_the_bound(gamma: float, activation: lben.Activation) -> None:
    """Jacobians at random points, and secants between them, of networks with wild free variables."""
    for seed in range(5):
        torch.manual_seed(seed)
        net = lben.LBEN(8, 12, 4, gamma=gamma, epsilon=1e-3, activation=activation).double().eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.normal_(0, 1)
        net.solver = lben.Newton(tolerance=1e-11)
        assert net.bound() == gamma
        x = 3 * torch.randn(20, 8, dtype=torch.float64)
        jacobians = torch.autograd.functional.jacobian(lambda x, net=net: net(x).sum(0), x)
        norms = torch.linalg.matrix_norm(jacobians.transpose(0, 1), 2)
        assert float(norms.max()) <= gamma * (1 + 1e-9)
        y = net(x).detach()
        slopes = torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)
        assert float(slopes.max()) <= gamma * (1 + 1e-9)


def test_bound_without_gamma_is_the_product(net: lben.EquilibriumNetwork) -> None:
    """A bound for any network whose metric proves m > 0, and never below a slope."""
    net.double().eval().solver = lben.PeacemanRachford(tolerance=1e-10)
    bound = net.bound()
    x = torch.randn(50, 8, dtype=torch.float64)
    y = net(x).detach()
    slopes = torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)
    assert float(slopes.max()) <= bound < math.inf


def test_an_unbounded_network_says_so() -> None:
    net = lben.UnconstrainedEN(2, 2, 1)
    with torch.no_grad():
        net.get_parameter("parameterization.W").copy_(torch.tensor([[2.0, 10.0], [0.0, 0.0]]))
    with pytest.raises(lben.NotWellPosed, match="at most -1"):
        net.bound()


def test_an_unconstrained_network_is_bounded_if_a_metric_is_found() -> None:
    net = lben.UnconstrainedEN(2, 2, 1)
    with torch.no_grad():
        net.get_parameter("parameterization.W").copy_(torch.tensor([[0.0, 10.0], [0.0, 0.0]]))
        net.get_parameter("parameterization.U").copy_(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
        net.get_parameter("parameterization.Wo").copy_(torch.tensor([[1.0, 0.0]]))
    assert 10 <= (lben.tightest_bound(net).gamma or 0) <= net.bound()  # its slope is 10


def test_normalize_is_part_of_the_bound() -> None:
    torch.manual_seed(0)
    net = lben.LBEN(8, 6, 3, gamma=0.5, normalize=lben.Normalize(0.1307, 0.3081)).double().eval()
    assert net.bound() == net.bound("input") == 0.5
    assert net.bound("pixels") == pytest.approx(0.5 / 0.3081, rel=1e-6)
    plain = lben.LBEN.from_weights(net.weights().detach()).eval()
    x = torch.rand(5, 8, dtype=torch.float64)
    assert torch.allclose(net(x), plain((x - 0.1307) / 0.3081), atol=1e-3)
    stds = [0.5, 0.25, 1, 1, 1, 1, 1, 2]
    assert lben.Normalize(torch.zeros(8), stds).gain == 4.0


def test_repr_tells_what_matters() -> None:
    text = repr(lben.LBEN(784, 80, 10, gamma=1.0, activation=lben.Tanh()))
    for part in ("LBEN(", "784, 80, 10", "gamma=1", "Tanh()", "PeacemanRachford(", "epsilon=1"):
        assert part in text


def test_seeded() -> None:
    outcomes = []
    for _ in range(2):
        torch.manual_seed(5)
        net = lben.LBEN(8, 6, 3, gamma=0.5)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        x = torch.randn(16, 8)
        for _ in range(5):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
        outcomes.append(net.weights().W.detach())
    assert torch.equal(*outcomes)
