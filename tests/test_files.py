"""Models on disk: the same network comes back, and nothing else ever does."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import prune

import lben
from lben import disk, files
from lben.described import stored_tensors
from lben.parameterize.dense import LipschitzBounded

NETWORKS: list[lben.EquilibriumNetwork] = [
    lben.LBEN(8, 6, 3, gamma=0.5, epsilon=0.25, normalize=lben.Normalize(0.1307, 0.3081)),
    lben.LBEN(8, 6, 3, activation=lben.LeakyReLU(0.2), solver=lben.Newton(tolerance=1e-6)),
    lben.MON(8, 6, 3, activation=lben.ELU(0.5), solver=lben.FISTA(alpha=0.02, on_failure="warn")),
    lben.UnconstrainedEN(8, 6, 3, solver=lben.Anderson(method=lben.DouglasRachford(alpha=0.5), memory=3)),
    lben.LBEN(8, 4, 3, gamma=2.0, activation=lben.PerUnit([lben.ReLU(), lben.Tanh()] * 2)).double(),
    lben.MON(2, 4, 3, normalize=lben.Normalize([0.1, 0.2], [1.0, 2.0])),
]


@pytest.mark.parametrize("net", NETWORKS, ids=lambda net: repr(net.activation))
def test_what_is_saved_comes_back(net: lben.EquilibriumNetwork, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    lben.save(net, path)
    again = lben.load(path)
    assert repr(again) == repr(net)
    assert type(again) is type(net)
    assert again.solver == net.solver
    assert again.activation == net.activation
    for (name, first), (other, second) in zip(net.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(first, second)
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    lben.save(NETWORKS[0], path)
    return path


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    for length in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(lben.InvalidFile, match=r"net\.safetensors"):
            lben.load(path)


def test_every_tampering_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    for where in range(40, len(content), max(1, len(content) // 150)):
        changed = bytearray(content)
        changed[where] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(lben.InvalidFile):
            lben.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with pytest.raises(lben.InvalidFile, match="is not a file"):
        lben.load(path)
    path.write_text("hello")
    with pytest.raises(lben.InvalidFile, match="not a whole safetensors file"):
        lben.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(lben.InvalidFile):
        lben.load(path)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(lben.InvalidFile, match="not written by lben"):
        lben.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "has format 99"),
        ({"network": "os.system"}, "does not describe a network"),
        ({"activation": {"name": "GELU"}}, "GELU"),
        ({"activation": {"name": "Elementwise", "fn": "print"}}, "Elementwise"),
        ({"activation": {"name": "ELU", "a": 5}}, "slope 5"),
        ({"solver": {"name": "Solver"}}, "Solver"),
        ({"sizes": [8, 7, 3]}, "does not describe a network"),
        ({"gamma": -1}, "gamma"),
        ({"gamma": "1"}, "gamma must be a number"),
        ({"dtype": "x"}, "dtype must be float32 or float64, not 'x'"),
        ({"normalize": [1]}, "normalize must have the two sizes"),
        ({"normalize": None}, "has parameterization"),
        ({"more": 1}, "LBEN must have"),
    ],
)
def test_a_consistent_lie_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    """A file whose checksum was made to fit, but whose description does not make a network."""
    path = tmp_path / "net.safetensors"
    craft(path, json.dumps({**described(NETWORKS[0]), **change}), stored_tensors(NETWORKS[0]))
    with pytest.raises(lben.InvalidFile, match=words):
        lben.load(path)


KINDS: list[lben.EquilibriumNetwork | lben.ConvLBEN | lben.ConvMON] = [
    *NETWORKS,
    lben.ContractingODE(3, 4, 2, rate=0.3, gamma=2.0),
    lben.LBEN(3, 5, 2, activation=lben.Blocks([(lben.ReLU(), 3), (lben.Softmax(2), 2)])),
    lben.LBEN(3, 4, 2, activation=lben.Projection(lben.Box([0.0, -1.0], [math.inf, 1.0]))),
    lben.ConvLBEN((1, 4, 4), 2, 3, gamma=1.0, pool=2, metric="pixel", padding=1),
    lben.ConvMON((2, 4, 4), 2, 3),
    lben.ConvMON((2, 4, 4), 2, 3, activation=lben.Framed(4, 4, 2, activation=lben.Tanh())),
    lben.from_sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))),
]
JUNK: list[Any] = [None, True, -1, 0, 1, 10**6, 10**400, 0.5, math.nan, math.inf, "x", "float16", [], [1], [1, 2, 3]]
JUNK += [{}, {"name": "ReLU"}, {"name": "Softmax", "size": 10**12}]
JUNK += [{"name": "Blocks", "parts": [[{"name": "ReLU"}, 10**9]]}]


def craft(path: Path, text: str, tensors: dict[str, Tensor]) -> None:
    own = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(own, path, metadata={"lben": text, "sha256": disk._digest(text, own)})


def described(net: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"format": disk.FORMAT, **files._describe(net)}
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a description."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from places(part, (*path, key))


def replaced(whole: Any, path: tuple[Any, ...], part: Any) -> Any:
    if not path:
        return part
    whole = copy.deepcopy(whole)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = part
    return whole


def loaded_or_refused(path: Path) -> Any:
    """A network that can be saved again, or nothing; any error but InvalidFile is one."""
    try:
        net = lben.load(path)
    except lben.InvalidFile:
        return None
    lben.save(net, path)
    return net


@pytest.mark.sampled(3)
@pytest.mark.parametrize("net", KINDS, ids=lambda net: type(net).__name__)
def test_any_field_may_hold_anything(net: Any, tmp_path: Path) -> None:
    """Whatever stands in any field, or any tensor, with a checksum that fits: a whole network or InvalidFile."""
    path, whole, tensors, draw = tmp_path / "net", described(net), stored_tensors(net), random.Random(0)
    for place in places(whole):
        for junk in draw.sample(JUNK, 4):
            craft(path, json.dumps(replaced(whole, place, junk)), tensors)
            loaded_or_refused(path)
    text = json.dumps(whole)
    for name, tensor in tensors.items():
        for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
            craft(path, text, {**tensors, name: tensor.to(dtype)})
            assert loaded_or_refused(path) is None
        for shape in ((), (0,), (7,), (2, 3), (1, 1, 1, 1)):
            craft(path, text, {**tensors, name: torch.full(shape, 0.1, dtype=tensor.dtype)})
            assert (loaded_or_refused(path) is not None) == (shape == tensor.shape)
        for number in (math.nan, math.inf):
            craft(path, text, {**tensors, name: torch.full_like(tensor, number)})
            assert loaded_or_refused(path) is None
        craft(path, text, {other: t for other, t in tensors.items() if other != name})
        assert loaded_or_refused(path) is None


@pytest.mark.parametrize("net", KINDS, ids=lambda net: type(net).__name__)
def test_damage_anywhere_is_found(net: Any, tmp_path: Path) -> None:
    """Flipped bits and foreign bytes at any place: the very network, or InvalidFile."""
    path, draw = tmp_path / "net", random.Random(0)
    lben.save(net, path)
    content = path.read_bytes()
    for _ in range(150):
        changed, where = bytearray(content), draw.randrange(len(content))
        if draw.random() < 0.5:
            changed[where] ^= 1 << draw.randrange(8)
        else:
            changed[where : where + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
        path.write_bytes(bytes(changed))
        again = loaded_or_refused(path)
        if again is not None:
            assert repr(again) == repr(net)
            assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("brackets", [('{"a":', "}"), ("[", "]"), ('{"name": "Blocks", "parts": [[', ", 6]]}")])
@pytest.mark.parametrize("depth", [30, 3000, 200_000])
def test_deep_descriptions_are_refused(brackets: tuple[str, str], depth: int, tmp_path: Path) -> None:
    nested = brackets[0] * depth + '{"name": "ReLU"}' + brackets[1] * depth
    text = json.dumps({**described(NETWORKS[0]), "activation": "here"}).replace('"here"', nested)
    craft(tmp_path / "net", text, stored_tensors(NETWORKS[0]))
    with pytest.raises(lben.InvalidFile, match="does not describe a network"):
        lben.load(tmp_path / "net")


def test_sizes_are_those_of_the_tensors_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file that claims a million units makes none of them."""
    tensors = stored_tensors(NETWORKS[0])
    shapes = {"U": (9999, 8), "bz": (9999,), "Wo": (3, 9999)}
    tensors |= {f"parameterization.{name}": torch.zeros(shape) for name, shape in shapes.items()}
    craft(tmp_path / "net", json.dumps({**described(NETWORKS[0]), "sizes": [8, 9999, 3]}), tensors)
    monkeypatch.setattr("torch.random.fork_rng", lambda **_: pytest.fail("the network was made"))
    with pytest.raises(lben.InvalidFile, match=r"parameterization.* must have shape \(9999"):
        lben.load(tmp_path / "net")


@pytest.mark.parametrize(("name", "number"), [("normalize.std", -1.0), ("parameterization.epsilon", 0.0)])
def test_numbers_without_meaning_are_neither_read_nor_written(name: str, number: float, tmp_path: Path) -> None:
    tensors = stored_tensors(NETWORKS[0])
    tensors[name] = torch.full_like(tensors[name], number)
    craft(tmp_path / "crafted", json.dumps(described(NETWORKS[0])), tensors)
    with pytest.raises(lben.InvalidFile, match=f"{name.split('.')[1]} must be above 0"):
        lben.load(tmp_path / "crafted")
    net = copy.deepcopy(NETWORKS[0])
    dict(net.named_buffers())[name].fill_(number)
    with pytest.raises(lben.InvalidInput, match=f"{name.split('.')[1]} must be above 0"):
        lben.save(net, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_what_load_would_refuse_is_not_saved(tmp_path: Path) -> None:
    broken, pruned, half = (copy.deepcopy(NETWORKS[0]) for _ in range(3))
    with torch.no_grad():
        broken.parameterization.U[0, 0] = torch.nan
    prune.l1_unstructured(pruned.parameterization, "V", amount=2)
    for net, words in ((broken, "U holds nan"), (pruned, "V_mask"), (half.half(), "float16")):
        with pytest.raises(lben.InvalidInput, match=f"cannot be saved as it is.*{words}"):
            lben.save(net, tmp_path / "net")

    class Mine(lben.Newton):
        pass

    with pytest.raises(lben.InvalidInput, match=r"writes the solvers of lben"):
        lben.save(lben.LBEN(2, 2, 2, solver=Mine()), tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_a_network_as_users_make_it_is_saved(tmp_path: Path) -> None:
    """Numbers of numpy among its options, one tensor in two places, and an extra state that the file need not hold."""

    class State(LipschitzBounded):
        def get_extra_state(self) -> Tensor:
            return torch.tensor([self.gamma or 0.0], dtype=torch.float64)

        def set_extra_state(self, state: Tensor) -> None: ...

    net = lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.LeakyReLU(np.float32(0.25)))
    net.parameterization.__class__ = State
    net.parameterization.N = net.parameterization.V
    assert "parameterization._extra_state" in net.state_dict()
    state = torch.get_rng_state()
    lben.save(net, tmp_path / "net")
    again = lben.load(tmp_path / "net")
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(again, lben.LBEN)
    assert again.activation == net.activation
    assert torch.equal(again.weights().W, net.weights().W)


@pytest.mark.parametrize("path", [3, None, "a\0b", b"net"])
def test_what_is_no_path_is_refused(path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lben.InvalidFile):
        lben.load(path)  # type: ignore[arg-type]


def test_others_may_read_what_is_saved(tmp_path: Path) -> None:
    """The file has the mode of any new file, not that of a private temporary one."""
    other = tmp_path / "other"
    other.touch()
    assert saved(tmp_path).stat().st_mode == other.stat().st_mode


def test_subclasses_are_not_saved_as_their_parents(tmp_path: Path) -> None:
    class Mine(lben.LBEN):
        pass

    class Other(lben.ReLU):
        pass

    for net in (Mine(8, 6, 3), lben.LBEN(8, 6, 3, activation=Other())):
        with pytest.raises(lben.InvalidInput, match=r"lben\.save writes"):
            lben.save(net, tmp_path / "net")


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(lben.InvalidInput, match="disk full"):
        lben.save(NETWORKS[1], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def test_code_is_never_saved(tmp_path: Path) -> None:
    net = lben.LBEN(8, 6, 3, activation=lben.Elementwise(torch.tanh))
    with pytest.raises(lben.InvalidInput, match="Python code"):
        lben.save(net, tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())
