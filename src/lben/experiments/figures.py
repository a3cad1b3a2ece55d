"""The figures of a study, drawn with matplotlib: colours that all eyes tell apart, and other marks for other models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from lben.checks import need
from lben.disk import make_folder, write_bytes
from lben.experiments.layers import Stacked
from lben.experiments.regions import Regions
from lben.experiments.running import Outcome
from lben.experiments.study import Result

_STYLE = {
    "font.size": 10,
    "axes.grid": True,
    "grid.color": "0.88",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lben",
    "legend.frameon": False,
}
_BOUNDED = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#c8b800")
_STACKED = {
    "plain": ("#666666", "X"),
    "orthogonium": ("#d94801", "D"),
    "SLL": ("#414487", "o"),
    "sandwich": ("#2a788e", "s"),
    "equilibrium": ("#22a884", "^"),
    "mix": ("#440154", "P"),
}
_MARGIN = ("#7f2704", "#d94801", "#f16913", "#fdae6b")


@dataclass(frozen=True)
class Look:
    """How a model is drawn everywhere."""

    colour: str
    marker: str
    line: str = "-"


def looks(results: Sequence[Outcome]) -> dict[str, Look]:
    """A look for every row, by its family: networks with a bound by construction are round, from purple to yellow."""
    bounded, margin = cycle(_BOUNDED), cycle(_MARGIN)
    chosen: dict[str, Look] = {}
    for result in results:
        name, model = result.row["name"], result.row["model"]
        if model in _STACKED:
            chosen[name] = Look(*_STACKED[model]) if name == model else Look("#b5367a", "*", "--")
        elif name == "MON":
            chosen[name] = Look("#000000", "s", "--")
        elif name == "UNC":
            chosen[name] = Look("#cc79a7", "^", "--")
        elif model == "LipschitzMarginTraining":
            chosen[name] = Look(next(margin), "D", "-.")
        elif model == "LipNN":
            chosen[name] = Look("#009e73", "P", "-.")
        elif model == "Plain":
            chosen[name] = Look("#666666", "X", ":")
        else:
            chosen[name] = Look(next(bounded), "o")
    return chosen


def draw_error_against_lipschitz(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figure `mnist` (a): the error against what is known of the Lipschitz constant, from below and from above."""
    with _figure(8.0, 4.6) as figure:
        axes = figure.subplots()
        for result in results:
            look, measured, published = looks(results)[result.row["name"]], result.measured, result.published
            error = 100 * measured.error
            if measured.tight is not None:
                axes.plot([measured.lower, measured.tight], [error, error], color=look.colour, linewidth=2.5)
            if measured.upper is not None:
                axes.axvline(measured.upper, color=look.colour, linestyle="--", linewidth=1)
            axes.plot(
                measured.lower, error, look.marker, color=look.colour, markersize=8, label=result.row["name"], zorder=3
            )
            if published.lower is not None:
                axes.plot(
                    published.lower, published.error, look.marker, color=look.colour, markersize=8, fillstyle="none"
                )
        axes.set_xscale("log")
        _log_ticks(axes.xaxis)
        axes.set_xlabel("Lipschitz constant from normalised image to logits")
        axes.set_ylabel("test error, %")
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
        _legend(figure, axes)
        return _write(figure, folder, "error-against-lipschitz")


def draw_attacks(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figure `mnist` (b): the error under attack against its size, and above it what is proved."""
    pixel = results[0].measured.std
    with _figure(11.0, 4.8) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, kind, title in zip(panels, ("single_step", "multi_step"), ("one step", "20 steps"), strict=True):
            for result in results:
                look, measured = looks(results)[result.row["name"]], result.measured
                errors = [100 * error for error in getattr(measured, kind)]
                axes.plot(
                    measured.sizes, errors, look.line, marker=look.marker, markersize=4, color=look.colour,
                    label=result.row["name"],
                )  # fmt: skip
                if proved := _proved(result):
                    axes.plot(measured.sizes, proved, ":", color=look.colour, linewidth=1.5)
            axes.set_title(title)
            axes.set_xlabel("size of the attack, after normalisation")
            top = axes.secondary_xaxis("top", functions=(lambda s: s * pixel, lambda s: s / pixel))
            top.set_xlabel("in pixels of [0, 1]", fontsize=9)
        panels[0].set_ylabel("test error, %")
        panels[0].set_ylim(0, 100)
        if any(_proved(result) for result in results):
            panels[1].plot([], [], ":", color="0.3", linewidth=1.5, label="at most, proved")
        _legend(figure, panels[1])
        return _write(figure, folder, "attacks")


def _proved(result: Result) -> list[float]:
    """What no attack can exceed, in per cent; empty for large bounds, where it would only clutter the figure."""
    measured = result.measured
    if measured.certified_error is None or measured.upper is None or measured.upper > 1:
        return []
    return [100 * error for error in measured.certified_error]


def draw_training(results: Sequence[Outcome], folder: Path, *, scale: Literal["log", "linear"] = "log") -> list[Path]:
    """Figure `mnist_training`: training and test error by epoch; on a linear scale, on the same one."""
    with _figure(11.0, 4.4) as figure:
        panels = figure.subplots(1, 2, sharey=scale == "linear")
        for axes, kind, title in zip(panels, ("train_error", "test_error"), ("training", "test"), strict=True):
            for result in results:
                look = looks(results)[result.row["name"]]
                epochs = [row["epoch"] for row in result.history]
                errors = [max(100 * row[kind], 1e-3) for row in result.history]
                axes.plot(epochs, errors, look.line, color=look.colour, linewidth=1.6, label=result.row["name"])
            if scale == "log":
                axes.set_yscale("log")
                _log_ticks(axes.yaxis)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_xlabel("epoch")
            axes.set_ylabel(f"{title} error, %")
        _legend(figure, panels[1])
        return _write(figure, folder, "training")


def draw_certified(results: Sequence[Stacked], folder: Path) -> list[Path]:
    """What is proved of each kind of layer, and what an attack leaves, against the size of the change."""
    with _figure(8.0, 4.6) as figure:
        axes = figure.subplots()
        for result in results:
            look, proved = looks(results)[result.row["name"]], result.proved
            shares, style = [1 - proved.error, *(proved.certified or ())], {"marker": look.marker, "color": look.colour}
            certified = [100 * share for share in shares]
            sizes = [0.0, *proved.radii][: len(certified)]
            axes.plot(sizes, certified, look.line, label=result.row["name"], **style)
            attacked = [100 * share for share in proved.attacked]
            axes.plot(proved.radii, attacked, fillstyle="none", linestyle="none", **style)
        axes.plot([], [], "-o", color="0.3", label="proved")
        axes.plot([], [], "o", color="0.3", fillstyle="none", label="left by an attack")
        radii = results[0].proved.radii
        axes.set_xticks([0.0, *radii], ["0", *(f"{255 * radius:.0f}/255" for radius in radii)])
        axes.set_xlabel("size of the change, l2, in pixels of [0, 1]")
        axes.set_ylabel("accuracy on test images, %")
        low = 10 * max(0, min(9, math.floor(axes.dataLim.ymin / 10)))
        axes.set_ylim(low, max(low + 10, min(100, 10 * math.ceil(axes.dataLim.ymax / 10))))
        _legend(figure, axes)
        return _write(figure, folder, "certified")


def draw_regions(found: Regions, folder: Path) -> list[Path]:
    """Figure `two_by_two`: where each condition proves that W = [[0, W12], [0, W22]] has one equilibrium."""
    patches = need("matplotlib.patches", "A figure", extra="experiments")
    with _figure(7.6, 4.6) as figure:
        axes = figure.subplots()
        x, y = found.W12.numpy(), found.W22.numpy()
        axes.set_facecolor("#222222")
        fields = (
            ("some diagonal metric (ours)", found.diagonal_metric, "#dbe9f6"),
            ("Λ = I (monotone operator networks)", found.monotone, "#6baed6"),
        )
        for _, where, colour in fields:
            axes.contourf(x, y, where.numpy().astype(float), levels=[0.5, 1.5], colors=[colour])
        lines = (
            ("Perron–Frobenius: ρ(|W|) < 1", found.perron_frobenius, "#d55e00", "--"),
            ("norm: ‖W‖∞ < 1", found.norm, "#000000", "-"),
        )
        for _, where, colour, line in lines:
            axes.contour(x, y, where.numpy().astype(float), levels=[0.5], colors=[colour], linestyles=[line])
        handles = [patches.Patch(facecolor=colour, edgecolor="0.5", label=name) for name, _, colour in fields]
        handles.append(patches.Patch(facecolor="#222222", label="no diagonal metric"))
        handles += [axes.plot([], [], line, color=colour, label=name)[0] for name, _, colour, line in lines]
        axes.set_xlabel("$W_{12}$")
        axes.set_ylabel("$W_{22}$")
        axes.set_aspect("equal")
        axes.grid(visible=False)
        figure.legend(handles=handles, loc="outside right upper")
        figure.draw_without_rendering()  # the layout sees the square only once it is laid out
        return _write(figure, folder, "regions")


@contextmanager
def _figure(width: float, height: float) -> Iterator[Any]:
    """A figure in our style, which holds while it is drawn and written, and no longer."""
    matplotlib = need("matplotlib", "A figure", extra="experiments")
    with matplotlib.rc_context(_STYLE):
        yield need("matplotlib.figure", "A figure", extra="experiments").Figure((width, height), layout="constrained")


def _log_ticks(axis: Any) -> None:
    """Plain numbers, at 1, 2 and 5 of every decade where the decades are few."""
    ticker = need("matplotlib.ticker", "A figure", extra="experiments")
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def _legend(figure: Any, axes: Any) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")


def _write(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as a vector and as a raster image; the same figure gives the same vector file."""
    make_folder(folder)
    options: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 150}}
    for kind, chosen in options.items():
        picture = BytesIO()
        figure.savefig(picture, format=kind, **chosen)
        write_bytes(folder / f"{name}.{kind}", picture.getvalue())
    return [folder / f"{name}.{kind}" for kind in options]
