"""treescope: pictures of array values by its array visualiser, and its view of leaves that JAX does not know.

Only these pictures depend on treescope. If it cannot be imported or fails, the page draws the values itself and shows
the reason: see `treeviz.analysis.details`.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.details import Drawing, Window, copied, drawing, in_rows
from treeviz.tree.describers import array_inside
from treeviz.tree.facts import KINDS
from treeviz.tree.opaque import contents
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable
from treeviz.tree.text import aval_text, error_text, guarded, qualified_name, value_text
from treeviz.tree.tracers import Tracer
from treeviz.views.html.page import attribute, text

MAX_ELEMENTS = 200_000  # in all pictures together: about 1 MB of the page
MAX_OF_ONE, MIN_OF_ONE = 4096, 256
MAX_AXIS, MAX_ONLY_AXIS = 64, 128
_MOST_OBJECTS, _MOST_OF_OBJECT = 20, 100_000  # leaves; characters of HTML per leaf
_MOST_OPENED, _MOST_ITEMS, _MAX_DEPTH = 200, 100, 12  # objects inside a leaf; items or characters of one; levels
_SIZED = frozenset(map(id, (str, bytes, dict, list, tuple, set, frozenset)))
_PLAIN = frozenset(map(id, (type(None), bool, int, float, complex)))
_ADDRESS = re.compile(" at 0x[0-9a-f]{6,}")
_MAX_DIGITS = 9_999_999  # treescope draws integers up to here digit by digit

# treescope runs its scripts with `new Function`. The frame has a separate origin and no network.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline' 'unsafe-eval'"
_RANDOM_NAME = re.compile(r"treescope_out_[0-9a-f]{32}")
_HANDLER = re.compile(r'\stabindex="0" part="treescope_root" onkeydown="[^"<>]*"')  # for a mode that we do not offer
# treescope's elements run the script inside them as soon as they are parsed. In a `srcdoc` a slow parser may pause
# there, and then only a part of the script runs ("insertContent is not a function", treescope 0.1.10). So these
# elements are defined after the whole document is parsed.
_ELEMENTS = re.compile(r"<script>\s*\(\(\)=>\{(.*?)\}\)\(\);\s*</script>", re.DOTALL)
_ELEMENTS_LATER = r"<script>addEventListener('DOMContentLoaded', ()=>{\1});</script>"


@contextmanager
def _treescope() -> Iterator[Any]:
    """treescope, without deprecation warnings from its own code, which users of treeviz cannot fix.

    treescope 0.1.10 reads every public name of NumPy for its first picture, and numpy 2.5 deprecates `chararray`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="treescope")
        import treescope

        yield treescope


def trouble() -> str:
    """Why treescope cannot draw; "" if it can."""
    return guarded(lambda: _by_treescope(np.ones(1, np.float32), {}, "") and "", lambda error: _reason(error, "draw"))


def _reason(error: BaseException, what: str = "draw this") -> str:
    from importlib import metadata

    version = guarded(lambda: f" {metadata.version('treescope')}", lambda _: "")
    cannot = what if sys.modules.get("treescope") else "be imported"
    return f"treescope{version} cannot {cannot}: {error_text(error)}"


def _import_error() -> None:
    """Import treescope, which may raise."""
    with _treescope():
        pass


def pictures(table: TreeTable, nodes: Sequence[Any]) -> dict[int, str | Drawing]:
    """Pictures for the details of rows: the values of arrays, and opaque leaves as HTML documents."""
    opaque = [row for row in np.flatnonzero(table.is_leaf).tolist() if table[row].kind == "opaque"]
    views = {row: guarded(lambda row=row: object_view(nodes[row]), lambda _: "") for row in opaque[:_MOST_OBJECTS]}
    return array_pictures(table, nodes) | {row: view for row, view in views.items() if view}


def object_view(leaf: Any) -> str:
    """The HTML document in which treescope shows an object; "" if it is longer than 100,000 characters.

    Arrays are shown by shape and dtype only, since treescope would read their values. treescope draws the builtin
    types. Objects of other classes are drawn from their stored fields and items, or by name if they have none, since
    their `__repr__`, `__iter__` or `__treescope_repr__` might never end. At most 200 objects are opened, 12 deep.
    """
    with _treescope() as treescope:
        # The active handlers and hooks could run methods of the user's classes, such as `_repr_html_`.
        renderer = treescope.renderers.TreescopeRenderer([_Opening()], [], [])
        shown = renderer.to_foldable_representation(leaf, root_keypath=None)
        treescope.active_expansion_strategy.get()(shown.renderable)
        line = treescope.rendering_parts.build_full_line_with_annotations(shown)
        html = _ADDRESS.sub("", treescope.lowering.render_to_html_as_root(line, compressed=False))
    return _framed(html, "as treescope shows it") if len(html) <= _MOST_OF_OBJECT else ""


def object_or_reason(leaf: Any) -> tuple[str, str]:
    """The document of `object_view`, and why there is none if treescope fails."""
    return guarded(lambda: (object_view(leaf), ""), lambda error: ("", _reason(error)))


class _Opening:
    """A handler for treescope that lets it draw only builtin types, and runs no code of other classes."""

    def __init__(self) -> None:
        self._n_left, self._depth = _MOST_OPENED, 0

    def __call__(self, node: Any, path: str | None, subtree_renderer: Any) -> Any:
        self._n_left -= 1
        self._depth += 1
        try:
            return self._drawn(node, subtree_renderer, self._n_left >= 0 and self._depth <= _MAX_DEPTH)
        finally:
            self._depth -= 1

    def _drawn(self, node: Any, subtree_renderer: Any, may_open: bool) -> Any:
        from treescope import handlers
        from treescope import rendering_parts as parts

        known = value_text(node, of_object=lambda *_: "")  # "<int of 4,096 bits>", the shape of an array
        type_id = id(type(node))
        if (type_id in _PLAIN and known[0] != "<") or (type_id in _SIZED and may_open and len(node) <= _MOST_ITEMS):
            return handlers.handle_basic_types(node, None, subtree_renderer)
        items = contents(node, _MOST_ITEMS) if may_open and not known else []
        if not items:
            name = parts.text(known or value_text(node))
            return parts.build_one_line_tree_node(parts.abbreviation_color(name), None)
        comma = parts.siblings(",", parts.fold_condition(collapsed=parts.text(" ")))
        commas, children = [comma] * (len(items) - 1) + [parts.fold_condition(expanded=parts.text(","))], []
        for (step, inner), after in zip(items, commas, strict=True):
            name = f"{step.removeprefix('.')}="
            children.append(parts.siblings_with_annotations(name, subtree_renderer(inner), after))
        prefix = parts.text(f"{qualified_name(type(node))}(")
        return parts.build_foldable_tree_node_from_children(prefix, children, ")")


def array_pictures(table: TreeTable, nodes: Sequence[Any]) -> dict[int, str | Drawing]:
    """HTML documents with the values of a tree's arrays, by row number; our own drawings if treescope fails.

    Each shows the first elements along every axis: at most 64 × 64 per array, fewer if there are many arrays, and only
    the first arrays if there are more than some 780; of a sharded array the first shard. Only these elements are
    copied. The documents contain scripts of treescope: show them in a sandboxed frame.
    """
    leaves = [row for row in np.flatnonzero(table.is_leaf).tolist() if KINDS[table[row].kind].has_values]
    arrays = {row: array_inside(nodes[row]) if table[row].kind == "variable" else nodes[row] for row in leaves}
    is_here = lambda array: not isinstance(array, jax.Array) or array.is_fully_addressable  # noqa: E731
    candidates = [row for row, array in arrays.items() if is_drawable(array) and is_here(array)]
    limit, candidates = _fair([int(arrays[row].size) for row in candidates], candidates)
    error = guarded(_import_error, lambda error: error) if candidates else None
    pictures, drawn = {}, {}  # a shared array is drawn once
    for row in candidates:
        array = arrays[row]
        try:
            if id(array) not in drawn:
                drawn[id(array)] = _first_values(*_part_of(array, limit), str(array.dtype), array.shape, error)
            pictures[row] = drawn[id(array)]
        except Exception:  # a transfer guard or a lost device must not stop a run
            continue
    return pictures


def is_drawable(node: Any) -> bool:
    """Whether the node is a non-empty array of numbers."""
    if isinstance(node, Tracer):
        return False
    if isinstance(node, jax.Array):
        return not jnp.issubdtype(node.dtype, jax.dtypes.extended) and not node.is_deleted() and node.size > 0
    if not (isinstance(node, np.ndarray) or type(node) is Stored) or not node.size or node.dtype.names is not None:
        return False
    return node.dtype.kind in "biufc" or jnp.issubdtype(node.dtype, np.number)


def _fair(sizes: Sequence[int], rows: list[int]) -> tuple[int, list[int]]:
    """The most elements that are drawn of each array, and the rows of the arrays that are drawn."""
    limit = MAX_OF_ONE
    while limit > MIN_OF_ONE and sum(min(size, limit) for size in sizes) > MAX_ELEMENTS:
        limit //= 2
    until = np.cumsum([min(size, limit) for size in sizes])
    return limit, rows[: int(np.searchsorted(until, MAX_ELEMENTS, side="right"))]


def _part_of(array: Any, limit: int) -> tuple[np.ndarray, str, tuple[int, ...]]:
    """A copy of the first elements, their shard if that is not the whole array, and where it begins."""
    starts = (0,) * len(array.shape)
    if not isinstance(array, jax.Array):
        array = np.asarray(array)
        return np.array(array[_first(array.shape, limit)]), "", starts
    shard = array.addressable_shards[0]
    part, where = shard.data, ""
    if part.shape != array.shape:
        index = ", ".join("…" if s == slice(None) else f"{s.start or 0}:{s.stop}" for s in shard.index)
        where = f"the shard on {shard.device.platform}:{shard.device.id}, [{index}]"
        starts = tuple(s.start or 0 for s in shard.index)
    return copied(part, _first(part.shape, limit)), where, starts


def _first(shape: tuple[int, ...], limit: int) -> tuple[slice, ...]:
    """The first elements of every axis; the last axes get the most."""
    sizes: list[int] = []
    most = MAX_ONLY_AXIS if len(shape) == 1 else min(MAX_AXIS, math.isqrt(limit))
    for size in reversed(shape):
        sizes.append(max(1, min(size, most, limit // math.prod(sizes))))
    return tuple(slice(0, size) for size in reversed(sizes))


def _first_values(
    part: np.ndarray,
    where: str,
    starts: tuple[int, ...],
    dtype: str,
    shape: tuple[int, ...],
    error: BaseException | None,  # of importing treescope
) -> str | Drawing:

    def caption(part: np.ndarray) -> str:
        whole = where or ("" if part.shape == tuple(shape) else "it")
        return aval_text(shape, dtype) + (f": the first {' × '.join(map(str, part.shape))} of {whole}" if whole else "")

    def itself(error: BaseException) -> Drawing:
        # Of many axes, what is first along all but the last two.
        last = part[(slice(0, 1),) * (part.ndim - 2)]
        values, is_here = in_rows(last.reshape(last.shape[-2:])), in_rows(np.ones(last.shape[-2:], bool))
        axes = (part.ndim - 2 if part.ndim > 1 else -1, part.ndim - 1)
        window = Window(values, is_here, axes, starts, last.shape, (), ())
        return _by_page(window, caption(last), _instead(error))

    if error is not None:
        return itself(error)
    whole, drawn = (shape, part) if part.ndim else ((1,), part.reshape(1))
    sizes = enumerate(zip(drawn.shape, whole, strict=True))
    labels = {i: f"axis {i}: {n}" + (f" of {size}" if n != size else "") for i, (n, size) in sizes}
    return guarded(lambda: _by_treescope(drawn, labels, caption(part)), itself)


def window_picture(window: Window, dtype: str, *, by_page: bool = False) -> dict[str, Any]:
    """What shows a window on an array: an HTML document and its height in pixels; a drawing if treescope fails, or
    `by_page`, for a page whose policy does not allow its scripts.
    """
    names = {i: f"axis {axis}" for i, axis in enumerate(window.axes) if axis >= 0}
    ranges = enumerate(zip(window.starts, window.sizes, strict=True))
    where = ", ".join(f"{start}:{start + n}" if i in window.axes else f"{start}" for i, (start, n) in ranges)
    caption = f"[{where}] {dtype}"
    if len(window.devices) > 1:
        more = ["…"] * (len(window.devices) > 8)
        caption += f" from {', '.join([*window.devices[:8], *more])}"
    if window.elsewhere:
        caption += f"; the rest is in another process, on {', '.join(window.elsewhere)}"
    if by_page:
        return {"drawn": _by_page(window, caption, "")}
    height = 116 + _cell(window.values) * len(window.values) + 15 * (len(caption) // 40)
    return guarded(
        lambda: {"html": _by_treescope(window.values, names, caption, window.is_here), "height": height},
        lambda error: {"drawn": _by_page(window, caption, _instead(error))},
    )


def _instead(error: BaseException) -> str:
    return f"{_reason(error)}. So treeviz draws it."


def _by_page(window: Window, caption: str, why: str) -> Drawing:
    values, note = _as_drawn(window.values)
    return drawing(window, values, caption + note, why)


def _by_treescope(part: np.ndarray, labels: dict[int, str], caption: str, valid: np.ndarray | None = None) -> str:
    values, note = _as_drawn(part)
    trim = bool(np.isfinite(values).any())  # treescope warns of an empty mean if nothing is finite
    with _treescope() as treescope, np.errstate(all="ignore"):
        looks = {"axis_labels": labels, "pixels_per_cell": _cell(part), "trim_outliers": trim}
        figure = treescope.render_array(values, valid_mask=valid, **looks)
        html = treescope.lowering.render_to_html_as_root(figure.treescope_part)
    return _framed(html, caption + note)


def _framed(drawn: str, caption: str) -> str:
    drawn = _HANDLER.sub("", _RANDOM_NAME.sub("treescope_out", drawn))
    drawn = _ELEMENTS.sub(_ELEMENTS_LATER, drawn, count=1)
    # The caption is last and is shown first, so that documents have a common start, which is sent once.
    return (
        '<!DOCTYPE html><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{attribute(_POLICY)}">'
        '<body style="margin:0;background:#fff;color:#000;display:flex;flex-direction:column">'
        f'<div>{drawn}</div><p style="order:-1;margin:6px 8px;font:12px monospace">{text(caption)}</p></body>'
    )


def _cell(part: np.ndarray) -> int:
    """Pixels of a cell; the signs of integers need 7."""
    return 7 if max(part.shape) <= 32 or not jnp.issubdtype(part.dtype, jnp.inexact) else 4


def _as_drawn(part: np.ndarray) -> tuple[np.ndarray, str]:
    """The values in a dtype that treescope draws correctly, and a note on the conversion."""
    with np.errstate(all="ignore"):
        if part.dtype.kind == "c":
            return np.abs(part).astype(np.float32), "; magnitudes"
        if part.dtype == np.bool_ or jnp.issubdtype(part.dtype, np.integer):
            whole = part.astype(np.int64) if part.dtype != np.uint64 else part
            if whole.max() <= _MAX_DIGITS and whole.min() >= -_MAX_DIGITS:
                return whole.astype(np.int32), ""
            return part.astype(np.float32), "; large integers, as float32"
        return part.astype(np.float32), "; as float32" if part.dtype.itemsize > 4 else ""
