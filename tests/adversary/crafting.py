"""One damaged or crafted file: an LbenError, or a network equal to what the file says, and nothing else.

See one again: `python -m tests.adversary.guard tests.adversary.crafting SEED 1 FOLDER`, and FOLDER/results.json.
"""

from __future__ import annotations

import json
import struct
import traceback
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

import lben
from lben import data
from lben.disk import _digest
from tests.adversary.guard import TooLong, hurry
from tests.adversary.tally import Tally

KINDS: tuple[Callable[[], Any], ...] = (
    lambda: lben.LBEN(3, 4, 2, gamma=1.5, normalize=lben.Normalize([0.1, 0.2, 0.3], 0.5)),
    lambda: lben.LBEN(3, 4, 2, activation=lben.PerUnit([lben.ReLU(), lben.Tanh(), lben.Identity(), lben.ELU(0.5)])),
    lambda: lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Projection(lben.Polyhedron([[1.0, 0.5]], [1.0]))).double(),
    lambda: lben.LBEN(3, 4, 2, gamma=1.0, activation=lben.Blocks([(lben.Softmax(2), 2), (lben.ReLU(), 2)])),
    lambda: lben.LBEN(3, 4, 2, gamma=1.0, skip="linear"),
    lambda: lben.LBEN(3, 4, 3, gamma=2.0, skip="identity"),
    lambda: lben.MON(3, 4, 2, solver=lben.Anderson(method=lben.DouglasRachford(), backward=lben.Newton())),
    lambda: lben.UnconstrainedEN(3, 4, 2, activation=lben.LeakyReLU(0.2)),
    lambda: lben.ContractingODE(3, 4, 2, rate=0.3, gamma=2.0),
    lambda: lben.ContractingODE(3, 4, 2, rate=0.3, gain=2.0),
    lambda: lben.REN(3, 2, 4, 2, behaviour=lben.Lipschitz(1.5), initial="learned"),
    lambda: lben.REN(2, 2, 4, 2, behaviour=lben.Passive(0.1, 0.2), acyclic=True, activation=lben.Tanh()).double(),
    lambda: lben.ConvLBEN((1, 3, 3), 2, 2, gamma=1.0, pool=1, metric="channel"),
    lambda: lben.ConvLBEN((1, 3, 3), 2, 2, gamma=1.0, pool=1, metric="pixel", solver=lben.FISTA()),
    lambda: lben.ConvMON((1, 3, 3), 2, 2, pool=3, padding=0),
    lambda: lben.ConvMON((1, 3, 3), 2, 2, pool=1, activation=lben.Framed(3, 3, 2, 1, lben.Tanh())),
    lambda: lben.from_sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))),
    lambda: lben.Sequential(
        *(lben.Normalize(0.5, 0.25), nn.Linear(3, 4), nn.BatchNorm1d(4), lben.SLL(4, activation=lben.Tanh())),
        *(lben.Residual(lben.Sandwich(4, 4), nn.Sequential(nn.LeakyReLU(0.1))), lben.LBEN(4, 3, 2, gamma=1.0)),
    ),
    lambda: lben.Sequential(
        *(lben.SpaceToDepth(2), nn.Conv2d(4, 4, 3, padding=1), lben.MaxMin(), lben.ConvSLL(4, 2)),
        lben.Parallel(nn.Sequential(nn.Conv2d(4, 3, 1), nn.ReLU()), lben.ConvSandwich(4, 3)),
        *(lben.PadChannels(4), nn.AvgPool2d(2, 1), nn.Flatten()),
        lben.Sequential(nn.Linear(16, 2), nn.Softplus(1.0, 37.0)),
        in_shape=(1, 6, 6),
    ).double(),
    lambda: lben.Sequential(lben.ImageLBEN(1, 2, 1, gamma=1.0), nn.MaxPool2d(3), nn.Flatten(), in_shape=(1, 3, 3)),
)
_COLUMNS = (
    None,
    data.Columns((data.Column("a"), data.Column("b", ("x", "y"))), (data.Target("t", ("u", "v")),)),
    data.Columns(
        (data.Column("a"), data.Column("b"), data.Column("c")), (data.Target("t"), data.Target("s", None, 2.0))
    ),
)
_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 10**6, 10**30, 0.5, -0.5, 1e300, 1e-300, float("nan"), float("inf")),
    *(
        "",
        "x",
        "float32",
        "bfloat16",
        "int64",
        "ReLU",
        "LBEN",
        "Elementwise",
        "__class__",
        "Anderson",
        "pixel",
        "nn.ReLU",
    ),
    *([], [1], [None], [10**6, 10**6, 10**6], [[1, 3, 3], 10**6, 2], {}, {"name": "ReLU"}, {"name": "Identity"}),
    *({"name": "nn.Identity"}, {"name": "Residual", "body": []}, [[], []], {"name": "MaxMin", "sizes": []}),
)


_DEEP = "nested, as deeply as nobody would"  # replaced in the text, which no writer would make


def signed(description: dict[str, Any], tensors: dict[str, Tensor], levels: int) -> bytes:
    """A file with this description whose checksum is right."""
    nested = '{"name": "PerUnit", "activations": [' * levels + '{"name": "ReLU"}' + "]}" * levels
    text = json.dumps(description, sort_keys=True).replace(json.dumps(_DEEP), nested)
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return serialize(plain, metadata={"lben": text, "sha256": _digest(text, plain)})


def flipped(r: Random, content: bytes) -> bytes:
    """Some bits the other way round: in the first bytes, in the header or anywhere."""
    damaged = bytearray(content)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(r.choice((1, 1, 1, 2, 5))):
        place = r.randrange(r.choice((8, header, len(content))))
        damaged[place] ^= 1 << r.randrange(8)
    return bytes(damaged)


def rearranged(r: Random, content: bytes) -> bytes:
    """A shorter, a longer or a spliced file, or one whose header was edited as text."""
    cut, other = sorted((r.randrange(len(content)), r.randrange(len(content))))
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    if r.random() < 0.5:
        return r.choice((content[:cut], content + content[cut:], content[:cut] + content[other:], content[:0]))
    name = r.choice([key for key in header if key != "__metadata__"])
    change = r.choice(("dtype", "shape", "data_offsets", "gone", "twice", "metadata"))
    if change == "gone":
        del header[name]
    elif change == "twice":
        header["more"] = header[name]
    elif change == "metadata":
        key = r.choice(list(header["__metadata__"]))
        header["__metadata__"][key] = r.choice(
            ("", "{}", "[]", "null", "1", '{"format": 1}', header["__metadata__"][key] + " ")
        )
    else:
        junk: tuple[Any, ...] = ("F64", "BF16", "I8", "BOOL", [], [-1], [0, 0], [0, 2**62], [2**40, 2**40], [1], None)
        header[name][change] = r.choice(junk)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def places(description: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a description is."""
    inside = description.items() if isinstance(description, dict) else enumerate(description)
    found = []
    for key, value in inside:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def edited(r: Random, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Values of the description, or tensors, replaced by junk, in place."""
    known = places(description)
    for _ in range(r.choice((1, 1, 2))):
        if r.random() < 0.7:
            *path, last = r.choice(known)
            holder: Any = description
            try:
                for key in path:
                    holder = holder[key]
                if r.random() < 0.2:
                    del holder[last]
                else:
                    holder[last] = r.choice((*_JUNK, _DEEP, _DEEP))
            except (KeyError, IndexError, TypeError):
                continue  # what was there is gone already
        else:
            name = r.choice(list(tensors))
            old = tensors[name]
            values = (
                old * float("nan"),
                old * -1,
                old * 0,
                old * 1e30,
                old.reshape(-1)[:0],
                old[None].clone(),
                torch.zeros(7),
            )
            types = (torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float64)
            tensors[name] = r.choice((*values, *(old.to(dtype) for dtype in types)))


def identical(mine: dict[str, Tensor], its: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors have the same bits; NaN equals NaN."""
    return mine.keys() == its.keys() and all(
        (a.dtype, a.shape) == (its[key].dtype, its[key].shape)
        and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8), its[key].contiguous().reshape(-1).view(torch.uint8)
        )
        for key, a in mine.items()
    )


def same(net: Any, other: Any, x: Tensor) -> bool:
    """Whether two networks are the same function, made of the same numbers."""
    equal = identical(net.state_dict(), other.state_dict())
    return (
        equal and repr(net) == repr(other) and type(net) is type(other) and torch.equal(net.eval()(x), other.eval()(x))
    )


def trial(seed: int, tally: Tally, folder: Path) -> None:
    """One file, read back."""
    r = Random(f"file {seed}")
    torch.manual_seed(seed)
    net, whole, damaged = r.choice(KINDS)(), folder / "whole.safetensors", folder / "damaged.safetensors"
    known = isinstance(net, lben.EquilibriumNetwork) and (net.in_features, net.out_features) == (3, 2)
    lben.save(net, whole, columns=r.choice(_COLUMNS) if known else None)
    content = whole.read_bytes()
    how = r.choice(("flipped", "rearranged", "edited"))
    where = f"seed {seed}: {type(net).__name__}, {how}"
    if how == "edited":
        size = struct.unpack("<Q", content[:8])[0]
        description = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["lben"])
        tensors = load_file(whole)
        edited(r, description, tensors)
        where += f": {json.dumps(description)[:300]}, {[(k, str(v.dtype), list(v.shape)) for k, v in tensors.items()]}"
        try:
            damaged.write_bytes(signed(description, tensors, r.choice((3, 100, 50_000))))
        except (TypeError, RuntimeError):
            tally.count("files that could not be made")  # a type without a checksum
            return
    else:
        damaged.write_bytes((flipped if how == "flipped" else rearranged)(r, content))
    (folder / "current.txt").write_text(where)
    tally.count("files")
    try:
        hurry(True)
        loaded = lben.load(damaged)
        found = data.read_columns(damaged)
        if how != "edited" and found != data.read_columns(whole):
            tally.fail(f"{how}: other columns", where)
        tally.count("loaded")
        judge(tally, where, how, net, loaded, damaged, folder)
    except lben.LbenError:
        tally.count("refused")
    except TooLong:
        tally.fail(f"{how}: longer than allowed", where)
    except Exception as error:  # everything else is what is looked for
        own = [f for f in traceback.extract_tb(error.__traceback__) if "/lben/" in f.filename]
        at = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "outside"
        tally.fail(f"{how}: {type(error).__name__} at {at}", f"{where}: {type(error).__name__}: {str(error)[:200]}")
    finally:
        hurry(False)


def judge(tally: Tally, where: str, how: str, net: Any, loaded: Any, damaged: Path, folder: Path) -> None:
    """A damaged file that can be read is the network it was; an edited one is what it says, and saves as such."""
    x = torch.rand(2, net.in_features).to(next(chain(net.parameters(), net.buffers())).dtype)
    if how != "edited":
        if not same(net, loaded, x):
            tally.fail(f"{how}: another network", where)
        return
    again = folder / "again.safetensors"
    lben.save(loaded, again)
    descriptions = []
    for path in (damaged, again):
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
        descriptions.append(json.loads(header["__metadata__"]["lben"]))
    kept = identical(load_file(damaged), load_file(again))
    wrong = {key: value for key, value in descriptions[1].items() if descriptions[0].get(key) != value}
    if not kept or wrong:
        tally.fail(f"{how}: not what the file says", f"{where}; tensors kept: {kept}, saved again: {wrong}")
    like = next(chain(loaded.parameters(), loaded.buffers()), torch.zeros(()))
    loaded.eval()(torch.rand(2, loaded.in_features).to(like.dtype))
