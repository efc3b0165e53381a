"""What is compared: every way to show a tree, as a function of the tree, by what it makes and by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import pytreeclass
import treescope

import treeviz

# Each takes less than some ten seconds, but for these.
SLOW = {
    ("abstract-10k", "treescope, abbreviated"),
    ("abstract-10k", "treescope text"),
    ("numpy-100k", "treescope"),
    ("numpy-100k", "treescope, abbreviated"),
    ("numpy-100k", "treescope text"),
}
# Some 20 s each, and several GB.
HUGE = ("numpy-1m",)
ONLY_OURS = ("numpy-1m", "depth-200k")


def floor(tree: Any) -> str:
    """What every tool that shows key paths has to do."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return "\n".join([jax.tree_util.keystr(path) for path, _ in leaves])


def treescope_abbreviated(tree: Any) -> str:
    with treescope.abbreviation_threshold.set_scoped(1):
        return treescope.render_to_html(tree)


FLOOR = "floor"
HTML: dict[str, Callable[[Any], str]] = {
    "treeviz": lambda tree: treeviz.render(tree)._repr_html_(),
    "treescope": treescope.render_to_html,
    "treescope, abbreviated": treescope_abbreviated,
}
TEXT: dict[str, Callable[[Any], str]] = {
    "treeviz text": lambda tree: treeviz.render(tree).text(width=120),
    "treescope text": treescope.render_to_text,
    "equinox tree_pformat": eqx.tree_pformat,
    "PyTreeClass tree_summary": pytreeclass.tree_summary,
}
WALKS: dict[str, Callable[[Any], Any]] = {FLOOR: floor, "treeviz.walk": treeviz.walk}
TOOLS = {**WALKS, **HTML, **TEXT}


def page_of(tool: str, tree: Any) -> str:
    """What a browser is given: a whole document."""
    if tool == "treeviz":
        return treeviz.render(tree).html()
    return PAGE.format(HTML[tool](tree))


PAGE = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>tree</title></head><body>{}</body></html>'
BLANK = PAGE.format("<script>document.title = 'blank'</script>")


def is_left_out(tree: str, tool: str, full: bool) -> str:
    """Why a tool is not run on a tree, or nothing."""
    if tree in ONLY_OURS and not (tool == FLOOR or tool.startswith("treeviz")):
        return "treeviz and the floor alone"
    if not full and (tree in HUGE or (tree, tool) in SLOW):
        return "slow: --full runs it"
    return ""
