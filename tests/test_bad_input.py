"""Every public entry point refuses bad input with one sentence, the value in it, and an exception of our own."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

import lben

NAN, INF = float("nan"), float("inf")
X = torch.randn(4, 8)
LABELS = torch.tensor([0, 1, 2, 0])


def net() -> lben.LBEN:
    return lben.LBEN(8, 6, 3, gamma=1.0)


def with_entry(value: float) -> torch.Tensor:
    x = X.clone()
    x[2, 5] = value
    return x


def weights(**changes: object) -> lben.Weights:
    return lben.Weights(**{**net().weights().detach().tensors(), **changes})  # type: ignore[arg-type]


CALLS: list[tuple[str, Callable[[], object], str]] = [
    ("NaN in x", lambda: net()(with_entry(NAN)), r"x holds nan at index \(2, 5\)"),
    ("NaN in x, eval", lambda: net().eval()(with_entry(NAN)), r"x holds nan at index \(2, 5\)"),
    ("infinity in x", lambda: net()(with_entry(INF)), r"x holds inf at index \(2, 5\)"),
    ("infinity in solve", lambda: net().solve(with_entry(-INF)), r"x holds -inf at index \(2, 5\)"),
    (
        "infinity under tanh",
        lambda: lben.MON(8, 6, 3, activation=lben.Tanh(), solver=lben.ForwardBackward())(with_entry(INF)),
        "x holds inf",
    ),
    ("NaN in bias", lambda: net()(X, bias=torch.full((6,), NAN)), "bias holds nan"),
    ("wrong features", lambda: net()(torch.randn(4, 7)), r"8 features .* shape is \(4, 7\)"),
    ("an image", lambda: net()(torch.randn(4, 1, 28, 28)), r"\(4, 1, 28, 28\)"),
    ("a scalar", lambda: net()(torch.tensor(1.0)), r"shape is \(\)"),
    ("wrong bias", lambda: net()(X, bias=torch.zeros(5)), r"6 features .* \(5,\)"),
    ("too many biases", lambda: net()(X, bias=torch.zeros(3, 6)), r"bias of shape \(3, 6\) .* \(4, 6\)"),
    ("deeper biases", lambda: net().eval()(X, bias=torch.zeros(2, 4, 6)), r"bias of shape \(2, 4, 6\)"),
    ("integers", lambda: net()(torch.ones(4, 8, dtype=torch.int64)), "not int64"),
    ("half precision", lambda: net()(X.half()), "not float16"),
    ("bfloat16", lambda: net().solve(X.bfloat16()), "not bfloat16"),
    ("complex", lambda: net()(X.to(torch.complex64)), "not complex64"),
    ("another precision", lambda: net()(X.double()), "x is float64 but the network is float32"),
    ("a list", lambda: net()([[1.0] * 8]), "not list"),
    ("a half network", lambda: net().half()(X.half()), "not float16"),
    ("gamma 0", lambda: lben.LBEN(8, 6, 3, gamma=0.0), "gamma must be a finite number above 0, not 0.0"),
    ("gamma negative", lambda: lben.LBEN(8, 6, 3, gamma=-1.0), "gamma .* not -1.0"),
    ("gamma NaN", lambda: lben.LBEN(8, 6, 3, gamma=NAN), "gamma .* not nan"),
    ("gamma infinite", lambda: lben.LBEN(8, 6, 3, gamma=INF), "gamma .* not inf"),
    ("gamma text", lambda: lben.LBEN(8, 6, 3, gamma="1"), "gamma must be a number, not '1'"),  # type: ignore[arg-type]
    ("epsilon 0", lambda: lben.LBEN(8, 6, 3, epsilon=0.0), "epsilon .* not 0.0"),
    ("epsilon negative", lambda: lben.MON(8, 6, 3, epsilon=-0.5), "epsilon .* not -0.5"),
    ("no units", lambda: lben.LBEN(8, 0, 3), "hidden_features .* not 0"),
    ("no inputs", lambda: lben.MON(0, 6, 3), "in_features .* not 0"),
    ("no outputs", lambda: lben.UnconstrainedEN(8, 6, 0), "out_features .* not 0"),
    ("half a unit", lambda: lben.LBEN(8, 6.5, 3), "hidden_features .* not 6.5"),  # type: ignore[arg-type]
    ("tolerance 0", lambda: lben.PeacemanRachford(tolerance=0), "tolerance .* not 0"),
    ("tolerance NaN", lambda: lben.Newton(tolerance=NAN), "tolerance .* not nan"),
    ("no iterations", lambda: lben.FISTA(max_iterations=0), "max_iterations .* not 0"),
    ("alpha 0", lambda: lben.PeacemanRachford(alpha=0.0), "alpha .* not 0.0"),
    ("alpha text", lambda: lben.DouglasRachford(alpha="best"), "not 'best'"),  # type: ignore[arg-type]
    ("on_failure", lambda: lben.Newton(on_failure="ignore"), "not 'ignore'"),  # type: ignore[arg-type]
    ("memory 0", lambda: lben.Anderson(memory=0), "memory .* not 0"),
    ("Anderson of FISTA", lambda: lben.Anderson(method=lben.FISTA()), r"Anderson accelerates .* not FISTA"),
    ("Anderson of Newton", lambda: lben.Anderson(method=lben.Newton()), "not Newton"),  # type: ignore[arg-type]
    ("prox alpha", lambda: lben.Tanh().prox(X, -1.0), "alpha .* not -1.0"),
    ("prox alpha of ReLU", lambda: lben.ReLU().prox(X, 0.0), "alpha .* not 0.0"),
    ("a torch activation", lambda: lben.LBEN(8, 6, 3, activation=torch.relu), "activation must be"),  # type: ignore[arg-type]
    ("torch's ReLU", lambda: setattr(net(), "activation", torch.nn.ReLU()), "activation must be .* not ReLU"),
    ("a module for a solver", lambda: setattr(net(), "solver", torch.nn.Identity()), "solver must be .* not Identity"),
    ("GELU", lambda: lben.Elementwise(torch.nn.functional.gelu), "slope -0.1289.* at x = -1.414"),
    ("ELU(2)", lambda: lben.ELU(2.0), r"ELU\(a=2.0\) has slope 2 at x = 0"),
    ("ELU(-1)", lambda: lben.ELU(-1.0), "slope -1"),
    ("LeakyReLU(1.5)", lambda: lben.LeakyReLU(1.5), "slope 1.5 at x = -1"),
    ("LeakyReLU(NaN)", lambda: lben.LeakyReLU(NAN), "slope nan"),
    ("no function", lambda: lben.Elementwise(3), "not 3"),  # type: ignore[arg-type]
    ("softmax", lambda: lben.Elementwise(lambda v: torch.softmax(v, -1)), "not elementwise"),
    ("minus the mean", lambda: lben.Elementwise(lambda v: v - v.mean(-1, keepdim=True)), "not elementwise"),
    ("hidden from autograd", lambda: lben.Elementwise(lambda v: torch.tanh(v).detach()), "autograd finds 0"),
    ("sqrt", lambda: lben.Elementwise(torch.sqrt), "not finite at x = -10000"),
    ("float32 only", lambda: lben.Elementwise(lambda v: torch.tanh(v.float())), "shape and dtype"),
    ("no tensor", lambda: lben.Elementwise(lambda v: None), "must return a tensor"),  # type: ignore[arg-type, return-value]
    ("a function that fails", lambda: lben.Elementwise(lambda v: v @ v.T @ v @ v), "fails on a float64 tensor"),
    ("learnable", lambda: lben.Elementwise(torch.nn.PReLU()), "has parameters"),
    ("ELU text", lambda: lben.ELU("x"), "a must be a number, not 'x'"),  # type: ignore[arg-type]
    ("slope None", lambda: lben.LeakyReLU(None), "slope must be a number, not None"),  # type: ignore[arg-type]
    ("PerUnit of one", lambda: lben.PerUnit(lben.ReLU()), "a list of activations"),  # type: ignore[arg-type]
    ("tiny epsilon", lambda: lben.LBEN(8, 6, 3, epsilon=1e-300), "epsilon must lie between"),
    ("tiny gamma", lambda: lben.LBEN(8, 6, 3, gamma=1e-300), "gamma must lie between"),
    ("a tuple to normalize", lambda: lben.MON(8, 6, 3, normalize=(0, 1)), r"normalize .* \(0, 1\)"),  # type: ignore[arg-type]
    ("mean text", lambda: lben.Normalize("a", 1.0), "mean .* not 'a'"),  # type: ignore[arg-type]
    ("3 means, 2 stds", lambda: lben.Normalize([0.0] * 3, [1.0] * 2), "3 entries and std 2"),
    ("assigned activation", lambda: setattr(net(), "activation", "relu"), "not 'relu'"),
    ("no weights", lambda: lben.LBEN.from_weights(None), "lben.Weights is needed, .* not NoneType"),  # type: ignore[arg-type]
    ("no W", lambda: weights(W=None), "W must be a torch.Tensor"),
    ("NaN start", lambda: net().solve(X, start=torch.full((4, 6), NAN)), "start holds nan"),
    ("another batch's solution", lambda: net().solve(X, start=net().solve(X[:3])), "start holds 3 samples"),
    ("save nowhere", lambda: lben.save(net(), "no/such/folder/net"), "'no/such/folder/net' cannot be written"),
    ("save on a folder", lambda: lben.save(net(), "."), "cannot be written"),
    ("empty PerUnit", lambda: lben.PerUnit([]), "empty"),
    ("nested PerUnit", lambda: lben.PerUnit([lben.PerUnit([lben.ReLU()])]), "single units"),  # type: ignore[list-item]
    ("5 activations", lambda: lben.MON(8, 6, 3, activation=lben.PerUnit([lben.ReLU()] * 5)), "5 activations .* 6"),
    ("PerUnit shape", lambda: lben.PerUnit([lben.ReLU()] * 5)(X), r"5 activations.*\(4, 8\)"),
    ("no solver", lambda: lben.LBEN(8, 6, 3, solver="newton"), "not 'newton'"),  # type: ignore[arg-type]
    ("assigned solver", lambda: setattr(net(), "solver", 3), "not 3"),
    ("start of another size", lambda: net().solve(X, start=torch.zeros(3, 6)), "start holds 3 samples"),
    ("start of another width", lambda: net().solve(X, start=torch.zeros(4, 5)), "start must have 6 features"),
    ("std 0", lambda: lben.Normalize(0.0, 0.0), "std .* 0"),
    ("mean NaN", lambda: lben.Normalize(NAN, 1.0), "mean holds nan"),
    ("empty std", lambda: lben.Normalize(0.0, []), "std .* empty"),
    ("5 stds", lambda: lben.MON(8, 6, 3, normalize=lben.Normalize(0.0, [1.0] * 5)), "5 values, .* each of 8 features"),
    ("bound in metres", lambda: net().bound("metres"), "'metres'"),  # type: ignore[arg-type]
    ("pixels without Normalize", lambda: net().bound("pixels"), "normalize=Normalize"),
    ("W not square", lambda: weights(W=torch.zeros(6, 5)), r"W must have shape \(6, 6\), not \(6, 5\)"),
    ("lam of another size", lambda: weights(lam=torch.ones(5)), r"lam must have shape \(6,\)"),
    ("U of another dtype", lambda: weights(U=torch.zeros(6, 8).double()), "U is torch.float64"),
    ("integer W", lambda: weights(W=torch.zeros(6, 6, dtype=torch.int32)), "not int32"),
    ("gamma of weights", lambda: weights(gamma=-2.0), "gamma .* not -2.0"),
    ("singular lam", lambda: lben.LBEN.from_weights(weights(lam=torch.zeros(6))), "smallest is 0"),
    ("no lam", lambda: lben.LBEN.from_weights(weights(lam=None)), "no metric"),
    ("NaN in W", lambda: lben.MON.from_weights(weights(W=torch.full((6, 6), NAN))), "W holds nan"),
    ("W = 2I", lambda: lben.MON.from_weights(weights(W=2 * torch.eye(6))), "is -2, and it must be positive"),
    ("certify a module", lambda: lben.certify(torch.nn.Linear(2, 2)), "not Linear"),  # type: ignore[call-overload]
    ("certify gamma 0", lambda: lben.certify(net(), 0.0), "gamma .* not 0.0"),
    ("certify in pixels", lambda: lben.certify(net(), domain="pixels"), "normalize=Normalize"),
    ("certify singular lam", lambda: lben.certify(net(), lam=torch.zeros(6)), "lam .* smallest is 0"),
    ("weights of singular lam", lambda: lben.certify(weights(lam=torch.zeros(6))), "lam .* smallest is 0"),
    ("lam NaN", lambda: lben.certify(net(), lam=torch.full((6,), NAN)), "lam holds nan"),
    ("lam of wrong size", lambda: lben.certify(net(), lam=torch.ones(5)), r"lam must have shape \(6,\), not \(5,\)"),
    ("lam a full matrix", lambda: lben.certify(net(), lam=torch.ones(6, 6)), "lam must be diagonal"),
    ("activation twice", lambda: lben.certify(net(), activation=lben.Tanh()), "a network has its own"),
    ("activation text", lambda: lben.certify(weights(), activation="relu"), "not 'relu'"),  # type: ignore[call-overload]
    ("certify NaN", lambda: lben.certify(weights(W=torch.full((6, 6), NAN))), "W holds nan"),
    ("certify huge", lambda: lben.certify(net(), lam=torch.full((6,), 1e200, dtype=torch.float64)), "overflows"),
    ("bound of W = 2I", lambda: lben.tightest_bound(weights(W=2 * torch.eye(6))), "No diagonal metric satisfies"),
    ("product of W = 2I", lambda: lben.product_bound(weights(W=2 * torch.eye(6))), "not monotone"),
    ("radius of W = 2I", lambda: lben.certified_radius(weights(W=2 * torch.eye(6)), X), "not strongly monotone"),
    ("bound by magic", lambda: lben.tightest_bound(net(), solver="magic"), "'magic'"),  # type: ignore[arg-type]
    ("well_posed vector", lambda: lben.well_posed(torch.ones(4)), r"square matrix, but its shape is \(4,\)"),
    ("well_posed NaN", lambda: lben.well_posed(torch.full((2, 2), NAN)), "W holds nan"),
    ("radius of wrong features", lambda: lben.certified_radius(net(), torch.ones(4, 7)), r"8 features .* \(4, 7\)"),
    ("radius of NaN", lambda: lben.certified_radius(net(), with_entry(NAN)), "x holds nan"),
    ("radius, label 3", lambda: lben.certified_radius(net(), X, torch.tensor([0, 1, 2, 3])), "0 and 2, but there is 3"),
    ("radius, label -1", lambda: lben.certified_radius(net(), X, torch.tensor([0, 1, 2, -1])), "there is -1"),
    ("radius, 3 labels", lambda: lben.certified_radius(net(), X, torch.tensor([0, 1, 2])), r"labels have shape \(3,\)"),
    ("radius, label 0.5", lambda: lben.certified_radius(net(), X, torch.ones(4)), "integers, not float32"),
    ("radius, one output", lambda: lben.certified_radius(lben.MON(8, 6, 1), X), "at least two outputs"),
    ("verify, one output", lambda: lben.verify(lben.MON(8, 6, 1), X, LABELS, 0.1), "ask lben.certified_interval"),
    ("radius negative", lambda: lben.certified_accuracy(net(), X, LABELS, [-1.0]), "radii must not be negative"),
    ("no radii", lambda: lben.certified_accuracy(net(), X, LABELS, []), "radii is empty"),
    ("no images", lambda: lben.certified_accuracy(net(), X[:0], LABELS[:0], [1.0]), "x is empty"),
    ("0 restarts", lambda: lben.lipschitz_lower_bound(net(), restarts=0), "restarts .* not 0"),
    ("seed 0.5", lambda: lben.lipschitz_lower_bound(net(), seed=0.5), "seed .* not 0.5"),  # type: ignore[arg-type]
    ("epsilon negative", lambda: lben.attack(net(), X.sigmoid(), LABELS, [-0.1]), "epsilons .* -0.1"),
    ("epsilon NaN", lambda: lben.attack(net(), X.sigmoid(), LABELS, [NAN]), "epsilons holds nan"),
    ("epsilon text", lambda: lben.attack(net(), X.sigmoid(), LABELS, "big"), "not 'big'"),  # type: ignore[arg-type]
    ("attack, label 7", lambda: lben.attack(net(), X.sigmoid(), LABELS + 7, [1.0]), "0 and 2, but there is 7"),
    ("attack by force", lambda: lben.attack(net(), X, LABELS, [1.0], method="force"), "'force'"),  # type: ignore[arg-type]
    ("attack outside", lambda: lben.attack(net(), X * 100, LABELS, [1.0]), r"pixels within \(0.0, 1.0\)"),
    ("attack bounds", lambda: lben.attack(net(), X, LABELS, [1.0], bounds=(1.0, 0.0)), r"\(1.0, 0.0\)"),
    ("attack bounds None", lambda: lben.attack(net(), X, LABELS, [1.0], bounds=None), "not None"),  # type: ignore[arg-type]
    ("attack seed", lambda: lben.attack(net(), X.sigmoid(), LABELS, [1.0], seed=1.5), "seed .* 1.5"),  # type: ignore[arg-type]
    ("protocol and pgd", lambda: lben.attack(net(), X, LABELS, [1.0], method="pgd", paper_protocol=True), "fgm"),
    ("protocol of None", lambda: lben.attack(net(), None, LABELS, [1.0], paper_protocol=True), "not NoneType"),  # type: ignore[arg-type]
    ("attack in pixels", lambda: lben.attack(net(), X, LABELS, [1.0], domain="pixels"), "normalize=Normalize"),
    ("2-D epsilons", lambda: lben.attack(net(), X.sigmoid(), LABELS, torch.ones(2, 2)), "list of numbers"),
    ("radius by text", lambda: lben.certified_radius(net(), X, solver="newton"), "not 'newton'"),  # type: ignore[arg-type]
    ("accuracy of None", lambda: lben.certified_accuracy(net(), X, None, [1.0]), "y is None"),  # type: ignore[arg-type]
    ("well_posed sparse", lambda: lben.well_posed(torch.eye(3).to_sparse()), "sparse"),
    ("well_posed huge", lambda: lben.well_posed(torch.full((3, 3), -1e300, dtype=torch.float64)), "1e\\+300"),
    ("attack nothing", lambda: lben.attack(net(), X[:0], LABELS[:0], [1.0]), "at least one row"),
    ("save a module", lambda: lben.save(torch.nn.Linear(2, 2), "x"), "not Linear"),  # type: ignore[arg-type]
    ("load nothing", lambda: lben.load("no/such/file"), "no/such/file is not a file"),
]


@pytest.mark.parametrize(("call", "words"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(lben.LbenError, match=words) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_errors_are_also_built_in_errors() -> None:
    assert issubclass(lben.NotConverged, RuntimeError)
    for error in (lben.InvalidInput, lben.InvalidFile, lben.NotWellPosed, lben.BoundNotMet, lben.InvalidActivation):
        assert issubclass(error, ValueError)
        assert issubclass(error, lben.LbenError)


def test_a_parameter_that_went_wrong_is_named() -> None:
    broken = net()
    with torch.no_grad():
        broken.get_parameter("parameterization.U")[1, 2] = NAN
    for training in (True, False):
        broken.train(training)
        with pytest.raises(lben.InvalidInput, match=r"U holds nan at index \(1, 2\)"):
            broken(X)


@pytest.mark.parametrize("kind", [lben.LBEN, lben.MON, lben.UnconstrainedEN])
@pytest.mark.parametrize("value", [NAN, INF, 1e38])
@pytest.mark.filterwarnings("ignore::lben.ConvergenceWarning")
def test_a_hidden_weight_that_went_wrong_is_named(kind: type, value: float) -> None:
    broken = kind(8, 6, 3)
    for name in ("V", "W"):
        if hasattr(broken.parameterization, name):
            getattr(broken.parameterization, name).data[0, 0] = value
    broken.parameterization.bz.data[0] = 50.0  # so that z = 0 is no equilibrium of the first unit
    for training in (True, False):
        broken.train(training)
        with pytest.raises(lben.LbenError):
            broken(X)


def test_errors_survive_pickling() -> None:
    for error in (lben.NotConverged("a", 1.0), lben.NotWellPosed("b", 2.0), lben.InvalidInput("c")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
    assert pickle.loads(pickle.dumps(lben.NotConverged("a", 1.0))).residual == 1.0


@pytest.mark.parametrize("size", [10**6, 10**30, 10**400])
def test_sizes_that_nobody_can_mean_are_refused_before_anything_is_made(size: int) -> None:
    for make in (
        lambda: lben.LBEN(4, size, 3, gamma=1.0),
        lambda: lben.MON(4, size, 3),
        lambda: lben.UnconstrainedEN(4, size, 3),
        lambda: lben.ContractingODE(4, size, 3, rate=0.5),
        lambda: lben.ConvLBEN((1, 4, 4), size, 3),
        lambda: lben.ConvMON((1, 4, 4), 2, 3, padding=2 * size),
    ):
        with pytest.raises(lben.InvalidInput, match="entries, more than"):
            make()


def test_an_activation_of_torch_is_answered_by_that_of_lben() -> None:
    with pytest.raises(lben.InvalidInput, match=r"use lben\.ELU\(\), not ELU\(alpha=1\.0\) of torch\.nn"):
        lben.LBEN(4, 5, 3, activation=torch.nn.ELU())  # type: ignore[arg-type]


def test_a_network_without_numbers_is_refused() -> None:
    with torch.device("meta"):
        nets = (lben.LBEN(16, 5, 3, gamma=1.0), lben.ConvLBEN((1, 4, 4), 2, 3))
    assert all("LBEN" in repr(net) for net in nets)
    for net in nets:
        with pytest.raises(lben.InvalidInput, match="meta"):
            net(torch.zeros(2, 16, device="meta"))
        with pytest.raises(lben.InvalidInput, match="meta"):
            net.bound()
