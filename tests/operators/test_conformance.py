"""The dense, the Fourier and the pixelwise operator: each does what its dense matrix does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lben
from lben.operators.base import Operator
from lben.operators.dense import DenseOperator
from lben.operators.fourier import FourierOperator
from lben.operators.pixelwise import PixelOperator
from lben.weights.convolutional import ConvWeights
from tests import problems

TOLERANCE = 1e-10
SHAPES = [(1, 6, 8), (3, 5, 7), (2, 4, 5)]  # even and odd sizes, one and several input channels


def conv_weights(
    in_shape: tuple[int, int, int], metric: lben.Metric, *, gamma: float | None = 0.7, size: float = 1.0
) -> ConvWeights:
    """Four channels, with a metric that spreads."""
    return problems.conv_network(in_shape, metric, gamma=gamma, channels=4, size=size).weights().detach()


def from_definition(w: ConvWeights) -> Tensor:
    """W = I - Psi (T + (Wo'Wo + Lam U U' Lam)/(2 gamma)), with T applied to unit images by conv2d."""
    n, (height, width), C = w.hidden_features, w.geometry.shape, w.channels
    units = torch.eye(n, dtype=torch.float64).reshape(n, height, width, C).permute(0, 3, 1, 2)
    images = F.pad(units, (w.T.shape[-1] // 2,) * 4, mode="circular")
    T = F.conv2d(images, w.T).permute(0, 2, 3, 1).reshape(n, n).T
    dense, lam = w.dense(), w.lam
    assert lam is not None
    if w.gamma is not None:
        scaled = lam[:, None] * circular(w)
        T = T + (dense.Wo.T @ dense.Wo + scaled @ scaled.T) / (2 * w.gamma)
    return torch.eye(n) - T / lam[:, None]


def circular(w: ConvWeights) -> Tensor:
    """U on images of the hidden layer's own size: the U of W, which zeros around the image do not change."""
    wide = lben.ConvLBEN((w.geometry.in_shape[0], *w.geometry.shape), w.channels, 3, pool=1).weights()
    x = torch.eye(wide.in_features, dtype=torch.float64)
    return wide.geometry.inject(x, w.U, None).T


CASES: dict[str, tuple[Operator, Tensor, Tensor | None]] = {
    "dense": (problems.operator(12), problems.operator(12).W, problems.operator(12).lam),
    "dense, hard": (problems.hard_operator(20), problems.hard_operator(20).W, problems.hard_operator(20).lam),
}
for shape in SHAPES:
    for metric in ("channel", "identity"):
        for gamma in (0.7, None):
            w = conv_weights(shape, metric, gamma=gamma)
            CASES[f"{shape}, {metric}, gamma={gamma}"] = (w.operator(), from_definition(w), w.lam)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
class TestConformance:
    """What every operator with a resolvent promises, against the matrix."""

    def test_product_and_transpose(self, case: tuple[Operator, Tensor, Tensor | None]) -> None:
        operator, W, _ = case
        z, b = problems.biases(5, len(W)), problems.biases(5, len(W), seed=2)
        assert operator.size == len(W)
        assert torch.allclose(operator.affine(z, b), z @ W.T + b, rtol=0, atol=TOLERANCE * float(W.abs().max()))
        flipped = operator.transpose()
        assert torch.allclose(flipped.affine(z, b), z @ W + b, rtol=0, atol=TOLERANCE * float(W.abs().max()))
        assert torch.equal(flipped.transpose().affine(z, b), operator.affine(z, b))

    def test_resolvent_and_its_transpose(self, case: tuple[Operator, Tensor, Tensor | None]) -> None:
        operator, W, _ = case
        z, b = problems.biases(5, len(W)), problems.biases(5, len(W), seed=2)
        identity = torch.eye(len(W), dtype=W.dtype)
        for alpha in (0.05, 1.0, 3.0):
            C = 2 * torch.linalg.inv(identity + alpha * (identity - W)) - identity
            for found, expected in (
                (operator.cayley(alpha)(b, z, None), z @ C.T + b),
                (operator.transpose().cayley(alpha)(b, z, None), z @ C + b),
            ):
                assert torch.allclose(found, expected, rtol=0, atol=TOLERANCE)
            apply = operator.cayley(alpha)
            first = apply(b, z, None)
            again = apply(b, 2 * z, first)  # in the same memory
            assert torch.allclose(again, 2 * z @ C.T + b, rtol=0, atol=TOLERANCE)

    def test_resolvent_with_one_step_a_unit(self, case: tuple[Operator, Tensor, Tensor | None]) -> None:
        operator, W, _ = case
        if not isinstance(operator, FourierOperator):
            assert operator.own_steps() is None
            assert operator.own_rate() is None
            return
        z, b = problems.biases(5, len(W)), problems.biases(5, len(W), seed=2)
        identity = torch.eye(len(W), dtype=W.dtype)
        for found, M in ((operator, W), (operator.transpose(), W.T)):
            own = found.own_steps()
            assert own is not None
            assert own.rate == found.own_rate()
            assert 0 < own.rate < 1
            D = own.steps.diag()
            C = 2 * torch.linalg.inv(identity + D @ (identity - M)) - identity
            C = torch.linalg.inv(D) @ C @ D if own.conjugate else C
            assert own.conjugate == found.transposed
            assert torch.allclose(own.cayley(b, z, None), z @ C.T + b, rtol=0, atol=TOLERANCE)

    def test_norms_and_strong_monotonicity(self, case: tuple[Operator, Tensor, Tensor | None]) -> None:
        operator, W, lam = case
        dense = DenseOperator(W, lam)
        for found in (operator, operator.transpose(), operator.exact()):
            for name in ("monotonicity", "norm", "cocoercivity"):
                one, other = getattr(found, name), getattr(dense, name)
                assert math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE * dense.norm)
            assert found.sure_monotonicity < found.monotonicity
        assert operator.lam is not None
        assert lam is not None
        assert torch.equal(operator.lam, lam)
        assert torch.allclose(operator.transpose().lam * lam, torch.ones_like(lam))  # type: ignore[operator]

    def test_gradient_of_a_product(self, case: tuple[Operator, Tensor, Tensor | None]) -> None:
        operator, W, _ = case
        q, z = problems.biases(3, len(W)), problems.biases(3, len(W), seed=2)
        tensors = [t.detach().clone().requires_grad_() for t in operator.tensors]
        for bound in (operator.rebind(*tensors), operator.rebind(*tensors).transpose()):
            value = (q * bound.affine(z, torch.zeros_like(q))).sum()
            expected = torch.autograd.grad(value, tensors)
            for found, other in zip(bound.pullback(q, z), expected, strict=True):
                assert torch.allclose(found, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("in_shape", SHAPES)
@pytest.mark.parametrize("metric", ["channel", "identity"])
def test_the_papers_norm_bound_holds_with_the_metric_in_it(in_shape: tuple[int, int, int], metric: lben.Metric) -> None:
    operator = conv_weights(in_shape, metric, size=2.0).operator()
    assert isinstance(operator, FourierOperator)
    assert operator.norm <= operator.norm_bound <= 2 * operator.norm


@pytest.mark.parametrize("in_shape", SHAPES)
@pytest.mark.parametrize("gamma", [0.7, None])
def test_the_pixelwise_operator_is_its_matrix_and_its_bounds_are_bounds(
    in_shape: tuple[int, int, int], gamma: float | None
) -> None:
    w = conv_weights(in_shape, "pixel", gamma=gamma)
    operator, W = w.operator(), from_definition(w)
    assert isinstance(operator, PixelOperator)
    dense = DenseOperator(W, w.lam)
    z, b = problems.biases(5, len(W)), problems.biases(5, len(W), seed=2)
    assert torch.allclose(operator.affine(z, b), z @ W.T + b, rtol=0, atol=TOLERANCE)
    assert torch.allclose(operator.transpose().affine(z, b), z @ W + b, rtol=0, atol=TOLERANCE)
    assert 0 < operator.monotonicity <= dense.monotonicity
    assert dense.norm <= operator.norm
    assert 0 < operator.cocoercivity <= dense.cocoercivity
    with pytest.raises(lben.InvalidInput, match=r"pixel.*FISTA.*ForwardBackward"):
        operator.cayley(1.0)
    tensors = [t.detach().clone().requires_grad_() for t in operator.tensors]
    bound = operator.rebind(*tensors).transpose()
    expected = torch.autograd.grad((b * bound.affine(z, b.new_zeros(b.shape))).sum(), tensors)
    with torch.no_grad():
        found = bound.pullback(b, z)
    assert all(torch.allclose(one, other) for one, other in zip(found, expected, strict=True))


def test_estimates_in_training_choose_steps_near_the_exact_ones() -> None:
    for size in (0.5, 1.0, 3.0):
        w = conv_weights((3, 8, 8), "channel", size=size)
        exact = w.operator()
        assert w.entries is not None
        quick = w.operator(monotonicity_bound=float(1 / w.entries.max()))
        assert 0.3 < quick.balanced_step() / exact.balanced_step() < 3
