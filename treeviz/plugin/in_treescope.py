"""Inside treescope's output: at the end of each pytree node what treeviz counts and finds in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from treeviz.analysis.checks.rule import Checked
from treeviz.analysis.checks.rules import run_rules
from treeviz.plugin.shown import is_tree, tell
from treeviz.prepare import scanned
from treeviz.tree.describers import DISPLAY
from treeviz.tree.table import TreeTable
from treeviz.tree.text import bytes_text, count_text
from treeviz.views.tree_view import TreeView

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # most of what is looked at


class InTreescope:
    """Extends treescope's active renderer, through its public API, once this process has imported treescope."""

    def __init__(self) -> None:
        # By id, for the rendering that runs: a node, which stays alive so long, and what is said of it.
        self._said: dict[int, tuple[Any, str]] | None = None
        self._has_failed = False

    def update(self, info: Any = None) -> None:
        """Extend the renderer, unless it is, or treescope is not imported; IPython calls it before each cell.

        Where treescope has changed, one line says so, once.
        """
        active = _active_renderer()
        try:
            if active is not None and not self._has_failed and self._hook not in active.get().wrapper_hooks:
                active.set_globally(
                    active.get().extended_with(wrapper_hooks=[self._hook], context_builders=[self._rendering])
                )
        except Exception as error:
            self._has_failed = True
            tell("nothing is added to treescope's output", error)

    def remove(self) -> None:
        """Leave the renderer as it was, with what others have added since then."""
        active = _active_renderer()
        if active is not None and not self._has_failed:
            renderer = active.get()
            hooks = [each for each in renderer.wrapper_hooks if each != self._hook]
            builders = [each for each in renderer.context_builders if each != self._rendering]
            active.set_globally(replace(renderer, wrapper_hooks=hooks, context_builders=builders))

    @contextmanager
    def _rendering(self) -> Iterator[None]:
        before, self._said = self._said, {}
        try:
            yield
        finally:
            self._said = before

    def _hook(self, node: Any, path: str | None, node_renderer: Any) -> Any:
        if isinstance(node, TreeView):
            # treescope shows its HTML below what shows itself
            return node.__treescope_repr__(path, node_renderer)
        try:
            said = "" if type(node) in _PLAIN else self._of(node)
            if not said:
                return NotImplemented
            from treescope import rendering_parts as parts

            comment = parts.comment_color(parts.text(f"  # {said}"))
            with_comment = partial(parts.siblings_with_annotations, extra_annotations=(comment,))
        except Exception as error:
            tell("nothing is added to treescope's output", error)
            return NotImplemented
        return with_comment(node_renderer(node, path=path))

    def _of(self, node: Any) -> str:
        """What is said of a node: of all nodes of a tree at once, when its root comes."""
        if self._said is None:  # a part that is drawn later
            return ""
        if id(node) not in self._said:
            self._said[id(node)] = node, ""
            if is_tree(node):
                table, nodes = scanned(node, None, "tree", DISPLAY)
                self._said |= {id(nodes[row]): (nodes[row], said) for row, said in summaries(table, nodes).items()}
        return self._said[id(node)][1]


def _active_renderer() -> Any:
    """treescope's, or None while it is not imported."""
    return getattr(sys.modules.get("treescope"), "active_renderer", None)


def summaries(table: TreeTable, nodes: list[Any]) -> dict[int, str]:
    """ "12 leaves · 1.2 M elements · 4.8 MB · 2 findings: T101" of each node that holds arrays, by row.

    Of a node with one leaf, which says that itself, only the findings.
    """
    n_leaves, n_elements, n_bytes = (table.rolled(table.columns[name]) for name in ("leaves", "elements", "bytes"))
    inside = _findings_inside(table, nodes)
    said = {}
    for row in np.flatnonzero(~table.is_leaf).tolist():
        found = {code: int(n[row]) for code, n in inside.items() if n[row]}
        parts = []
        if n_bytes[row] and (n_leaves[row] > 1 or row == 0):
            counts = [(n_leaves, "leaf", "leaves"), (n_elements, "element", "elements")]
            parts = [f"{count_text(int(n[row]))} {one if n[row] == 1 else more}" for n, one, more in counts]
            parts.append(bytes_text(int(n_bytes[row])))
        if found:
            n = sum(found.values())
            parts.append(f"{n:,} finding{'s' * (n > 1)}: {', '.join(sorted(found))}")
        said[row] = " · ".join(parts)
    return said


def _findings_inside(table: TreeTable, nodes: list[Any]) -> dict[str, np.ndarray]:
    """How often each rule has found something in the subtree of each row, by code; without "info"."""
    rows: dict[str, list[int]] = {}
    for rule, found in run_rules(Checked(table, nodes)):
        for each in found:
            if (each.level or rule.level) != "info":
                rows.setdefault(rule.code, []).append(each.row)
    before = {code: np.append(0, np.cumsum(np.bincount(at, minlength=len(table)))) for code, at in rows.items()}
    return {code: n[table.end] - n[:-1] for code, n in before.items()}
