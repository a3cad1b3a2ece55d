"""Local bounds: true for everything within their radius, at most the global ones, and exact where it is tiny."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import clarabel
import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

import lben
from lben.activations.sectors import sectors
from lben.certify.locality import Norm
from lben.certify.subject import Certifiable
from lben.certify.surroundings import Inequality, Rows
from lben.data import embedded_mnist, pixels
from tests.problems import ACTIVATIONS, mnist_network, name

EXACT = lben.Newton(tolerance=1e-12)
KNOWN = [sigma for sigma in ACTIVATIONS if not isinstance(sigma, lben.Elementwise)]


def network(seed: int, inputs: int = 2, units: int = 8, gamma: float | None = 2.0, outputs: int = 3) -> lben.LBEN:
    """A small network with a large W, in double precision."""
    torch.manual_seed(seed)
    net = lben.LBEN(inputs, units, outputs, gamma=gamma, solver=EXACT).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    return net


def ball(x: Tensor, radius: float, count: int, seed: int) -> Tensor:
    """Points within the radius of each x, many of them at its edge, shape (count, batch, d)."""
    g = torch.Generator().manual_seed(seed)
    directions = torch.randn(count, *x.shape, generator=g, dtype=x.dtype)
    lengths = radius * torch.rand(count, len(x), 1, generator=g, dtype=x.dtype) ** 0.3
    norms: Tensor = torch.linalg.vector_norm(directions, dim=-1, keepdim=True)
    return x + directions / norms * lengths * (1 - 1e-12)


def slopes(net: nn.Module, x: Tensor, points: Tensor) -> Tensor:
    with torch.no_grad():
        moved: Tensor = torch.linalg.vector_norm(net(points) - net(x), dim=-1)
    apart: Tensor = torch.linalg.vector_norm(points - x, dim=-1)
    return (moved / apart).amax(dim=0)


@pytest.mark.parametrize("sigma", KNOWN, ids=name)
def test_no_stretch_is_steeper_or_flatter_than_its_sector(sigma: lben.Activation) -> None:
    g = torch.Generator().manual_seed(0)
    v = 4 * torch.randn(400, 5, generator=g, dtype=torch.float64)
    d = 10 ** (1 - 5 * torch.rand(400, 5, generator=g, dtype=torch.float64))
    off = 1e-3 * torch.rand(400, 5, generator=g, dtype=torch.float64)
    lower, upper = sectors(sigma, v, off, d)
    assert bool(((lower >= 0) & (lower <= upper) & (upper <= 1)).all())
    for _ in range(200):
        start = v + off * (2 * torch.rand(v.shape, generator=g, dtype=torch.float64) - 1)
        step = d * (2 * torch.rand(v.shape, generator=g, dtype=torch.float64) - 1)
        secant = (sigma(start + step) - sigma(start)) / step
        rounding = 1e-14 * (1 + start.abs()) / step.abs()
        assert bool((secant >= lower - rounding).all())
        assert bool((secant <= upper + rounding).all())


@pytest.mark.parametrize("sigma", KNOWN, ids=name)
def test_a_short_stretch_has_one_slope(sigma: lben.Activation) -> None:
    v = torch.linspace(-3.3, 3.4, 35, dtype=torch.float64).reshape(7, 5)
    nothing = torch.zeros_like(v)
    lower, upper = sectors(sigma, v, nothing, nothing + 1e-7)
    assert torch.allclose(lower, sigma.derivative(v), atol=1e-6)
    assert torch.allclose(upper, sigma.derivative(v), atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_within_the_radius_is_steeper(seed: int) -> None:
    net = network(seed, inputs=1 + seed % 3, gamma=[None, 0.5, 2.0][seed % 3])
    x = 2 * torch.randn(6, net.in_features, dtype=torch.float64)
    globally = lben.tightest_bound(net).gamma
    assert globally is not None
    for radius in (0.03, 0.3, 3.0):
        found = lben.local_bound(net, x, radius)
        assert bool((found.gamma <= globally).all())
        assert bool((slopes(net, x, ball(x, radius, 500, seed)) <= found.gamma * (1 + 1e-7)).all())


def test_a_tiny_radius_shows_the_slope_itself() -> None:
    for seed in range(5):
        net = network(seed)
        x = torch.randn(4, 2, dtype=torch.float64)
        found = lben.local_bound(net, x, 1e-7)
        for row, gamma in zip(x, found.gamma, strict=True):
            J = torch.autograd.functional.jacobian(net, row)
            assert float(gamma) == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-4)
        assert bool((found.fixed == 8).all())
        assert bool((found.width == 0).all())


def test_much_of_the_gap_to_what_a_search_reaches_is_closed() -> None:
    """The mean over small networks of local bound, and of global bound, over the steepest of many pairs."""
    near, far = [], []
    for seed in range(4):
        net = network(seed, inputs=2, gamma=None)
        x = torch.randn(5, 2, dtype=torch.float64)
        found, globally = lben.local_bound(net, x, 0.2), lben.tightest_bound(net).gamma
        reached = slopes(net, x, ball(x, 0.2, 3000, seed))
        near.append(float((found.gamma / reached).mean()))
        assert globally is not None
        far.append(float((globally / reached).mean()))
    assert sum(near) / 4 < 1.35 < 2 < sum(far) / 4


@pytest.mark.parametrize("sigma", KNOWN, ids=name)
def test_every_activation_of_the_table(sigma: lben.Activation) -> None:
    torch.manual_seed(0)
    net = lben.LBEN(3, 5, 2, gamma=1.5, activation=sigma, solver=EXACT).double().eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    found = lben.local_bound(net, x, 0.5)
    assert bool((slopes(net, x, ball(x, 0.5, 400, 1)) <= found.gamma * (1 + 1e-7)).all())


def test_errors_of_what_is_bounded_add_up() -> None:
    """g is 1 within 0.1, and nothing else is there: the bound is 1.1, for one row and for all of them."""
    one, none = torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, dtype=torch.float64)
    inequality = Inequality(2 * one, none, none, none[0, 0], none[0, 0])
    rows = Rows(none, one, none[0], 0.1 * one[0])
    for found in (inequality.bounds(rows, one[0, 0]), inequality.norm(rows, one[0, 0])):
        assert 1.1 <= float(found) < 1.1 + 1e-6


def test_linear_units_have_the_norm_of_their_matrix() -> None:
    torch.manual_seed(0)
    net = lben.LBEN(3, 6, 2, gamma=1.0, activation=lben.Identity(), solver=EXACT).double().eval()
    J = torch.autograd.functional.jacobian(net, torch.zeros(3, dtype=torch.float64))
    found = lben.local_bound(net, torch.randn(2, 3, dtype=torch.float64), 1.0)
    assert found.gamma.tolist() == pytest.approx([float(torch.linalg.matrix_norm(J, 2))] * 2, rel=1e-6)


def test_what_passes_the_hidden_units_by_is_counted() -> None:
    for skip, gamma in (("linear", 1.5), ("identity", 2.0)):
        torch.manual_seed(0)
        net = lben.LBEN(3, 6, 3, gamma=gamma, skip=skip, solver=EXACT).double().eval()  # type: ignore[arg-type]
        x = torch.randn(4, 3, dtype=torch.float64)
        found = lben.local_bound(net, x, 0.4)
        assert bool((slopes(net, x, ball(x, 0.4, 400, 1)) <= found.gamma * (1 + 1e-7)).all())
        assert float(found.gamma.min()) > 0.05


def test_feed_forward_networks_and_dense_stacks() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 8), nn.LeakyReLU(0.2), nn.Linear(8, 3)).double()
    stack = lben.Sequential(
        lben.LBEN(3, 6, 4, gamma=1.0, solver=EXACT),
        lben.SLL(4),
        nn.Linear(4, 3),
        lben.LBEN(3, 5, 3, gamma=2.0, solver=EXACT),
        in_shape=(3,),
    )
    for net in (lben.from_sequential(module).eval(), stack.double().eval()):
        x = torch.randn(5, 3, dtype=torch.float64)
        for radius in (1e-6, 0.5):
            found = lben.local_bound(net, x, radius)
            assert bool((slopes(net, x, ball(x, radius, 400, 1)) <= found.gamma * (1 + 1e-4)).all())
        globally = lben.tightest_bound(net).gamma
        assert globally is not None
        assert bool((found.gamma < globally).any())
        locally = lben.certified_radius(net, x, local=True)
        assert bool((locally.radius >= lben.certified_radius(net, x).radius).all())


def digits(count: int) -> tuple[Tensor, Tensor]:
    data = embedded_mnist()
    return pixels(data.test_images[:count]), data.test_labels[:count]


def assert_not_broken(result: lben.Attack, radius: Tensor) -> None:
    """No attack succeeded within a radius."""
    for size, success, distance in zip(result.epsilons.pixels, result.success, result.distances.pixels, strict=True):
        assert not bool((success & (radius > size)).any())
        assert not bool((success & (distance < radius)).any())


def test_radii_are_larger_and_no_attack_gets_below_them() -> None:
    x, y = digits(8)
    net = mnist_network(None)
    for tolerance in (1e-2, 1e-12):
        solver = lben.PeacemanRachford(tolerance=tolerance)
        found = lben.certified_radius(net, x, y, local=True, domain="pixels", solver=solver).radius
        least = lben.certified_radius(net, x, y, domain="pixels", solver=solver).radius
        assert bool((found >= least).all())
    assert float(found.sum()) > 1.1 * float(least.sum())
    result = lben.attack(net, x, y, [0.4, 0.8], domain="pixels", steps=10, restarts=1)
    assert float(result.error[1]) > result.clean_error
    assert_not_broken(result, found)
    accuracy = lben.certified_accuracy(net, x, y, [0.3], local=True, domain="pixels").accuracy
    assert float(accuracy[0]) == pytest.approx(float((found > 0.3).double().mean()))


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("name_", ["mnist-gamma-1", "mnist-gamma-5", "mnist-mon"])
def test_no_attack_gets_below_a_radius(name_: str, tolerance: float) -> None:
    """All attacks of the library, near the radii of all embedded test images; equilibria loosely and closely solved."""
    x, y = digits(1000)
    net, solver = lben.pretrained(name_), lben.PeacemanRachford(tolerance=tolerance)
    found = lben.certified_radius(net, x, y, local=True, domain="pixels", solver=solver).radius
    net.solver = solver
    sizes = found[found > 0].quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    for method in ("fgm", "pgd", "deepfool"):
        result = lben.attack(net, x, y, sizes, method=method, domain="pixels", steps=20, restarts=1)
        assert_not_broken(result, found)


def steepest(a: Tensor, c: float, G: Tensor, h: Tensor, radius: float) -> float:
    """The largest (a u + c) / |u| for 0 < |u| <= radius with G u + h >= 0, -inf if there is no such u.

    With u = w / s it is that of a w + c s for |w| <= 1, |w| <= radius s, G w + h s >= 0: a second-order cone program.
    """
    d = len(a)
    rows = torch.cat([torch.cat([-G, -h[:, None]], dim=1), torch.zeros(1, d + 1, dtype=a.dtype)])
    eye = torch.cat([-torch.eye(d, dtype=a.dtype), torch.zeros(d, 1, dtype=a.dtype)], dim=1)
    last = torch.tensor([[0.0] * d + [-radius]], dtype=a.dtype)
    A = torch.cat([rows, eye, last, eye])
    b = torch.zeros(len(A), dtype=a.dtype)
    b[len(G)] = 1.0
    cones = [clarabel.NonnegativeConeT(len(G)), clarabel.SecondOrderConeT(d + 1), clarabel.SecondOrderConeT(d + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    nothing = sparse.csc_matrix((d + 1, d + 1))
    target = -torch.cat([a, torch.tensor([c], dtype=a.dtype)]).numpy()
    solver = clarabel.DefaultSolver(nothing, target, sparse.csc_matrix(A.numpy()), b.numpy(), cones, settings)
    solution = solver.solve()
    w = torch.tensor(solution.x[:d], dtype=a.dtype)
    short = float(w.norm()) < 1 - 1e-6  # then no u is within the cone, but 0
    return -math.inf if short or str(solution.status) not in ("Solved", "AlmostSolved") else -solution.obj_val


def exact_local_constant(net: lben.LBEN, x: Tensor, radius: float) -> float:
    """The largest |y(x') - y(x)|/|x' - x| within the radius, of one output: over all 2^n activation patterns.

    Where units are on and off as a pattern says, v = (I - W active)^-1 (U x' + bz), and y is affine.
    """
    w, largest = net.weights().detach(), 0.0
    with torch.no_grad():
        middle = net(x[None])[0]
    for active in torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=x.dtype)] * len(w.bz)):
        back = torch.linalg.inv(torch.eye(len(active), dtype=x.dtype) - w.W * active)
        M, v = back @ w.U, back @ (w.U @ x + w.bz)
        side = 2 * active - 1
        a, c = (w.Wo * active @ M)[0], float((w.Wo * active @ v + w.by - middle)[0])
        for sign in (1.0, -1.0):
            largest = max(largest, steepest(sign * a, sign * c, side[:, None] * M, side * v, radius))
    return largest


def ratios(seeds: range) -> Tensor:
    """Local bound over the exact local constant, for small networks of one to three features and one output."""
    found = []
    for seed in seeds:
        net = network(seed, 1 + seed % 3, 2 + seed % 7, gamma=[None, 0.5, 2.0][seed % 3], outputs=1)
        x, radius = torch.randn(1 + seed % 3, dtype=torch.float64), 10 ** (-1.5 + 2 * (seed % 10) / 10)
        bound = float(lben.local_bound(net, x[None], radius).gamma)
        exact = exact_local_constant(net, x, radius)
        found.append(bound / exact if exact > 0 else math.inf)
    return torch.tensor(found, dtype=torch.float64)


def test_no_local_bound_is_below_the_exact_constant() -> None:
    found = ratios(range(12))
    assert float(found.min()) > 1 - 1e-6  # the programs are solved to about 1e-8
    assert float(found.median()) < 1.2


@pytest.mark.slow
def test_no_local_bound_of_a_thousand_is_below_the_exact_constant(
    record_property: Callable[[str, object], None],
) -> None:
    found = ratios(range(1000))
    steep = found[found.isfinite()]  # else the output does not move at all
    record_property(
        "ratio", {"least": float(found.min()), "median": float(found.median()), "mean": float(steep.mean())}
    )
    assert float(found.min()) > 1 - 1e-6  # the programs are solved to about 1e-8
    assert float(found.median()) < 1.2


def test_features_that_move_one_by_one() -> None:
    """Corners of the cube are within the bound, which is at most sqrt(d) times that of the ball around it."""
    for seed in range(3):
        net = network(seed, inputs=4)
        x, radius = torch.randn(5, 4, dtype=torch.float64), 0.15
        found, ball_ = lben.local_bound(net, x, radius, norm="inf"), lben.local_bound(net, x, 2 * radius)
        assert bool((found.gamma <= 2 * ball_.gamma * (1 + 1e-9)).all())
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)[:, None]
        for share in (0.3, 1 - 1e-12):
            with torch.no_grad():
                moved = torch.linalg.vector_norm(net(x + radius * share * corners) - net(x), dim=-1)
            assert bool((moved / (radius * share) <= found.gamma * (1 + 1e-7)).all())
        plain, near = (lben.certified_radius(net, x, local=True, norm=norm).radius for norm in ("2", "inf"))
        assert bool((near >= plain / 2 * (1 - 1e-9)).all())
        classes = net(x).argmax(dim=-1)
        assert bool((net(x + near[:, None] * (1 - 1e-9) * corners).argmax(dim=-1) == classes).all())
    J = torch.autograd.functional.jacobian(net, x[0])
    tiny = float(lben.local_bound(net, x[:1], 1e-7, norm="inf").gamma)
    assert float((J @ corners[:, 0].T).norm(dim=0).max()) <= tiny * (1 + 1e-4)


def test_what_has_no_local_bound_is_refused_by_name() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    own = lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Elementwise(torch.tanh)).double()
    with pytest.raises(lben.InvalidInput, match="no slopes between two points are known"):
        lben.local_bound(own, x, 1.0)
    blocks = lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Softmax(2)).double()
    with pytest.raises(lben.InvalidInput, match="no slopes between two points are known"):
        lben.certified_radius(blocks, x, local=True)
    images = lben.ConvLBEN((1, 4, 4), 2, 3, gamma=1.0)
    with pytest.raises(lben.InvalidInput, match="has convolutions, or stages such as MaxMin"):
        lben.certified_radius(images, torch.rand(2, 1, 4, 4), local=True)
    good = network(0)
    for radius in (0.0, -1.0, float("nan")):
        with pytest.raises(lben.InvalidInput, match="radius must be"):
            lben.local_bound(good, torch.zeros(1, 2).double(), radius)
    with pytest.raises(lben.InvalidInput, match="x is empty"):
        lben.local_bound(good, torch.zeros(0, 2).double(), 1.0)
    wrong: list[Any] = ["1", "l2", 1, True, -math.inf, math.nan, None, torch.tensor(2)]
    for norm in wrong:
        with pytest.raises(lben.InvalidInput, match="norm must be"):
            lben.local_bound(good, torch.zeros(1, 2).double(), 1.0, norm=norm)
    with pytest.raises(lben.InvalidInput, match="local must be True or False"):
        lben.certified_radius(good, torch.zeros(1, 2).double(), local=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "numbers"), [("2", (2, 2.0, np.int64(2))), ("inf", (math.inf, np.float32("inf")))])
def test_a_norm_may_be_given_as_the_number_that_it_is(word: Norm, numbers: tuple[float, ...]) -> None:
    net, x = network(0), torch.randn(3, 2, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    for number in numbers:
        radius = lben.certified_radius(net, x, local=True, norm=number)
        near = lben.local_bound(net, x, 0.1, norm=number)
        found = lben.verify(net, x, y, 0.1, norm=number)
        assert radius.norm == near.norm == found.norm == word
        assert torch.equal(radius.radius, lben.certified_radius(net, x, local=True, norm=word).radius)
        assert torch.equal(near.gamma, lben.local_bound(net, x, 0.1, norm=word).gamma)
        accuracy = (lben.certified_accuracy(net, x, y, [0.1], norm=form).accuracy for form in (number, word))
        assert torch.equal(*accuracy)


def test_units_that_follow_the_input_leave_room_for_larger_radii() -> None:
    """Those of a first layer move exactly as far as the input, which a rough bound of moves must not exceed."""
    torch.manual_seed(0)
    nets: list[Certifiable] = [
        lben.from_sequential(nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))),
        lben.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3)).eval(),
        lben.Sequential(lben.SLL(4, 6), lben.LBEN(4, 6, 3, gamma=1.0)).eval(),
    ]
    x = torch.randn(5, 4)
    for net in nets:
        wider = lben.certified_radius(net, x, local=True).radius / lben.certified_radius(net, x).radius
        assert float(wider.max()) > 1.2
        assert float(wider.min()) >= 1
