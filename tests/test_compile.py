"""`torch.compile` of networks and layers: the same numbers as without it, in few graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lben

torch_compiler = pytest.importorskip("torch._dynamo.testing")
pytestmark = pytest.mark.filterwarnings(  # the compiler's own
    "ignore:The .grad attribute:UserWarning",
    "ignore:`torch.jit:DeprecationWarning",
    "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning",
)

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LBEN": (lambda: lben.LBEN(10, 20, 3, gamma=1.0, normalize=lben.Normalize(0.1, 0.3)), (10,)),
    "linear skip": (lambda: lben.LBEN(10, 20, 3, gamma=1.0, skip="linear"), (10,)),
    "ConvLBEN": (lambda: lben.ConvLBEN((1, 8, 8), 4, 3, gamma=1.0), (1, 8, 8)),
    "ImageLBEN": (lambda: lben.ImageLBEN(2, 4, 2, gamma=1.0), (2, 6, 6)),
    "SLL": (lambda: lben.SLL(10), (10,)),
    "stack": (lambda: lben.Sequential(lben.SLL(10), nn.Linear(10, 6), lben.LBEN(6, 8, 3, gamma=2.0)), (10,)),
}


def results(net: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    y = call(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), list(net.parameters()), materialize_grads=True)]


def agree(kind: str, training: bool, backend: object) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, shape = NETWORKS[kind]
    net, x = make().train(training), torch.randn(8, *shape)
    compiled = torch.compile(net, backend=backend)  # type: ignore[call-overload]
    for batch in (x, x, x[:5], x[:3]):
        for one, other in zip(results(net, compiled, batch), results(net, net, batch), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(compiled(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "training"), [("LBEN", True), ("ConvLBEN", False)])
def test_a_compiled_network_is_the_same(kind: str, training: bool) -> None:
    """With two graphs, around the solver: for the first size of a batch, for any, and without gradients."""
    counter = torch_compiler.CompileCounterWithBackend("eager")
    agree(kind, training, counter)
    assert counter.frame_count <= 6


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_real_backends_give_the_same(kind: str, training: bool, backend: str) -> None:
    agree(kind, training, backend)


def test_failures_are_reported_as_ever() -> None:
    torch._dynamo.reset()
    net = lben.LBEN(10, 20, 3, gamma=1.0, solver=lben.PeacemanRachford(max_iterations=1)).eval()
    compiled = torch.compile(net, backend="eager")
    with pytest.raises(lben.NotConverged, match="did not converge"):
        compiled(torch.randn(4, 10))
    with pytest.raises(lben.InvalidInput, match="10 features"):
        compiled(torch.randn(4, 9))
