"""The report of a run: what it says of the paper's rows, or of another study, as pages with the figures beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lben.attacks import PAPER_IMAGES
from lben.disk import make_folder
from lben.experiments import figures, layers_report
from lben.experiments.layers import STUDY, Stacked
from lben.experiments.page import NONE, Picture, Table, percent, write_pages
from lben.experiments.regions import read_regions
from lben.experiments.running import Run, read_description, read_results
from lben.experiments.study import Result, read_run


def write_report(folder: str | Path) -> list[Path]:
    """Write `report/index.html`, `report/index.md` and the figures of a run, finished or not; returns the pages."""
    run, target = read_description(folder), Path(folder) / "report"
    make_folder(target)
    if run.study == STUDY:
        stacked = read_results(folder, run, Stacked)
        facts, tables = layers_report.facts(run, stacked), layers_report.tables(stacked)
        pictures = layers_report.pictures(stacked, target / "figures")
        done = len(stacked)
    else:
        _, results = read_run(folder)
        facts, done = _facts(run, results), len(results)
        tables = [_beside_the_paper(results), _beyond_the_paper(results), _equilibria(results)] if results else []
        tables += [table for table in (_around(results),) if table is not None]
        pictures = _pictures(Path(folder), results, target)
    missing = len(run.rows) - done
    if missing:
        facts.insert(0, f"{missing} of {len(run.rows)} rows are not finished: the command goes on with them.")
    return write_pages(target, run.title, facts, tables, pictures)


def _facts(run: Run, results: Sequence[Result]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    minutes = sum(result.seconds for result in results) / 60
    facts = [
        f"Made by `{run.command}` on {run.data}; begun {run.began}; {versions}; the rows took "
        f"{minutes:.0f} minutes in all, one core each."
    ]
    if not results:
        return facts
    models = {result.row["model"] for result in results}
    certified = {result.measured.certified_images for result in results}
    facts += [
        "Bounds are from normalised images to logits, in the l2 norm; γ_up is what was prescribed and proved, γ_low "
        "what two inputs show. The sizes of attacks are measured there too, and certified radii in pixels of [0, 1]: "
        f"one pixel is {1 / results[0].measured.std:.2f} normalised units.",
        f"Attacks beside the paper's follow its protocol: one step, on {_last(results)}"
        + (", which are easier than the rest" if "Equilibrium" in models and not _few(results) else "")
        + f". Those of 20 steps, and those in the figure, are on the first {_counts(results)}: fewer for wide networks "
        f"and for those without a proof, which are slow. Certified accuracies are on the first {_listed(certified)}, "
        "all else on all test images.",
        "The paper's tolerance of 1e-2 bounds the relative change of an iterate, ours the residual, which is stricter; "
        "evaluation is at 1e-4. An asterisk marks what was observed and cannot be proved, for want of a metric. The "
        "cost of an epoch is that of training steps that took turns with a plain network's.",
    ]
    if "LipschitzMarginTraining" in models:
        facts.append(
            "LMT's c counts grey levels of 255, since the paper does not say what it counts. Lip-NN sees 14 × 14 "
            "pixels; beside the figures that its authors report are ours for the same bound."
        )
    if "Convolutional" in models:
        facts.append(
            "The networks have one convolutional layer, with one entry of the metric a channel, where the paper's has "
            "one a pixel and no exact resolvent. Errors by epoch are on "
            + ("all test images." if _few(results) else "the first 2,000 test images.")
        )
    return facts


def _beside_the_paper(results: Sequence[Result]) -> Table:
    both = ["paper", "ours"]
    groups = [
        ("", ["model"]),
        ("error, %", both),
        ("attacked at 5, %", both),
        ("attacked at 10, %", both),
        ("γ_up", both),
        ("γ_low", both),
        ("γ_low / γ_up, %", both),
    ]
    rows = []
    for result in results:
        m, p = result.measured, result.published
        rows.append(
            [
                result.row["name"],
                _number(p.error, 2),
                percent(m.error),
                _number(p.attacked_5, 1),
                percent(m.paper_attacked[0], 1),
                _number(p.attacked_10, 1),
                percent(m.paper_attacked[1], 1),
                _significant(p.upper),
                _significant(m.upper),
                _significant(p.lower),
                _significant(m.lower) + "*" * (not m.lower_proved),
                _share(p.lower, p.upper),
                _share(m.lower, m.upper),
            ]
        )
    return Table("Beside the paper", groups, rows)


def _beyond_the_paper(results: Sequence[Result]) -> Table:
    radii = results[0].measured.radii
    groups = [
        ("", ["model"]),
        ("provable bound", ["tightest", "γ_low / it, %"]),
        ("certified accuracy, %, at pixels", [f"{radius:.3g}" for radius in radii]),
        ("20-step attack, error, %", ["at 5", "at 10"]),
        ("an epoch", ["× plain"]),
    ]
    rows = []
    for result in results:
        m = result.measured
        certified = [NONE] * len(radii) if m.certified is None else [percent(share) for share in m.certified]
        attacked = [percent(m.multi_step[m.sizes.index(size)], 1) for size in (5.0, 10.0)]
        cost = [f"{result.relative_seconds:.1f}"]
        tight = [_significant(m.tight), _share(m.lower, m.tight)]
        rows.append([result.row["name"], *tight, *certified, *attacked, *cost])
    return Table("What the paper does not have", groups, rows)


def _around(results: Sequence[Result]) -> Table | None:
    """Certified accuracy, global and local, and attacked; None where nobody asked for local bounds."""
    found = [(result.row["name"], result.measured.around) for result in results]
    known = [(name, one) for name, one in found if one is not None]
    if not known:
        return None
    first = known[0][1]
    three, two = ["global", "local", "attacked"], ["global", "local"]
    groups = [
        ("", ["model"]),
        *((f"accuracy, %, at {radius:.3g} pixels", three) for radius in first.radii),
        *((f"ℓ∞, at {size:.3g}", two) for size in first.corners),
        ("widest gap", ["closed, %"]),
    ]
    rows = []
    for name, one in known:
        cells = [percent(s) for at in zip(one.everywhere, one.around, one.attacked, strict=True) for s in at]
        cells += [percent(s) for at in zip(one.corners_everywhere, one.corners_around, strict=True) for s in at]
        rows.append([name, *cells, f"{100 * one.closed:.0f}"])
    return Table(f"Around each of {_listed({one.images for _, one in known})} test images", groups, rows)


def _equilibria(results: Sequence[Result]) -> Table:
    groups = [
        ("", ["model"]),
        ("automatic step", ["α", "iterations"]),
        ("step by halving", ["α", "iterations", "solves to find it"]),
        ("without equilibrium", ["training batches", "test images"]),
    ]
    rows = []
    for result in results:
        if result.row["model"] not in ("Equilibrium", "Convolutional"):
            continue
        steps = result.measured.steps
        automatic, halving = ([NONE] * 2, [NONE] * 3)
        if steps is not None:
            automatic = [f"{steps['automatic']['alpha']:.3g}", str(steps["automatic"]["iterations"])]
            halving = [
                f"{steps['halving']['alpha']:.3g}",
                *(str(steps["halving"][k]) for k in ("iterations", "solves")),
            ]
        lost = [str(result.lost_batches), str(result.measured.unanswered)]
        rows.append([result.row["name"], *automatic, *halving, *lost])
    return Table("Equilibria: Peaceman–Rachford to a residual of 1e-4 on a batch of test images", groups, rows)


def _pictures(folder: Path, results: Sequence[Result], target: Path) -> list[Picture]:
    """Draw what there is to draw, once all of it is read."""
    place, file = target / "figures", folder / "regions.json"
    regions = read_regions(file) if file.is_file() else None
    pictures = []
    full = [result for result in results if result.row["model"] != "LipNN"]
    if results:
        pictures = [
            Picture(
                figures.draw_error_against_lipschitz(results, place)[0],
                "Test error against Lipschitz constant",
                "Test error against the Lipschitz constant. Filled marks: the lower bound observed, the bar beside it "
                "reaching to the tightest provable bound; hollow marks: the paper's; dashed lines: certified γ.",
            ),
            Picture(
                figures.draw_attacks(full, place)[0],
                "Test error under attack against the size of the attack",
                f"Test error under attack on {_counts(results)} test images, by one step of the fast gradient (left) "
                "and by 20 steps of projected gradient (right). Dotted: what no attack can exceed, proved, for γ ≤ 1."
                + " Lip-NN is left out, since it sees 14 × 14 pixels."
                * (len(full) < len(results)),
            ),
            Picture(
                figures.draw_training(results, place)[0],
                "Training and test error by epoch",
                "Error by epoch, on the training images while they are learned (left) and on the test images (right).",
            ),
        ]
    if regions is not None:
        pictures.append(
            Picture(
                figures.draw_regions(regions, place)[0],
                "Regions of well-posed two by two networks",
                "For which W = [[0, W₁₂], [0, W₂₂]] each condition proves a unique equilibrium.",
            )
        )
    return pictures


def _counts(results: Sequence[Result]) -> str:
    return _listed({result.measured.attacked_images for result in results})


def _few(results: Sequence[Result]) -> bool:
    """Whether there were fewer test images than the paper attacks, and than are looked at after an epoch."""
    return results[0].measured.paper_images < PAPER_IMAGES


def _last(results: Sequence[Result]) -> str:
    count = f"{results[0].measured.paper_images:,} test images"
    return f"all {count}" if _few(results) else f"the last {count}"


def _listed(counts: set[int]) -> str:
    return " or ".join(f"{count:,}" for count in sorted(counts))


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _significant(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _share(lower: float | None, upper: float | None) -> str:
    return NONE if lower is None or not upper else f"{100 * lower / upper:.1f}"
