"""`write_page`: networks as one file of HTML, which runs them in a browser, without lben and without any server."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lben.activations.scalar import TABLE
from lben.certify.certificate import Domain
from lben.certify.dense import DenseSubject
from lben.certify.evaluator import Evaluator
from lben.certify.lipschitz import tightest_bound
from lben.certify.radius import certified_radius
from lben.data import Columns, embedded_mnist
from lben.disk import check_target, write_bytes
from lben.dynamics.ode import Dynamics
from lben.errors import InvalidInput
from lben.networks.base import BaseNetwork
from lben.numerics.rounding import at_most
from lben.weights.dense import Weights

MOST_BYTES = 3_000_000
IMAGES_A_CLASS = 5
_SIZES = {"digits": (784, 10), "surface": (2, 1)}
_POSSIBLE = "a page is made of dense networks of 784 pixels and 10 classes, or of 2 inputs and 1 output"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=function|class|const)", re.MULTILINE)


def write_page(
    path: str | os.PathLike[str], networks: Mapping[str, BaseNetwork], *, columns: Columns | None = None
) -> None:
    """Write networks as a page of HTML that runs them in a browser, with what is proved of them.

    Networks of 784 pixels and 10 classes: draw a digit or choose one, see logits, certified radii and the solver at
    work, and attack it. Networks of 2 inputs and 1 output: their surfaces, with the proved cone of slopes at a point.
    Weights, embedded as they are, and the page's own code make one file of at most 3 MB that asks nobody for anything.

    Args:
        path: of the file, a name that ends in .html.
        networks: by the names to show; all take the same inputs.
        columns: of the table that networks of 2 inputs take, for names and units; None: there is no table.

    Raises:
        InvalidInput: for other networks, another name, or weights that are too large for a page.
        NotWellPosed: for networks of which nothing is proved.

    Examples:
        >>> nets = {"bounded": lben.LBEN(2, 4, 1, gamma=1.0), "free": lben.MON(2, 4, 1)}
        >>> lben.write_page("surfaces.html", nets)
        >>> import pathlib
        >>> "bounded" in pathlib.Path("surfaces.html").read_text()
        True
    """
    write_bytes(check_page(path), page_text(networks, columns).encode())


def check_page(path: str | os.PathLike[str]) -> Path:
    """The file, if it can be written and its name says what it is."""
    target = check_target(path)
    if Path(path).suffix.lower() != ".html":
        raise InvalidInput(f"{str(path)!r} must end in .html: that is the format that is written.")
    return target


def page_text(networks: Mapping[str, BaseNetwork], columns: Columns | None = None) -> str:
    """The whole page."""
    if not isinstance(networks, Mapping) or not networks:
        raise InvalidInput(f"A page needs networks by their names, {{name: net}}, and not {type(networks).__name__}.")
    for name in networks:
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidInput(f"The name of a network must be a text that can be shown, not {name!r}.")
    kinds = {name: _kind(name, net) for name, net in networks.items()}
    kind = next(iter(kinds.values()))
    if set(kinds.values()) != {kind}:
        shown = ", ".join(f"{name} has {net.in_features} inputs" for name, net in networks.items())
        raise InvalidInput(f"Networks side by side must take the same inputs, but {shown}.")
    weights = {name: _packed_weights(net) for name, net in networks.items()}
    _check_size(sum(len(part["data"]) for parts in weights.values() for part in parts.values() if part))
    data: dict[str, Any] = {
        "networks": [{**weights[name], **_described(name, net, kind)} for name, net in networks.items()]
    }
    if kind == "digits":
        data["images"] = _images()
    else:
        normalised = {net.normalize is not None for net in networks.values()}
        if len(normalised) > 1:
            raise InvalidInput("Networks side by side must all normalise their inputs, or none: slopes have one unit.")
        data["axes"] = _axes(columns, normalised.pop())
    text = filled(kind, ", ".join(networks), data)
    _check_size(len(text.encode()))
    return text


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise InvalidInput(
            f"The page would have {size / 1e6:.1f} MB, and a page has at most {MOST_BYTES / 1e6:g}: "
            "give fewer networks, or smaller ones."
        )


def filled(kind: str, title: str, data: dict[str, Any]) -> str:
    """A page of this kind with its style, its data and its code."""
    source = resources.files("lben.export") / "page"
    safe = json.dumps(data).replace("<", "\\u003c")  # a name must not end the script
    parts = {
        "style": f"<style>\n{(source / 'page.css').read_text('utf-8')}</style>",
        "data": f'<script type="application/json" id="data">{safe}</script>',
        "script": f'<script type="module">\n{script(f"{kind}.js")}</script>',
        "title": html.escape(title),
    }
    return re.sub(r"<!-- (\w+) -->", lambda found: parts[found[1]], (source / f"{kind}.html").read_text("utf-8"))


def script(entry: str) -> str:
    """A module of the page's folder and all that it imports, as one: each once, after what it needs itself."""
    source, done = resources.files("lben.export") / "page", dict[str, str]()

    def visit(name: str) -> None:
        if name not in done:
            text = (source / name).read_text("utf-8")
            for needed in _IMPORT.findall(text):
                visit(needed)
            done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit(entry)
    return "\n".join(done.values())


def _kind(name: str, net: BaseNetwork) -> str:
    """Which page a network is for."""
    if not isinstance(net, BaseNetwork) or isinstance(net, Dynamics):
        raise InvalidInput(f"{name} is a {type(net).__name__}: {_POSSIBLE}.")
    with torch.no_grad():
        weights = net.weights()
    if not isinstance(weights, Weights):
        raise InvalidInput(f"{name} is a {type(net).__name__}, which is not dense: {_POSSIBLE}.")
    for kind, sizes in _SIZES.items():
        if sizes == (weights.in_features, weights.out_features):
            return kind
    raise InvalidInput(f"{name} has {weights.in_features} inputs and {weights.out_features} outputs: {_POSSIBLE}.")


def _packed_weights(net: BaseNetwork) -> dict[str, Any]:
    """Those parts of a network's description that take room."""
    with torch.no_grad():
        weights = net.weights()
    assert isinstance(weights, Weights)
    parts = {key: packed(getattr(weights, key)) for key in ("W", "U", "bz", "Wo", "by")}
    return {**parts, "D": None if weights.D is None else packed(weights.D)}


def _described(name: str, net: BaseNetwork, kind: str) -> dict[str, Any]:
    """What the page knows of a network besides its weights: `Described` of page/network.js."""
    evaluator = Evaluator.of(net)
    evaluator.require_proof()
    subject = evaluator.subject
    assert isinstance(subject, DenseSubject)
    sigma, weights, normalize = subject.activation, subject.weights, subject.normalize
    if not isinstance(sigma, TABLE):
        known = ", ".join(one.__name__ for one in TABLE)
        raise InvalidInput(f"{name} has the activation {sigma!r}: a page knows {known}.")
    domain: Domain = "input" if normalize is None or kind == "surface" else "pixels"
    bound = tightest_bound(net, domain=domain).gamma
    assert bound is not None
    gamma = [[bound]]
    if kind == "digits":
        gamma = certified_radius(net, torch.zeros(1, weights.in_features), domain=domain).bounds.tolist()
    one = torch.ones(weights.in_features, dtype=torch.float64)
    return {
        "name": name,
        "about": _about(net, bound, kind),
        "activation": {"name": type(sigma).__name__, "parameter": _parameter(sigma)},
        "lam": packed(subject.diagonal),
        "mean": (0 * one if normalize is None else one * normalize.mean).tolist(),
        "std": (one if normalize is None else one * normalize.std).tolist(),
        "m": subject.monotonicity,
        "alpha": subject.operator.balanced_step(),
        "pairs": subject.reach.pairs.tolist(),
        "gamma": gamma,
        "bound": bound,
    }


def _about(net: BaseNetwork, bound: float, kind: str) -> str:
    """A network in a sentence or two."""
    gamma = getattr(net, "gamma", None)
    where = "" if net.normalize is None else " after normalisation"
    promised = "" if gamma is None else f", made for a bound of {gamma:g}{where}"
    words = f"{type(net).__name__} of {net.hidden_features} units, {type(net.activation).__name__}{promised}."
    if kind == "digits":
        words += f" Proved: logits move at most {at_most(bound, 3)} times as far as pixels do."
    return words


def _parameter(sigma: Any) -> float:
    """The slope of LeakyReLU, or a of ELU; 0 where there is none."""
    return float(next((getattr(sigma, field.name) for field in fields(sigma)), 0.0))


def _images() -> dict[str, Any]:
    """The first test images of each class, as bytes."""
    data = embedded_mnist()
    chosen = torch.cat([(data.test_labels == k).nonzero()[:IMAGES_A_CLASS, 0] for k in range(10)]).sort().values
    return {"pixels": packed(data.test_images[chosen].flatten(1)), "labels": data.test_labels[chosen].tolist()}


def _axes(columns: Columns | None, standardised: bool) -> dict[str, Any]:
    """Names of the inputs and the output, and what turns the network's output into the output's own unit."""
    unit = "for a standard deviation of the inputs" if standardised else "for a unit of the inputs"
    if columns is None:
        return {"inputs": ["x₁", "x₂"], "output": "y", "mean": 0.0, "std": 1.0, "unit": unit}
    texts = [column.name for column in columns.inputs if column.texts is not None]
    if texts:
        raise InvalidInput(f"A surface needs numbers for inputs, but the column {texts[0]!r} holds texts.")
    target = columns.targets[0]
    names = [column.name for column in columns.inputs]
    return {"inputs": names, "output": target.name, "mean": target.mean, "std": target.std, "unit": unit}


def packed(values: Tensor) -> dict[str, Any]:
    """An array as the page reads it: in single precision where that loses nothing, else in double; or as bytes."""
    array = values.detach().cpu().numpy()
    kinds = ("uint8",) if array.dtype == np.uint8 else ("float32", "float64")
    kind = next(kind for kind in kinds if np.array_equal(array.astype(kind), array))
    data = base64.b64encode(array.astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()
    return {"shape": list(array.shape), "type": kind, "data": data}
