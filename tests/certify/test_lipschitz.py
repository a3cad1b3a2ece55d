"""Certificates: what they accept, what they refuse, and that they agree with independent ways."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lben
from lben.activations.base import Scalar
from lben.numerics.barrier import grouped_direction
from lben.numerics.rounding import at_least, at_most
from tests.problems import ACTIVATIONS, mnist_network, random_network


def plain(W: Tensor, U: Tensor, Wo: Tensor, lam: Tensor | None = None, gamma: float | None = None) -> lben.Weights:
    """Weights without biases."""
    W, U, Wo = W.double(), U.double(), Wo.double()
    bz, by = torch.zeros(len(W), dtype=torch.float64), torch.zeros(len(Wo), dtype=torch.float64)
    return lben.Weights(W, U, bz, Wo, by, None if lam is None else lam.double(), gamma)


def largest_slope(net: lben.EquilibriumNetwork, seed: int) -> float:
    """The largest slope between any two of 24 random inputs, some close together."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, net.in_features, generator=generator, dtype=torch.float64)
    x = 3 * torch.cat([x, x + 1e-3 * torch.randn(x.shape, generator=generator, dtype=torch.float64)])
    net.solver = lben.Newton(tolerance=1e-11)
    with torch.no_grad():
        y = net(x)
    return float((torch.cdist(y, y) / torch.cdist(x, x).fill_diagonal_(torch.inf)).max())


@st.composite
def networks(draw: st.DrawFn) -> lben.EquilibriumNetwork:
    n = draw(st.integers(1, 8))
    activation = draw(st.sampled_from(ACTIVATIONS))
    if activation.units is not None:
        scalars = [a for a in ACTIVATIONS if isinstance(a, Scalar)]
        activation = lben.PerUnit([draw(st.sampled_from(scalars)) for _ in range(n)])
    return random_network(
        draw(st.sampled_from(["LBEN", "LBEN", "MON"])),
        (draw(st.integers(1, 8)), n, draw(st.integers(1, 4))),
        activation,
        gamma=draw(st.sampled_from([None, 0.1, 1.0, 5.0])),
        size=draw(st.sampled_from([0.3, 1.0, 3.0])),
        spread=draw(st.sampled_from([0.0, 0.5, 1.5])),
        trained=draw(st.sampled_from([0, 0, 1, 5])),
        seed=draw(st.integers(0, 10**6)),
    )


@settings(max_examples=200, deadline=None)
@given(networks(), st.integers(0, 10**6))
def test_lower_bound_tightest_bound_gamma_and_product_bound_are_in_order(
    net: lben.EquilibriumNetwork, seed: int
) -> None:
    tight = lben.tightest_bound(net)
    assert tight.holds
    assert tight.gamma is not None
    assert lben.certify(net, tight.gamma, lam=tight.lam).holds
    lower = lben.lipschitz_lower_bound(net, restarts=4, steps=10, seed=seed)
    assert lower.proved
    rounding = 1 + 1e-6  # the tightest bound is found to about six digits
    assert lower.value <= tight.gamma
    assert tight.gamma <= lben.product_bound(net) * rounding
    if net.gamma is not None:
        assert tight.gamma <= net.gamma * rounding
        assert lben.certify(net).holds
    assert largest_slope(net, seed) <= tight.gamma * (1 + 1e-7)


@pytest.mark.parametrize("gamma", [0.2, 1.0, None])
def test_order_on_mnist(gamma: float | None) -> None:
    net = mnist_network(gamma)
    tight = lben.tightest_bound(net, rigorous=True)
    assert tight.holds
    assert tight.rigorous
    assert tight.gamma is not None
    assert tight.gamma <= lben.product_bound(net)
    assert lben.certify(net).holds
    assert lben.certify(net, rigorous=True).holds
    if gamma is not None:
        assert tight.gamma <= gamma


def test_condition_w_is_checked_without_gamma() -> None:
    net = lben.MON(4, 6, 2).double()
    certificate = lben.certify(net)
    assert certificate.gamma is None
    assert certificate.holds
    assert certificate.margin == pytest.approx(float(torch.linalg.eigvalsh(net.weights().detach().condition(None))[0]))
    assert "exactly one equilibrium" in str(certificate)


def test_what_is_printed_is_a_bound_too() -> None:
    assert at_most(0.841268178) == "0.841269"
    assert at_least(0.9999999) == "0.999999"
    assert [at_most(bound) for bound in (0.1, 1.0, 2.5, 1e-30, math.inf)] == ["0.1", "1", "2.5", "1e-30", "inf"]
    assert float(at_most(1 + 1e-12)) > 1
    net = lben.LBEN(5, 6, 3, gamma=1.0)
    found = lben.tightest_bound(net)
    assert found.gamma is not None
    printed = re.search(r"at most (\S+) times", str(found))
    assert printed is not None
    assert found.gamma <= float(printed[1]) <= found.gamma * (1 + 1e-5)


def test_a_metric_is_found_where_none_is_carried() -> None:
    torch.manual_seed(0)
    weights = lben.LBEN(4, 6, 2, gamma=1.0).double().weights().detach()
    bare = replace(weights, lam=None, gamma=None)
    assert lben.certify(bare).holds
    assert lben.certify(bare, 1.0).holds
    tight = lben.tightest_bound(weights).gamma
    assert tight is not None
    assert lben.tightest_bound(bare).gamma == pytest.approx(tight, rel=1e-5)
    assert not lben.certify(bare, 0.99 * tight).holds


def broken(weights: lben.Weights, how: str) -> lben.Weights:
    W = weights.W.clone()
    if how == "W":
        W[1, 2] += 50.0
        return replace(weights, W=W)
    if how == "lam":
        assert weights.lam is not None
        return replace(weights, lam=100 * weights.lam)
    if how == "U":
        return replace(weights, U=10 * weights.U)
    return replace(weights, Wo=10 * weights.Wo)


@pytest.mark.parametrize("rigorous", [False, True])
@pytest.mark.parametrize("how", ["W", "lam", "U", "Wo"])
def test_broken_weights_are_refused(how: str, rigorous: bool) -> None:
    torch.manual_seed(0)
    weights = lben.LBEN(20, 12, 4, gamma=1.0).double().weights().detach()
    assert lben.certify(weights, rigorous=rigorous).holds
    certificate = lben.certify(broken(weights, how), rigorous=rigorous)
    assert certificate.verdict == "fails"
    assert certificate.margin < 0
    assert "not proved" in str(certificate)


@pytest.mark.parametrize("rigorous", [False, True])
@pytest.mark.parametrize("gamma", [0.2, 1.0, None])
def test_one_per_cent_below_the_tightest_bound_is_refused(gamma: float | None, rigorous: bool) -> None:
    net = mnist_network(gamma)
    tight = lben.tightest_bound(net)
    assert tight.gamma is not None
    assert not lben.certify(net, 0.99 * tight.gamma, rigorous=rigorous).holds
    assert not lben.certify(net, 0.99 * tight.gamma, lam=tight.lam, rigorous=rigorous).holds


def with_smallest_eigenvalue(value: float, n: int, seed: int, size: float) -> lben.Weights:
    """W with 2I - W - W' of the given smallest eigenvalue, to rounding, and a skew part besides."""
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    values = torch.rand(n, generator=generator, dtype=torch.float64) * size + 0.1
    values[0] = value
    S = Q @ torch.diag(values) @ Q.T
    N = torch.randn(n, n, generator=generator, dtype=torch.float64)
    W = torch.eye(n, dtype=torch.float64) - (S + S.T) / 4 + (N - N.T)
    return plain(W, torch.ones(n, 1), torch.ones(1, n), torch.ones(n))


@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([1.0, 10.0, 1e3]))
@settings(max_examples=60, deadline=None)
def test_rigorous_is_never_wrong(seed: int, n: int, size: float) -> None:
    assert lben.certify(with_smallest_eigenvalue(-1e-9, n, seed, size), rigorous=True).verdict == "fails"
    assert lben.certify(with_smallest_eigenvalue(1e-9, n, seed, size), rigorous=True).verdict == "holds"
    assert not lben.certify(with_smallest_eigenvalue(-1e-9, n, seed, size)).holds


def test_rigorous_decides_what_rounding_hides() -> None:
    """2 - 2 w with w the doubles just below, at and above one: no eigenvalue routine is needed to know the answer."""
    for w, verdict in ((math.nextafter(1, 0), "holds"), (math.nextafter(1, 2), "fails"), (1.0, "undecided")):
        weights = plain(torch.tensor([[w]], dtype=torch.float64), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
        assert lben.certify(weights).verdict == "undecided"
        assert lben.certify(weights, rigorous=True).verdict == verdict


def test_float32_weights_are_certified_as_stored() -> None:
    """Extreme free variables lose the bound to rounding: by construction it holds, of the stored W it does not."""
    torch.manual_seed(0)
    net = lben.LBEN(20, 30, 5, gamma=1.0)
    with torch.no_grad():
        net.get_parameter("parameterization.d").normal_(0, 5)
        net.get_parameter("parameterization.V").zero_()[:3].normal_(0, 3000)
    assert lben.certify(net).verdict == lben.certify(net, rigorous=True).verdict == "fails"


@pytest.mark.parametrize("kind", ["LBEN", "MON"])
@pytest.mark.parametrize(("n", "d", "p"), [(6, 9, 3), (9, 3, 4), (5, 5, 1)])
def test_barrier_and_scs_agree(kind: str, n: int, d: int, p: int) -> None:
    net = random_network(kind, (d, n, p), lben.ReLU(), gamma=None, size=2.0, spread=1.0, trained=3, seed=n)
    barrier, scs = lben.tightest_bound(net), lben.tightest_bound(net, solver="scs")
    assert barrier.holds
    assert scs.holds
    assert scs.gamma == pytest.approx(barrier.gamma, rel=1e-4)


def test_barrier_and_scs_agree_on_mnist() -> None:
    net = mnist_network(None)
    assert lben.tightest_bound(net, solver="scs").gamma == pytest.approx(lben.tightest_bound(net).gamma, rel=1e-4)


def lipsdp(U: Tensor, Wo: Tensor) -> float:
    """LipSDP (Fazlyab et al. 2019) for y = Wo sigma(U x), slopes in [0, 1], diagonal multipliers, as it is written."""
    cp = pytest.importorskip("cvxpy")
    n, d = U.shape
    T, rho = cp.diag(cp.Variable(n, nonneg=True)), cp.Variable()
    top = cp.hstack([-rho * torch.eye(d).numpy(), U.numpy().T @ T])
    bottom = cp.hstack([T @ U.numpy(), -2 * T + (Wo.T @ Wo).numpy()])
    matrix = cp.vstack([top, bottom])
    cp.Problem(cp.Minimize(rho), [(matrix + matrix.T) / 2 << 0]).solve(solver=cp.SCS, eps=1e-7)
    return math.sqrt(float(rho.value))


@pytest.mark.parametrize("seed", range(4))
def test_one_hidden_layer_is_lipsdp(seed: int) -> None:
    torch.manual_seed(seed)
    U, Wo = torch.randn(8, 5).double(), torch.randn(3, 8).double()
    tight = lben.tightest_bound(plain(torch.zeros(8, 8), U, Wo))
    assert tight.gamma == pytest.approx(lipsdp(U, Wo), rel=1e-4)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_linear_networks_have_the_bound_of_their_norm(seed: int, d: int, n: int, p: int) -> None:
    net = random_network("LBEN", (d, n, p), lben.Identity(), gamma=1.0, size=1.0, spread=1.0, trained=0, seed=seed)
    w = net.weights().detach()
    norm = float(torch.linalg.matrix_norm(w.Wo @ torch.linalg.solve(torch.eye(n).double() - w.W, w.U), 2))
    eliminated = lben.tightest_bound(net)
    assert eliminated.gamma == pytest.approx(norm, rel=1e-6)
    assert norm <= (eliminated.gamma or 0.0)
    assert bool(torch.isnan(eliminated.lam).all())
    assert lben.tightest_bound(net, rigorous=True).holds
    assert norm <= (lben.tightest_bound(w).gamma or 0.0)  # the same weights, taken for slopes in [0, 1]


def test_a_linear_network_taken_for_slopes_costs() -> None:
    torch.manual_seed(0)
    U, Wo = torch.randn(8, 5).double(), torch.randn(3, 8).double()
    weights, norm = plain(torch.zeros(8, 8), U, Wo), float(torch.linalg.matrix_norm(Wo @ U, 2))
    assert lben.tightest_bound(weights, activation=lben.Identity()).gamma == pytest.approx(norm)
    assert 1.02 * norm < (lben.tightest_bound(weights).gamma or 0) < 1.65 * norm


def test_some_linear_units_are_eliminated() -> None:
    """A linear unit between two ReLU layers is the layer with their product: its bound is the bound of that."""
    torch.manual_seed(0)
    U, middle, back, Wo = (torch.randn(*s).double() for s in ((4, 3), (2, 4), (4, 2), (2, 4)))
    W = torch.zeros(10, 10, dtype=torch.float64)  # units: 4 ReLU, 2 linear, 4 ReLU
    W[4:6, :4], W[6:, 4:6] = middle, back
    inputs = torch.cat([U, torch.zeros(6, 3, dtype=torch.float64)])
    weights = plain(W, inputs, torch.cat([torch.zeros(2, 6, dtype=torch.float64), Wo], 1))
    activation = lben.PerUnit([lben.ReLU()] * 4 + [lben.Identity()] * 2 + [lben.ReLU()] * 4)
    direct = torch.zeros(8, 8, dtype=torch.float64)
    direct[4:, :4] = back @ middle
    without = plain(direct, torch.cat([U, torch.zeros(4, 3)]), torch.cat([torch.zeros(2, 4), Wo], 1))
    found = lben.tightest_bound(weights, activation=activation)
    assert found.gamma == pytest.approx(lben.tightest_bound(without).gamma, rel=1e-5)
    assert torch.isnan(found.lam).tolist() == [False] * 4 + [True] * 2 + [False] * 4
    assert lben.certify(weights, found.gamma, lam=found.lam, activation=activation, rigorous=True).holds


def test_a_skip_past_the_activation_is_not_bounded_as_a_slope() -> None:
    """y = x + relu(x) by a linear unit and a ReLU: the bound is 2, and needs the part that passes linearly."""
    W = torch.zeros(2, 2)
    activation = lben.PerUnit([lben.Identity(), lben.ReLU()])
    weights = plain(W, torch.ones(2, 1), torch.tensor([[1.0, 1.0]]))
    assert lben.tightest_bound(weights, activation=activation).gamma == pytest.approx(2, rel=1e-5)
    minus = plain(W, torch.ones(2, 1), torch.tensor([[1.0, -1.0]]))  # x - relu(x) = -relu(-x) has slope 1
    assert lben.tightest_bound(minus, activation=activation).gamma == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("U", [0.0, 2.0])
@pytest.mark.parametrize("Wo", [0.0, 3.0])
def test_a_bound_may_come_from_linear_units_alone(U: float, Wo: float) -> None:
    """y = 5 x + Wo relu(U x), with U or Wo zero or both not: |5| alone, or 5 + 6."""
    weights = plain(torch.zeros(2, 2), torch.tensor([[5.0], [U]]), torch.tensor([[1.0, Wo]]))
    tight = lben.tightest_bound(weights, activation=lben.PerUnit([lben.Identity(), lben.ReLU()]), rigorous=True)
    assert tight.gamma == pytest.approx(5 + U * Wo, rel=1e-5)


@pytest.mark.parametrize("zero", ["U", "Wo", "both"])
def test_outputs_that_do_not_depend_on_inputs(zero: str) -> None:
    torch.manual_seed(0)
    weights = lben.MON(3, 4, 2).double().weights().detach()
    if zero in ("U", "both"):
        weights = replace(weights, U=torch.zeros_like(weights.U))
    if zero in ("Wo", "both"):
        weights = replace(weights, Wo=torch.zeros_like(weights.Wo))
    tight = lben.tightest_bound(weights)
    assert tight.holds
    assert (tight.gamma or 1.0) < 1e-20


def test_the_path_from_input_to_output_may_be_broken_in_between() -> None:
    """Units that hear the input are not those that are read: every gamma > 0 holds, and a small one is found."""
    tight = lben.tightest_bound(plain(torch.zeros(2, 2), torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])))
    assert tight.holds
    assert (tight.gamma or 1.0) < 1e-6


def test_pixels_are_accounted_for() -> None:
    net = mnist_network(1.0)
    scale = float(net.normalize.std) if net.normalize is not None else math.nan
    tight, in_pixels = lben.tightest_bound(net), lben.tightest_bound(net, domain="pixels")
    assert (tight.gamma or 0) / scale == pytest.approx(in_pixels.gamma)
    assert in_pixels.domain == "pixels"
    assert lben.certify(net, domain="pixels", rigorous=True).gamma == pytest.approx(1 / scale)
    assert lben.product_bound(net, domain="pixels") == pytest.approx(lben.product_bound(net) / scale)
    assert "pixels" in str(in_pixels)


def test_a_multiplier_that_is_not_diagonal_is_refused() -> None:
    weights = lben.MON(3, 4, 2).weights().detach()
    assert lben.certify(weights, lam=torch.eye(4)).holds
    with pytest.raises(lben.InvalidInput, match="must be diagonal"):
        lben.certify(weights, lam=torch.eye(4) + 0.01)


@pytest.mark.parametrize("W12", [-4.0, 0.0, 1.5, 10.0])
@pytest.mark.parametrize("W22", [-3.0, 0.0, 0.99, 1.0, 1.01, 3.0])
def test_the_paper_s_two_by_two_example(W12: float, W22: float) -> None:
    W = torch.tensor([[0.0, W12], [0.0, W22]], dtype=torch.float64)
    found = lben.well_posed(W)
    assert found.holds == (W22 < 1)
    assert found.monotone == (W22 < 1 and 4 * (1 - W22) - W12**2 > 0)
    assert found.norm == (max(abs(W12), abs(W22)) < 1)
    assert found.perron_frobenius == (abs(W22) < 1)
    check_well_posedness(W, found)


def check_well_posedness(W: Tensor, found: lben.WellPosedness) -> None:
    """The metric, or the witness against all of them, speaks for itself."""
    if found.holds:
        M = torch.diag(found.lam) @ (torch.eye(len(W)) - W)
        assert float(torch.linalg.eigvalsh(M + M.T)[0]) > 0
        assert found.witness is None
    elif found.witness is not None:
        assert float(torch.linalg.eigvalsh(found.witness)[0]) >= -1e-12
        assert float(found.witness.diagonal().max()) == 1
        assert float(((torch.eye(len(W)) - W) @ found.witness).diagonal().max()) <= 1e-12


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.1, 3))
@settings(max_examples=200, deadline=None)
def test_well_posed_finds_a_metric_or_a_witness(seed: int, n: int, size: float) -> None:
    torch.manual_seed(seed)
    W = size * torch.randn(n, n).double() / math.sqrt(n)
    found = lben.well_posed(W)
    check_well_posedness(W, found)
    assert found.holds or found.witness is not None
    assert found.holds or not (found.monotone or found.norm or found.perron_frobenius)  # the older tests prove less
    assert found.monotonicity <= found.best_monotonicity
    assert str(found).startswith("Well-posed" if found.holds else "No diagonal metric")


@pytest.mark.parametrize("seed", range(20))
def test_a_singular_laplacian_is_not_well_posed(seed: int) -> None:
    """I - W is a graph Laplacian, so W 1 = 1 exactly and z = relu(W z) has many solutions, which rounding may hide."""
    generator = torch.Generator().manual_seed(seed)
    n = 3 + seed % 5
    edges = torch.randint(0, 4, (n, n), generator=generator).double().triu(1)
    edges = edges + edges.T
    W = torch.eye(n) - (torch.diag(edges.sum(1)) - edges)
    found = lben.well_posed(W)
    assert not found.holds
    assert not found.monotone
    for bound in (lben.tightest_bound, lben.product_bound):
        with pytest.raises(lben.NotWellPosed):
            bound(plain(W, torch.eye(n), torch.eye(n)))


@pytest.mark.parametrize("size", [1e3, 1e9, 1e12, 1e30])
def test_a_metric_is_found_at_any_scale(size: float) -> None:
    W = torch.tensor([[0.0, 0.0], [size, 0.0]], dtype=torch.float64)
    assert lben.well_posed(W).holds


@given(st.integers(0, 10**6), st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_a_change_of_units_changes_nothing(seed: int, n: int) -> None:
    """W and S W S^-1 are well-posed together, for S spread over twelve decades."""
    net = random_network("LBEN", (3, n, 2), lben.ReLU(), gamma=None, size=1.0, spread=1.0, trained=0, seed=seed)
    w = net.weights().detach()
    S = 10 ** (12 * torch.rand(n, dtype=torch.float64) - 6)
    moved = plain(S[:, None] * w.W / S, S[:, None] * w.U, w.Wo / S)
    assert lben.well_posed(moved).holds
    assert lben.tightest_bound(moved).gamma == pytest.approx(lben.tightest_bound(w).gamma, rel=1e-5)


@pytest.mark.parametrize("size", [1e2, 1e5, 1e8])
def test_a_search_that_rounding_stops_says_so(size: float) -> None:
    torch.manual_seed(0)
    a = torch.randn(20, 20).double()
    weights = plain(size * (a - a.T), torch.randn(20, 10), torch.randn(5, 20))
    tight = lben.tightest_bound(weights)
    assert tight.holds
    assert (tight.gamma or math.inf) <= lben.product_bound(weights)
    assert ("stopped by rounding" in tight.method) == (size > 1e3)


@pytest.mark.parametrize("smallest", [1e-8, 1e-11, 1e-15])
def test_the_elimination_of_nearly_singular_linear_units_is_accounted_for(smallest: float) -> None:
    generator = torch.Generator().manual_seed(1)
    Q = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    values = torch.ones(6, dtype=torch.float64)
    values[0] = smallest
    weights = plain(torch.eye(6) - Q @ torch.diag(values) @ Q.T, torch.eye(6), torch.eye(6))
    if smallest < 1e-13:
        with pytest.raises(lben.NotWellPosed, match="singular"):
            lben.tightest_bound(weights, activation=lben.Identity())
        return
    tight = lben.tightest_bound(weights, activation=lben.Identity())
    assert tight.gamma is not None
    assert lben.certify(weights, tight.gamma, lam=tight.lam, activation=lben.Identity(), rigorous=True).holds


@given(st.integers(0, 10**6), st.integers(1, 10))
@settings(max_examples=50, deadline=None)
def test_what_the_parameterization_makes_is_well_posed(seed: int, n: int) -> None:
    net = random_network("LBEN", (3, n, 2), lben.ReLU(), gamma=None, size=2.0, spread=2.0, trained=0, seed=seed)
    weights = net.weights().detach()
    assert lben.well_posed(weights).holds
    assert lben.well_posed(weights.W).holds


def test_feed_forward_networks_are_well_posed() -> None:
    """Strictly lower triangular, six layers: a metric exists, with entries that spread over ten decades."""
    torch.manual_seed(0)
    W = torch.zeros(60, 60, dtype=torch.float64)
    for k in range(5):
        W[10 * k + 10 : 10 * k + 20, 10 * k : 10 * k + 10] = 2 * torch.randn(10, 10).double()
    found = lben.well_posed(W)
    assert found.holds
    assert not found.monotone
    assert float(found.lam.max() / found.lam.min()) > 1e6


def test_unconstrained_weights_are_judged_and_bounded() -> None:
    torch.manual_seed(0)
    net = lben.UnconstrainedEN(5, 8, 3)
    assert lben.well_posed(net).holds
    tight = lben.tightest_bound(net)
    assert tight.holds
    with torch.no_grad():
        net.get_parameter("parameterization.W").add_(3 * torch.eye(8))
    assert not lben.well_posed(net).holds
    assert not lben.certify(net).holds
    assert not lben.certify(net, 5.0).holds
    for bound in (lben.tightest_bound, lben.product_bound):
        with pytest.raises(lben.NotWellPosed, match="No diagonal metric satisfies Condition W"):
            bound(net)


@pytest.mark.slow
def test_a_thousand_units() -> None:
    torch.manual_seed(0)
    for net in (lben.MON(784, 1000, 10), lben.LBEN(784, 1000, 10, gamma=1.0)):
        tight = lben.tightest_bound(net)
        assert tight.holds
        assert (tight.gamma or math.inf) <= lben.product_bound(net)
        assert not lben.certify(net, 0.99 * (tight.gamma or 0), lam=tight.lam).holds
        assert lben.lipschitz_lower_bound(net, restarts=8, steps=20).value <= (tight.gamma or 0)


@pytest.mark.parametrize("decades", [20, 60, 120, 200])
@pytest.mark.parametrize("chain", [False, True])
def test_a_metric_over_many_decades_hides_no_tighter_bound(
    decades: int, chain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the metric the search begins at, its bound is that of a general solver, in a bounded number of steps."""
    generator = torch.Generator().manual_seed(1)
    W, U, Wo = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 5), (5, 2), (2, 5)))
    lam = 10 ** torch.linspace(-decades / 2, decades / 2, 5, dtype=torch.float64)
    W = torch.tril(W, -1) * (lam / lam[:, None]) if chain else -0.5 * torch.eye(5, dtype=torch.float64)
    weights = plain(W, U, Wo, lam)
    steps = 0

    def counted(*arguments: Any) -> tuple[Tensor, float]:
        nonlocal steps
        steps += 1
        return grouped_direction(*arguments)

    monkeypatch.setattr(sys.modules[grouped_direction.__module__], "grouped_direction", counted)
    found = lben.tightest_bound(weights)
    general = lben.tightest_bound(replace(weights, lam=None), solver="scs")
    assert found.gamma == pytest.approx(general.gamma, rel=1e-3)
    assert "stopped" not in found.method
    assert 0 < steps <= 2000


def test_a_room_that_underflows_is_a_sentence() -> None:
    """U is zero, and gamma, which is then tiny, times the smallest eigenvalue is below every double."""
    lam = torch.full((2,), 1e-300, dtype=torch.float64)
    with pytest.raises(lben.InvalidInput, match="beyond the range"):
        lben.tightest_bound(plain(torch.zeros(2, 2), torch.zeros(2, 1), torch.full((1, 2), 1e21), lam))
