"""How many bytes a page has against 30,000 + 12 a leaf: python tests/benchmarks/page_bytes.py

Plain pages, pages with statistics and pages of differences (every third array is half as large again), without their
static rows, of models with random values and of an optimizer's state, most of which is zeros. Beside it the script, and
in bytes a leaf the floor: what the numbers alone that such a page is asked for take, those of leaves only, in four
digits and in bars of 51 steps, by the best of three compressors, without names, types, shapes or a line of script.
Where it is above 12, what the numbers take is more than a page is allowed for its leaves.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from trees import TREES

import treeviz
from treeviz.tree.numbers import number_text
from treeviz.views.html.bars import bars
from treeviz.views.html.bundle import packed_page_module
from treeviz.views.html.shown import as_shown
from treeviz.views.html.static import outline
from treeviz.views.view import View

_MOST = 48  # of a dimension: what a page says does not depend on it
_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
_STATISTICS = ("min", "max", "mean", "std")


def filled(tree: Any) -> Any:
    """The tree with random floats in place of its arrays, none of which is large."""
    random = np.random.default_rng(0)

    def one(leaf: Any) -> Any:
        shape = tuple(min(size, _MOST) for size in leaf.shape)
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(0.02 * random.normal(size=shape), leaf.dtype) if is_float else jnp.zeros(shape, leaf.dtype)

    return jax.tree.map(one, tree)


def trees() -> Iterator[tuple[str, Any]]:
    for name in ("mlp", "gpt2", "llama"):
        yield TREES[name].title, filled(TREES[name].build())
    model = eqx.nn.MLP(8, 4, 32, 6, key=jax.random.key(0))
    yield "Equinox' MLP of 7 layers", eqx.filter(model, eqx.is_array)
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.99))
    yield "optax.chain for it", transform.init(eqx.filter(model, eqx.is_array))


def moved(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef.unflatten([leaf if i % 3 else 1.5 * leaf for i, leaf in enumerate(leaves)])


def page_bytes(view: View) -> int:
    return len(view.html().encode()) - len(outline(view.brief).encode())


def least(*written: bytes) -> int:
    """The bytes of the shortest of some ways to write the same, compressed."""
    compressors = (
        lambda data: zlib.compress(data, 9, -15),
        lambda data: lzma.compress(data, lzma.FORMAT_RAW, filters=_LZMA),
        bz2.compress,
    )
    return min(len(compress(data)) for data in written for compress in compressors)


def least_of_numbers(numbers: np.ndarray) -> int:
    """The bytes of float[n, n_columns] in the digits that are shown: as text, and as floats by row, column and byte."""
    short = as_shown(numbers).astype(np.float32)
    text = "\n".join(number_text(number) for number in numbers.ravel(order="F"))
    planes = np.ascontiguousarray(short.T).view(np.uint8).reshape(-1, 4).T
    return least(text.encode(), short.tobytes(), np.ascontiguousarray(short.T).tobytes(), planes.tobytes())


def floor_of_statistics(view: View) -> int:
    table = view.table
    columns = [np.asarray(table.rolled(table.columns[name]), float)[table.is_leaf] for name in _STATISTICS]
    heights = bars(table, table.columns["histogram"])[0][:, table.is_leaf]
    return least_of_numbers(np.stack(columns, axis=1)) + least(heights.tobytes(), heights.T.tobytes())


def floor_of_differences(view: View) -> int:
    """What stands there in both trees, the greatest difference, and the magnitudes of both sides."""
    table = view.table
    if "delta" not in table.columns:
        return 0
    columns = [table.columns[name] for name in ("left", "right")]
    is_changed = [bool(columns[0][row]) for row in range(len(table))]
    rows = np.flatnonzero(is_changed)
    texts = "\n".join(str(column[row]) for column in columns for row in rows).encode()
    deltas = np.asarray(table.rolled(table.columns["delta"]), float)[rows]
    sides = [bars for _, *both in view.diff["bars"].values() for bars in both] if view.diff else []
    return least(texts) + least_of_numbers(deltas[:, None]) + least(bytes(each // 5 for side in sides for each in side))


def main() -> None:
    print(f"{'':54}{'leaves':>6}{'page':>8}{'limit':>8}{'':>9}{'script':>8}{'floor, B a leaf':>17}")
    for name, tree in trees():
        n_leaves = len(jax.tree.leaves(tree))
        limit = 30_000 + 12 * n_leaves
        for kind, view, floor in (
            ("plain", treeviz.render(tree), None),
            ("statistics", treeviz.render(tree, stats=True), floor_of_statistics),
            ("differences", treeviz.diff(tree, moved(tree)), floor_of_differences),
        ):
            n_bytes, script = page_bytes(view), len(packed_page_module(view.part).encode())
            at_least = f"{floor(view) / n_leaves:17.1f}" if floor else ""
            over = f"{100 * n_bytes / limit - 100:+7.1f} %"
            print(f"{name + ', ' + kind:54}{n_leaves:6}{n_bytes:8,}{limit:8,}{over}{script:8,}{at_least}")


if __name__ == "__main__":
    main()
