"""Adds a comment to each pytree node in treescope's output: the leaves, elements, bytes and findings in it."""

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
from treeviz.plugin.shown import is_tree, print_failure
from treeviz.prepare import scanned
from treeviz.tree.describers import DISPLAY
from treeviz.tree.table import TreeTable
from treeviz.tree.text import bytes_text, count_text, counted, is_any
from treeviz.views.tree_view import TreeView

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # most nodes: a fast path


class InTreescope:
    """Extends treescope's active renderer, through its public API, once this process has imported treescope."""

    def __init__(self) -> None:
        # For the current rendering: id of a node -> the node, to keep it alive, and its comment.
        self._comments: dict[int, tuple[Any, str]] | None = None
        self._has_failed = False

    def update(self, info: Any = None) -> None:
        """Extend the renderer once treescope is imported; IPython calls this before each cell.

        If treescope has changed incompatibly, one line reports it once.
        """
        active = _active_renderer()
        try:
            if active is not None and not self._has_failed and self._hook not in active.get().wrapper_hooks:
                extended = active.get().extended_with(wrapper_hooks=[self._hook], context_builders=[self._rendering])
                active.set_globally(extended)
        except Exception as error:
            self._has_failed = True
            print_failure("nothing is added to treescope's output", error)

    def remove(self) -> None:
        """Remove the extensions from the renderer; those that others added stay."""
        active = _active_renderer()
        if active is not None and not self._has_failed:
            renderer = active.get()
            hooks = [hook for hook in renderer.wrapper_hooks if hook != self._hook]
            builders = [builder for builder in renderer.context_builders if builder != self._rendering]
            active.set_globally(replace(renderer, wrapper_hooks=hooks, context_builders=builders))

    @contextmanager
    def _rendering(self) -> Iterator[None]:
        outer, self._comments = self._comments, {}
        try:
            yield
        finally:
            self._comments = outer

    def _hook(self, node: Any, path: str | None, node_renderer: Any) -> Any:
        if isinstance(node, TreeView):
            # treescope would show its HTML below its repr
            return node.__treescope_repr__(path, node_renderer)
        try:
            comment_text = "" if is_any(type(node), _PLAIN) else self._comment_for(node)
            if not comment_text:
                return NotImplemented
            from treescope import rendering_parts as parts

            comment = parts.comment_color(parts.text(f"  # {comment_text}"))
            with_comment = partial(parts.siblings_with_annotations, extra_annotations=(comment,))
        except Exception as error:
            print_failure("nothing is added to treescope's output", error)
            return NotImplemented
        return with_comment(node_renderer(node, path=path))

    def _comment_for(self, node: Any) -> str:
        """The comment for a node. At the root of a tree, the comments for all its nodes are made."""
        if self._comments is None:  # a part that treescope draws later
            return ""
        if id(node) not in self._comments:
            self._comments[id(node)] = node, ""
            if is_tree(node):
                table, nodes = scanned(node, None, "tree", DISPLAY)
                self._comments |= {id(nodes[row]): (nodes[row], text) for row, text in summaries(table, nodes).items()}
        return self._comments[id(node)][1]


def _active_renderer() -> Any:
    """treescope's active renderer; None if treescope is not imported."""
    return getattr(sys.modules.get("treescope"), "active_renderer", None)


def summaries(table: TreeTable, nodes: list[Any]) -> dict[int, str]:
    """For each row of a node: "12 leaves · 1.2 M elements · 4.8 MB · 2 findings: T101".

    For a node with one leaf, only the findings, since the leaf shows its own size.
    """
    n_leaves, n_elements, n_bytes = (table.rolled(table.columns[name]) for name in ("leaves", "elements", "bytes"))
    rows_of_rule: dict[str, list[int]] = {}
    for rule, findings in run_rules(Checked(table, nodes)):
        for finding in findings:
            if (finding.level or rule.level) != "info":
                rows_of_rule.setdefault(rule.code, []).append(finding.row)
    in_rows = {code: np.bincount(rows, minlength=len(table)) for code, rows in rows_of_rule.items()}
    before = {code: np.append(0, np.cumsum(counts)) for code, counts in in_rows.items()}
    counts_by_rule = {code: n[table.end] - n[:-1] for code, n in before.items()}
    texts = {}
    for row in np.flatnonzero(~table.is_leaf).tolist():
        n_by_rule = {code: int(n[row]) for code, n in counts_by_rule.items() if n[row]}
        parts = []
        if n_bytes[row] and (n_leaves[row] > 1 or row == 0):
            counts = [(n_leaves, "leaf", "leaves"), (n_elements, "element", "elements")]
            parts = [f"{count_text(int(n[row]))} {one if n[row] == 1 else more}" for n, one, more in counts]
            parts.append(bytes_text(int(n_bytes[row])))
        if n_by_rule:
            parts.append(f"{counted(sum(n_by_rule.values()), 'finding')}: {', '.join(sorted(n_by_rule))}")
        texts[row] = " · ".join(parts)
    return texts
