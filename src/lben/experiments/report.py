"""The report of a run: one page in HTML that needs nothing else, one in Markdown, and the figures beside them."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lben.attacks import PAPER_IMAGES
from lben.disk import make_folder, write_bytes
from lben.experiments import figures
from lben.experiments.regions import read_regions
from lben.experiments.running import Run
from lben.experiments.study import Result, read_run

NONE = "–"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { font-weight: 600; border-bottom-color: #999; } thead th[colspan] { text-align: center; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 2rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: .9rem; color: #333; max-width: 60rem; } code { background: #f3f3f3; padding: 0 .25rem; }
@media print { body { margin: 0; max-width: none; font-size: 11px; } table { font-size: 9px; }
  th, td { padding: .1rem .25rem; } figure, table { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Table:
    """A table with headings of two levels: for each group its columns."""

    title: str
    groups: list[tuple[str, list[str]]]
    rows: list[list[str]]

    def markdown(self) -> str:
        heads = [f"{group} {column}".strip() for group, columns in self.groups for column in columns]
        lines = [heads, [":---"] + ["---:"] * (len(heads) - 1), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def html(self) -> str:
        top = "".join(f'<th colspan="{len(columns)}">{html.escape(group)}</th>' for group, columns in self.groups)
        below = "".join(f"<th>{html.escape(column)}</th>" for _, columns in self.groups for column in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in self.rows
        )
        return (
            f'<div class="table"><table><thead><tr>{top}</tr><tr>{below}</tr></thead>\n'
            f"<tbody>{body}</tbody></table></div>"
        )


@dataclass(frozen=True)
class Picture:
    """A figure on the page: its vector file, what it says, and the same in short for those who do not see it."""

    file: Path
    short: str
    caption: str


def write_report(folder: str | Path) -> list[Path]:
    """Write `report/index.html`, `report/index.md` and the figures of a run, finished or not; returns the pages."""
    run, results = read_run(folder)
    target = Path(folder) / "report"
    make_folder(target)
    tables = [_beside_the_paper(results), _beyond_the_paper(results), _equilibria(results)] if results else []
    pictures = _pictures(Path(folder), results, target)
    missing = len(run.rows) - len(results)
    facts = _facts(run, results)
    if missing:
        facts.insert(0, f"{missing} of {len(run.rows)} rows are not finished: the command goes on with them.")
    pages = [target / "index.html", target / "index.md"]
    write_bytes(pages[0], _html(run.title, facts, tables, pictures).encode())
    write_bytes(pages[1], _markdown(run.title, facts, tables, pictures).encode())
    return pages


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
                _percent(m.error),
                _number(p.attacked_5, 1),
                _percent(m.paper_attacked[0], 1),
                _number(p.attacked_10, 1),
                _percent(m.paper_attacked[1], 1),
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
        certified = [NONE] * len(radii) if m.certified is None else [_percent(share) for share in m.certified]
        attacked = [_percent(m.multi_step[m.sizes.index(size)], 1) for size in (5.0, 10.0)]
        cost = [f"{result.relative_seconds:.1f}"]
        tight = [_significant(m.tight), _share(m.lower, m.tight)]
        rows.append([result.row["name"], *tight, *certified, *attacked, *cost])
    return Table("What the paper does not have", groups, rows)


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
    """Draw what there is to draw."""
    place = target / "figures"
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
    if (folder / "regions.json").is_file():
        pictures.append(
            Picture(
                figures.draw_regions(read_regions(folder / "regions.json"), place)[0],
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


def _markdown(title: str, facts: list[str], tables: list[Table], pictures: list[Picture]) -> str:
    parts = [f"# {title}", *facts]
    for table in tables:
        parts += [f"## {table.title}", table.markdown()]
    parts.append("## Figures")
    parts += [f"![{p.short}](figures/{p.file.name})\n\n{p.caption}" for p in pictures]
    return "\n\n".join(parts) + "\n"


def _html(title: str, facts: list[str], tables: list[Table], pictures: list[Picture]) -> str:
    body = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{_code(html.escape(fact))}</p>" for fact in facts)]
    body += [f"<h2>{html.escape(table.title)}</h2>\n{table.html()}" for table in tables]
    body.append("<h2>Figures</h2>")
    for picture in pictures:
        content = base64.b64encode(picture.file.read_bytes()).decode()
        body.append(
            f'<figure><img alt="{html.escape(picture.short)}" src="data:image/svg+xml;base64,{content}">'
            f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>"
        )
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
    )
    return "\n".join([head, "<body>", *body, "</body></html>"]) + "\n"


def _code(text: str) -> str:
    """Words between backticks as code."""
    pieces = text.split("`")
    return "".join(f"<code>{piece}</code>" if k % 2 else piece for k, piece in enumerate(pieces))


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _significant(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _share(lower: float | None, upper: float | None) -> str:
    return NONE if lower is None or not upper else f"{100 * lower / upper:.1f}"
