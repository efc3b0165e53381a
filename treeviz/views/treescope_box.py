"""A tree view inside the output of treescope: a foldable box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeviz.tree.safe_repr import guarded

# Pixels. treescope sizes its frame by the content, which therefore needs a fixed size.
WIDTH, MIN_HEIGHT, MAX_HEIGHT = 960, 320, 600
_HEAD, _ROW = 110, 22


def box(name: str, summary: str, n_rows: int, fragment: str, lines: Sequence[str], path: str | None) -> Any:
    """What `__treescope_repr__` returns: NotImplemented if treescope has moved what it is made of.

    Args:
      name: What is shown: "TreeView".
      summary: The text of the foldable line.
      n_rows: The number of rows of the tree, for the height of the box.
      fragment: The HTML of the view.
      lines: The view as text, for treescope's text output.
      path: treescope's path of the object, or None.
    """
    return guarded(lambda: _box(name, summary, n_rows, fragment, lines, path), lambda _: NotImplemented)


def _box(name: str, summary: str, n_rows: int, fragment: str, lines: Sequence[str], path: str | None) -> Any:
    from treescope import rendering_parts as parts

    written = parts.on_separate_lines([parts.text(line) for line in lines])
    height = min(MAX_HEIGHT, max(MIN_HEIGHT, _HEAD + _ROW * n_rows))
    sized = f'<div style="width:{WIDTH}px;height:{height}px;overflow:auto">{fragment}</div>'
    frame = parts.embedded_iframe(sized, fallback_in_text_mode=written)
    return parts.build_custom_foldable_tree_node(
        label=parts.text(f"<{name} {summary}"),
        contents=parts.siblings(
            parts.fold_condition(collapsed=parts.text(" …"), expanded=parts.indented_children([frame])),
            parts.text(">"),
        ),
        path=path,
        expand_state=parts.ExpandState.EXPANDED,
    )
