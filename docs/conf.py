"""How `make docs` builds the site: offline, every warning an error, into build/site."""

from __future__ import annotations

import html
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).parent

project = "lben"
author = "The lben authors"
copyright = "The lben authors, MIT licence"
version = release = version_of("lben")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
default_role = "py:obj"

html_theme = "furo"
html_title = f"lben {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["play.html", "surface.html"]  # pages that need no other file
html_math_renderer = "mathml"
html_show_sphinx = False
html_theme_options = {"footer_icons": [], "navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp"


def mathml(tex: str, *, block: bool = False) -> str:
    """A formula, with the slash of 1/2 as narrow as TeX sets it."""
    return str(tex2mathml(tex, as_block=block)).replace('<mo stretchy="false">/', '<mo lspace="0" rspace="0">/')


def inline_formula(writer: Any, node: nodes.Node) -> None:
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def display_formula(writer: Any, node: nodes.Element) -> None:
    """As Sphinx's other renderers do: a formula with a label is a target of links."""
    labels = "".join(f'<span id="{html.escape(name)}"></span>' for name in node.get("ids", []))
    writer.body.append(f'<div class="formula">{labels}{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Formulas as MathML, which every browser sets by itself: no script, no font, nothing from a network."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (display_formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
