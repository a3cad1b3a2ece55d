"""A page with tables and figures: in HTML that needs nothing else, and in Markdown."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lben.disk import write_bytes

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


def write_pages(
    folder: Path, title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Sequence[Picture]
) -> list[Path]:
    """Write `index.html` and `index.md`."""
    pages = [folder / "index.html", folder / "index.md"]
    write_bytes(pages[0], _html(title, facts, tables, pictures).encode())
    write_bytes(pages[1], _markdown(title, facts, tables, pictures).encode())
    return pages


def _markdown(title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    parts = [f"# {title}", *facts]
    for table in tables:
        parts += [f"## {table.title}", table.markdown()]
    parts.append("## Figures")
    parts += [f"![{p.short}](figures/{p.file.name})\n\n{p.caption}" for p in pictures]
    return "\n\n".join(parts) + "\n"


def _html(title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
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


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"
