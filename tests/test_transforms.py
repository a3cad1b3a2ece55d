"""Transforms of torch.func, batched gradients and forward mode, against loops of plain autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

import lben
from lben.errors import NotFinite
from tests.transforms import CASES, PARTLY, inputs, make, sample

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, in forward mode
MODES = [True, False]
cases = pytest.mark.parametrize(("kind", "training"), CASES)
partly = pytest.mark.parametrize("kind", PARTLY)
modes = pytest.mark.parametrize("training", MODES, ids=["training", "evaluation"])
Named = dict[str, Tensor]


def close(one: Tensor, other: Tensor, tolerance: float = 1e-8) -> bool:
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance))


def values(net: nn.Module) -> Named:
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def loss_of(net: nn.Module) -> Callable[[Named, Tensor], Tensor]:
    """The loss of one sample as a function of the parameters."""

    def loss(parameters: Named, x: Tensor) -> Tensor:
        y: Tensor = functional_call(net, parameters, (x[None],))
        return y.square().sum()

    return loss


def plain_grads(net: nn.Module, x: Tensor) -> Named:
    names, parameters = zip(*net.named_parameters(), strict=True)
    found = torch.autograd.grad(net(x).square().sum(), parameters, materialize_grads=True)
    return dict(zip(names, found, strict=True))


@pytest.mark.sampled(3)
@cases
def test_jacobians_of_samples(kind: str, training: bool) -> None:
    """By vmap, reverse and forward mode; against one backward pass an output; and nothing stays behind."""
    net, x = make(kind, training), inputs(kind)
    one, before = sample(net), net(x).detach()
    expected = torch.stack([torch.autograd.functional.jacobian(one, row) for row in x])
    assert close(vmap(one)(x), before)
    assert close(vmap(jacrev(one))(x), expected)
    assert close(vmap(jacfwd(one))(x), expected)
    assert close(torch.autograd.functional.jacobian(one, x[0], vectorize=True), expected[0])
    assert close(torch.autograd.functional.jacobian(one, x[0], vectorize=True, strategy="forward-mode"), expected[0])
    assert torch.equal(net(x), before)


@pytest.mark.sampled(3)
@cases
def test_gradients_of_every_sample(kind: str, training: bool) -> None:
    net, x = make(kind, training), inputs(kind)
    found = vmap(grad(loss_of(net)), in_dims=(None, 0))(values(net), x)
    for i in range(len(x)):
        for name, expected in plain_grads(net, x[i : i + 1]).items():
            assert close(found[name][i], expected), name


@pytest.mark.sampled(3)
@cases
def test_directional_derivatives(kind: str, training: bool) -> None:
    """In all parameters and the input at once: torch.func, dual numbers, and the transpose of a backward pass."""
    net, x = make(kind, training), inputs(kind)
    generator = torch.Generator().manual_seed(2)
    parameters = values(net)
    moved, dx = (
        {n: torch.randn(p.shape, dtype=p.dtype, generator=generator) for n, p in parameters.items()},
        torch.randn(x.shape, dtype=x.dtype, generator=generator),
    )

    def call(p: Named, x: Tensor) -> Tensor:
        y: Tensor = functional_call(net, p, (x,))
        return y

    y, found = jvp(call, (parameters, x), (moved, dx))[:2]
    with forward_ad.dual_level():
        duals = {n: forward_ad.make_dual(p, moved[n]) for n, p in parameters.items()}
        dual = forward_ad.unpack_dual(call(duals, forward_ad.make_dual(x, dx))).tangent
    assert dual is not None
    g = torch.randn(y.shape, dtype=y.dtype, generator=generator)
    back, gx = vjp(call, parameters, x)[1](g)
    assert close(found, dual)
    assert close((g * found).sum(), (gx * dx).sum() + sum((back[n] * moved[n]).sum() for n in moved))
    (expected,) = torch.autograd.functional.vjp(lambda x: call(parameters, x), x, g)[1:]
    assert close(gx, expected)


@pytest.mark.sampled(3)
@cases
def test_batches_of_gradients(kind: str, training: bool) -> None:
    net, x = make(kind, training), inputs(kind).requires_grad_()
    y, wanted = net(x), [x, *net.parameters()]
    g = torch.randn(3, *y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    keep = {"retain_graph": True, "materialize_grads": True}
    found = torch.autograd.grad(y, wanted, g, is_grads_batched=True, retain_graph=True, allow_unused=True)
    for i in range(3):
        for one, expected in zip(found, torch.autograd.grad(y, wanted, g[i], **keep), strict=True):
            assert close(expected, torch.zeros_like(expected) if one is None else one[i])


@pytest.mark.sampled(3)
@partly
@modes
def test_second_derivatives(kind: str, training: bool) -> None:
    """All orders of forward and reverse mode, each against the double backward pass of autograd."""
    net, x = make(kind, training), inputs(kind)

    def energy(row: Tensor) -> Tensor:
        return sample(net)(row).square().sum()

    expected = torch.autograd.functional.hessian(energy, x[0])
    assert close(hessian(energy)(x[0]), expected)
    assert close(jacfwd(jacfwd(energy))(x[0]), expected)
    assert close(jacrev(jacfwd(energy))(x[0]), expected)
    assert close(jacrev(jacrev(energy))(x[0]), expected)
    assert close(vmap(hessian(energy))(x)[0], expected)


@pytest.mark.sampled(3)
@partly
@modes
def test_mixed_second_derivatives(kind: str, training: bool) -> None:
    """Forward mode in a parameter over reverse mode in the input, which at its own level does not see it move."""
    net, row = make(kind, training), inputs(kind)[0]
    for name, start in list(values(net).items())[:2]:

        def loss(parameter: Tensor, x: Tensor, name: str = name) -> Tensor:
            return loss_of(net)({name: parameter}, x)

        found = jacfwd(jacrev(loss, argnums=1), argnums=0)(start, row)
        parameter, x = start.clone().requires_grad_(), row.clone().requires_grad_()
        (gx,) = torch.autograd.grad(loss(parameter, x), x, create_graph=True)
        for i, entry in enumerate(gx):
            (expected,) = torch.autograd.grad(entry, parameter, retain_graph=True, materialize_grads=True)
            assert close(found[i], expected), name


@pytest.mark.sampled(3)
@partly
@modes
def test_ensembles(kind: str, training: bool) -> None:
    """A W a slice: outputs and gradients of three networks at once, and of three values of one parameter."""
    nets, x = [make(kind, training, seed) for seed in range(3)], inputs(kind)
    parameters, buffers = stack_module_state(nets)
    base = make(kind, training, seed=9)

    def call(p: Named, b: Named) -> Tensor:
        y: Tensor = functional_call(base, (p, b), (x,))
        return y

    whole = {name: parameter.detach() for name, parameter in parameters.items()}
    found = vmap(call)(whole, buffers)
    grads = vmap(grad(lambda p, b: call(p, b).square().sum()))(whole, buffers)
    for i, net in enumerate(nets):
        assert close(found[i], net(x))
        for name, expected in plain_grads(net, x).items():
            assert close(grads[name][i], expected), name
    for name in list(whole)[:2]:
        alone = vmap(lambda p, name=name: functional_call(nets[0], {name: p}, (x,)))(whole[name])
        assert close(alone[0], nets[0](x)), name


@modes
def test_a_vmapped_network_trains_by_plain_autograd(training: bool) -> None:
    """The parameters are tracked outside the transform, in its plain tensors."""
    net, x = make("LBEN", training), inputs("LBEN")
    vmap(sample(net))(x).square().sum().backward()
    for name, expected in plain_grads(net, x).items():
        assert close(net.get_parameter(name).grad, expected), name  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@partly
def test_nothing_wrapped_is_kept(kind: str) -> None:
    """In evaluation, where W is kept: other and wrapped parameters in between change nothing."""
    net, x = make(kind, training=False), inputs(kind)
    before = net(x).detach()
    vmap(grad(loss_of(net)), in_dims=(None, 0))({n: 0.5 * p for n, p in values(net).items()}, x)
    jacrev(net)(x)
    jvp(net, (x,), (x,))
    assert torch.equal(net(x), before)
    for module in net.modules():
        kept = getattr(module, "_kept", None)
        for tensor in [] if kept is None else kept[0].tensors().values():
            assert not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def transforms(net: nn.Module) -> list[Callable[[Tensor], object]]:
    one = sample(net)
    return [vmap(one), jacrev(net), lambda x: jvp(net, (x,), (x,)), lambda x: vmap(jacfwd(one))(x)]


@modes
def test_failures_are_reported_as_ever(training: bool) -> None:
    net, x = make("LBEN", training), inputs("LBEN")
    assert isinstance(net, lben.LBEN)
    net.solver = lben.PeacemanRachford(tolerance=1e-12, max_iterations=2, on_failure="raise")
    for transform in transforms(net):
        with pytest.raises(lben.NotConverged, match="did not converge for 3 of 3 samples"):
            transform(x)


@partly
def test_bad_input_is_named_as_ever(kind: str) -> None:
    net, x = make(kind, training=False), inputs(kind)
    broken = x.clone()
    broken[1, 2] = torch.nan
    for transform in transforms(net):
        with pytest.raises(NotFinite, match="x holds nan at index"):
            transform(broken)


def test_wrong_shapes_get_our_sentence() -> None:
    for transform in transforms(make("LBEN", training=True)):
        with pytest.raises(lben.InvalidInput, match="x must have 3 features in its last dimension"):
            transform(torch.zeros(3, 2, dtype=torch.float64))


def test_a_solution_is_not_for_transforms() -> None:
    net, x = make("LBEN", training=False), inputs("LBEN")
    assert isinstance(net, lben.LBEN)
    with pytest.raises(lben.InvalidInput, match="call the network"):
        vmap(lambda row: net.solve(row).z)(x)


@modes
def test_a_fallback_works_within_transforms(training: bool) -> None:
    """Samples that failed are solved again inside, and the derivatives are those of what was found."""
    net, x = make("LBEN", training), inputs("LBEN")
    expected = vmap(jacrev(sample(net)))(x)
    assert isinstance(net, lben.LBEN)
    net.solver = lben.PeacemanRachford(tolerance=1e-12, max_iterations=2, on_failure="fallback")
    with pytest.warns(lben.ConvergenceWarning, match="Falling back to Newton"):
        found = vmap(jacrev(sample(net)))(x)
    assert close(found, expected)
