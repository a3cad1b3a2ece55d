"""One recurrent network: signals, gradients through time, one step, files, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lben

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, in forward mode
D = torch.float64
SHARP = lben.PeacemanRachford(tolerance=1e-12)


def made(
    behaviour: lben.Behaviour | None = None,
    *,
    sizes: tuple[int, int, int, int] = (2, 3, 4, 2),
    acyclic: bool = False,
    activation: lben.Activation | None = None,
    initial: str = "zero",
    seed: int = 0,
) -> lben.REN:
    torch.manual_seed(seed)
    ren = lben.REN(
        *sizes,
        behaviour=lben.Lipschitz(1.5) if behaviour is None else behaviour,
        acyclic=acyclic,
        activation=lben.Tanh() if activation is None else activation,
        initial=initial,  # type: ignore[arg-type]
        solver=None if acyclic else SHARP,
        dtype=D,
    )
    with torch.no_grad():
        for parameter in ren.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return ren


def signal(times: int = 5, batch: int = 3, features: int = 2) -> Tensor:
    return torch.randn(times, batch, features, dtype=D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("acyclic", [False, True])
@pytest.mark.parametrize("activation", [lben.Tanh(), lben.ReLU()], ids=repr)
def test_gradients_through_time_are_exact(acyclic: bool, activation: lben.Activation) -> None:
    ren = made(acyclic=acyclic, activation=activation, initial="learned")
    names = [name for name, _ in ren.named_parameters()]

    def run(u: Tensor, x0: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.func.functional_call(ren, dict(zip(names, values, strict=True)), (u, x0))
        return found, found[-1] * 2

    x0 = torch.randn(2, 3, dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(run, (signal(3, 2).requires_grad_(), x0, *ren.parameters()), fast_mode=True)


def test_second_derivatives_through_time_are_exact() -> None:
    ren = made(sizes=(1, 2, 2, 1))
    u = signal(3, 1, 1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda u: ren(u)[-1], (u,))


def test_three_ways_to_the_same_signals() -> None:
    """At once, in pieces that are computed again for gradients, and step by step with warm starts."""
    ren, u = made(initial="learned"), signal(7)
    whole, pieces = ren.simulate(u), ren.simulate(u, checkpoint=3)
    hidden, state, rows = None, None, []
    for now in u:
        step = ren.step(now, state, start=hidden)
        hidden, state = step.hidden, step.state
        rows.append(step.y)
    assert torch.allclose(whole.y, pieces.y, atol=1e-10)
    assert torch.allclose(whole.states, pieces.states, atol=1e-10)
    assert torch.allclose(whole.y, torch.stack(rows), atol=1e-10)
    assert state is not None
    assert torch.allclose(whole.states[-1], state, atol=1e-10)
    grads = [torch.autograd.grad(y.square().sum(), list(ren.parameters())) for y in (whole.y, pieces.y)]
    for one, two in zip(*grads, strict=True):
        assert torch.allclose(one, two, atol=1e-8)


def test_memory_grows_with_states_and_not_with_iterations() -> None:
    """What autograd keeps is the same whether the solver takes few iterations or many."""
    kept = []
    for tolerance in (1e-1, 1e-13):
        ren = made()
        ren.solver = lben.DouglasRachford(tolerance=tolerance)
        sizes: list[int] = []

        def note(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            ren(signal(20))
        kept.append(sum(sizes))
    assert kept[0] == kept[1]


def test_acyclic_is_what_the_full_solver_finds_on_the_same_weights() -> None:
    for activation in (lben.Tanh(), lben.ReLU(), lben.PerUnit([lben.ReLU(), lben.Tanh()] * 2)):
        swept = made(acyclic=True, activation=activation)
        full = lben.REN.from_weights(
            swept.weights(), behaviour=lben.Lipschitz(1.5), activation=activation, solver=SHARP
        )
        assert swept.weights().D11.triu().abs().max() == 0
        assert torch.allclose(swept(signal()), full(signal()), atol=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_without_a_state_it_is_an_lben(gamma: float) -> None:
    ren = made(lben.Lipschitz(gamma), sizes=(3, 0, 5, 2), activation=lben.ReLU())
    step = ren.weights().detach().step()
    lam = gamma * step.lam if step.lam is not None else None
    assert lben.certify(step, gamma).holds
    net = lben.LBEN.from_weights(step, gamma=gamma, epsilon=1e-6, solver=SHARP)
    u = signal(4, 3, 3)
    assert torch.allclose(ren(u), net(u), atol=1e-10)
    back = lben.RENWeights(
        *(u.new_zeros(0, 0), u.new_zeros(0, 5), u.new_zeros(0, 3), u.new_zeros(0), u.new_zeros(5, 0), step.W, step.U),
        *(step.bz, u.new_zeros(2, 0), step.Wo, step.D, step.by),
        P=u.new_zeros(0, 0),
        lam=step.lam,
        rate=1.0,
        supply=lben.Supply.of_gain(gamma, 3, 2),
    )
    again = lben.REN.from_weights(back, behaviour=lben.Lipschitz(gamma), solver=SHARP)
    assert torch.allclose(again(u), net(u), atol=1e-10)
    assert lam is not None


def test_the_promise_survives_training_in_single_precision() -> None:
    torch.manual_seed(0)
    for behaviour in (lben.Contracting(0.9), lben.Lipschitz(1.0), lben.Passive(0.1, 0.1)):
        ren = lben.REN(1, 4, 6, 1, behaviour=behaviour)
        u = torch.randn(12, 8, 1)
        optimizer = torch.optim.Adam(ren.parameters(), lr=2e-2)
        first = None
        for _ in range(25):
            loss = (ren(u) - u.cumsum(0).tanh()).square().mean()
            first = loss.item() if first is None else first
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < first
        assert lben.certify(ren).holds


def test_transforms_and_the_compiler_take_a_step() -> None:
    ren = made().eval()
    u, x = signal(1)[0], torch.randn(3, 3, dtype=D)
    state, y = ren.step(u, x).state, ren.step(u, x).y
    assert torch.allclose(torch.func.vmap(lambda u, x: ren.step(u, x).y)(u, x), y)
    backward = torch.func.jacrev(lambda x: ren.step(u[0], x).state)(x[0])
    along, tangent = torch.randn(3, dtype=D), torch.func.jvp
    assert torch.allclose(tangent(lambda x: ren.step(u[0], x).state, (x[0],), (along,))[1], backward @ along, atol=1e-9)
    slices = torch.func.vmap(lambda u: ren(u[:, None])[:, 0], in_dims=1, out_dims=1)(signal())
    assert torch.allclose(slices, ren(signal()), atol=1e-9)
    exported = lben.export(ren, domain=lben.InBox(-9, 9), accuracy=1e-6)
    found, residual = exported(torch.cat([x, u], dim=1))
    assert torch.allclose(found, torch.cat([state, y], dim=1), atol=1e-5)
    assert float(residual.max()) < 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # the compiler's own
def test_a_compiled_step_is_the_step() -> None:
    ren = made().eval()
    u, x = signal(1)[0], torch.randn(3, 3, dtype=D)
    compiled = torch.compile(lambda u, x: ren.step(u, x)[:2], backend="eager")
    assert torch.allclose(compiled(u, x)[0], ren.step(u, x).y)


def test_a_kept_network_follows_its_free_variables() -> None:
    ren = made().eval()
    with torch.no_grad():
        before = ren(signal())
        ren.parameterization.C2.data.mul_(2)  # type: ignore[operator]
        assert not torch.allclose(ren(signal()), before)


KINDS: dict[str, Callable[[], lben.REN]] = {
    "contracting": lambda: made(lben.Contracting(0.9), initial="learned"),
    "passive, acyclic": lambda: made(lben.Passive(0.1, 0.2), acyclic=True, activation=lben.ReLU()),
    "dissipative": lambda: made(lben.Dissipative([[-1.0, 0], [0, -2.0]], [[0.5, 0], [0, 0]], [[1.0, 0], [0, 1.0]])),
    "no promise": lambda: lben.REN(2, 3, 4, 2, behaviour=None, feedthrough=False),
    "of torch": lambda: lben.from_rnn(nn.RNN(2, 3, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_comes_back(kind: str, tmp_path: Path) -> None:
    ren = KINDS[kind]()
    lben.save(ren, tmp_path / "ren.safetensors")
    again = lben.load(tmp_path / "ren.safetensors")
    assert repr(again) == repr(ren)
    u = signal().to(ren.parameterization.by.dtype)
    assert torch.equal(again.eval()(u), ren.eval()(u))
    other = lben.REN(2, 3, 4, 2, behaviour=lben.Contracting(0.5), dtype=D)
    with pytest.raises(lben.InvalidInput, match=r"network with"):
        other.load_state_dict(ren.state_dict())


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_a_network_of_torch_is_the_same_function_and_can_be_examined(kind: str, layers: int) -> None:
    torch.manual_seed(layers)
    rnn, head = nn.RNN(2, 3, layers, nonlinearity=kind), nn.Linear(3, 1)
    ren = lben.from_rnn(rnn, head)
    u = torch.randn(6, 4, 2)
    assert torch.allclose(ren(u), head(rnn(u)[0]), atol=1e-6)
    if layers == 1:
        found = lben.incremental_gain(ren)
        assert found.holds
        assert found.gain is not None
        assert lben.lipschitz_lower_bound(ren, u, restarts=2, steps=3).value <= found.gain


def wrong(**changes: object) -> Callable[[], object]:
    options: dict[str, object] = {"behaviour": lben.Contracting(0.9), **changes}
    return lambda: lben.REN(2, 3, 4, 2, **options)  # type: ignore[arg-type]


def with_nan() -> Tensor:
    u = signal(9)
    u[4, 1, 0] = float("nan")
    return u


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: lben.Contracting(0.0), r"rate must lie in \(0, 1\].* not 0\.0"),
    (lambda: lben.Contracting(1.2), r"rate must lie in \(0, 1\].* not 1\.2"),
    (lambda: lben.Contracting("slow"), "rate must be a number"),  # type: ignore[arg-type]
    (lambda: lben.Lipschitz(-1.0), "gamma must be a finite number above 0"),
    (lambda: lben.Passive(0.5, 0.6), "below 1/4"),
    (lambda: lben.Passive(-0.1), "input must be a finite number of at least 0"),
    (lambda: lben.REN(2, 3, 4, 1, behaviour=lben.Passive()), "as many outputs as inputs, not 1 and 2"),
    (lambda: lben.Dissipative([[1.0]], [[0.0]], [[1.0]]), "Q must be negative semidefinite"),
    (lambda: lben.Dissipative([[-1.0]], [[0.5]], [[-1.0]]), r"No network satisfies .* eigenvalue -0\.75"),
    (lambda: lben.Dissipative([[-1.0, 1.0], [0.0, -1.0]], [[0.0]], [[1.0]]), "Q must be symmetric"),
    (lambda: lben.Dissipative([[-1.0]], [[0.0, 1.0]], [[1.0]]), r"S must have shape \(1, 1\)"),
    (wrong(behaviour=lben.Passive(), feedthrough=False), "needs feedthrough=True"),
    (wrong(behaviour="contracting"), "behaviour must be one of lben's"),
    (wrong(initial="warm"), "initial must be"),
    (wrong(activation=lben.Softmax(2)), "activations of single units"),
    (wrong(activation=nn.ReLU()), "use lben.ReLU"),
    (lambda: lben.REN(2, -1, 4, 2, behaviour=None), "state_features must be"),
    (lambda: made()(signal()[0]), r"shape \(times, batch, 2\)"),
    (lambda: made()(signal(0)), "at least one time step"),
    (lambda: made()(signal(features=3)), "2 features"),
    (lambda: made()(signal().float()), "float32 but the network is float64"),
    (lambda: made()(with_nan()), "NaN or infinity at time step 4 of 9"),
    (lambda: made()(signal(), torch.zeros(4, 3, dtype=D)), r"one row for each of \(3,\) samples"),
    (lambda: made()(signal(), torch.full((3,), float("inf"), dtype=D)), "The state holds inf"),
    (lambda: made().simulate(signal(), checkpoint=0), "checkpoint must be an integer"),
    (lambda: made().step(with_nan()[4]), "u holds nan"),
    (lambda: lben.from_rnn(nn.LSTM(2, 3)), "not LSTM"),  # type: ignore[arg-type]
    (lambda: lben.from_rnn(nn.RNN(2, 3, bidirectional=True)), "bidirectional"),
    (lambda: lben.from_rnn(nn.RNN(2, 3), nn.Linear(4, 1)), "of 3 inputs"),
    (lambda: lben.dissipation(made(lben.Contracting())), "claim no supply"),
    (lambda: lben.dissipation(made(), torch.eye(2)), "together"),
    (lambda: lben.dissipation(made(), torch.eye(2), torch.eye(2), torch.eye(2)), "Q must be negative"),
    (lambda: lben.dissipation(lben.LBEN(2, 3, 1)), "takes an lben.REN"),  # type: ignore[arg-type]
    (lambda: lben.certified_radius(made(), signal()[0]), "networks without a state"),
    (
        lambda: lben.REN.from_weights(replace(made().weights(), P=None), behaviour=lben.Lipschitz(1.0)),
        "carry no P and lam",
    ),
    (lambda: lben.REN.from_weights(made().weights(), behaviour=lben.Contracting(), acyclic=True), "lower triangular"),
]


@pytest.mark.parametrize(("call", "said"), CALLS, ids=[said for _, said in CALLS])
def test_bad_input_is_named_in_one_sentence(call: Callable[[], object], said: str) -> None:
    with pytest.raises(lben.InvalidInput, match=said) as raised:
        call()
    assert str(raised.value).endswith(".")


def test_states_that_overflow_and_bounds_that_do_not_hold_are_named() -> None:
    free = lben.REN(1, 2, 3, 1, behaviour=None, acyclic=True)
    with torch.no_grad():
        free.parameterization.A.copy_(1e10 * torch.eye(2))  # type: ignore[operator]
        free.parameterization.bx.fill_(1.0)
        with pytest.raises(lben.NotConverged, match=r"overflows at time step 5 of 20"):
            free(torch.zeros(20, 1, 1))
    with pytest.raises(lben.BoundNotMet, match="norm of D must be below gamma"):
        lben.REN.from_weights(made().weights(), behaviour=lben.Lipschitz(1e-3))
    with pytest.raises(lben.BoundNotMet, match="does not prove"):
        lben.REN.from_weights(made().weights(), behaviour=lben.Contracting(1e-3))


def test_a_behaviour_is_not_exchanged_and_times_are_not_taken_for_samples() -> None:
    """It was: repr and files then said another gain than that of the weights."""
    net = lben.REN(1, 2, 3, 1, behaviour=lben.Lipschitz(2.0))
    with pytest.raises(lben.InvalidInput, match="cannot be changed"):
        net.behaviour = lben.Lipschitz(1.0)
    assert net.behaviour == lben.Lipschitz(2.0)
    with pytest.raises(lben.InvalidInput, match="Samples would be taken for times"):
        lben.train.fit(net, (torch.zeros(50, 4, 1), torch.zeros(50, 4, 1)))


def test_nothing_is_certified_of_a_network_with_hooks() -> None:
    net = lben.REN(2, 3, 4, 1, behaviour=lben.Contracting(0.9))
    net.register_forward_hook(lambda *_: None)
    with pytest.raises(lben.InvalidInput, match="The network, REN, has hooks"):
        lben.certify(net)
