"""How many bytes a page has against 34,000 + 14 a leaf: python tests/benchmarks/page_bytes.py

The pages are those of the treeviz that is installed: `pip install .`, since a checkout serves a front end that is not
minified.

Plain pages, pages with statistics and pages of differences (every third array is half as large again), without their
static rows, of ten trees with random values: models of several libraries and the states of optimizers.

Beside each page stands what it takes at least: the plain page of the tree, or the page of a diff of the tree with
itself; what the script of such pages is longer than the script of that one; and the numbers. Those are the numbers that
such a page is asked for, of leaves only, in four digits and in bars of 51 steps, by the best of three compressors and
as text of a page, without names, types and shapes. Of a plain page it is all data, by the best of these compressors.
Where this is above the limit, no other way to write the data makes the page small enough.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from trees import TREES

import treeviz
from treeviz.tree.text import number_text
from treeviz.views.html.bundle import packed_text
from treeviz.views.html.page import outline
from treeviz.views.html.payload import as_shown, bars, pack
from treeviz.views.view import View

_MOST = 48  # of a dimension: what a page says does not depend on it
_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
_AS_TEXT = 16 / 13  # base 91
_STATISTICS = ("min", "max", "mean", "std")


def filled(tree: Any) -> Any:
    """The tree with random floats in place of its arrays, none of which is large."""
    random = np.random.default_rng(0)

    def one(leaf: Any) -> Any:
        shape = tuple(min(size, _MOST) for size in leaf.shape)
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(0.02 * random.normal(size=shape), leaf.dtype) if is_float else jnp.zeros(shape, leaf.dtype)

    return jax.tree.map(one, tree)


class Convolutions(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Conv(16 if i else 3, 16, (3, 3), rngs=rngs) for i in range(4)])
        self.norms = nnx.List([nnx.BatchNorm(16, rngs=rngs) for _ in range(4)])
        self.head, self.dropout = nnx.Linear(16, 10, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)


class Encoder(nn.Module):
    """A vision transformer without its embedding."""

    n_layers: int

    @nn.compact
    def __call__(self, x):
        for _ in range(self.n_layers):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
            x = x + nn.Dense(32)(nn.gelu(nn.Dense(128)(nn.LayerNorm()(x))))
        return nn.Dense(10)(nn.LayerNorm()(x).mean(1))


def haiku_network(x):
    for _ in range(4):
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(hk.Conv2D(16, 3)(x), True))
    return hk.nets.MLP([64, 64, 10])(x.mean((1, 2)))


def trees() -> Iterator[tuple[str, Any]]:
    key = jax.random.key(0)
    for name in ("mlp", "gpt2", "llama", "adamw"):
        yield TREES[name].title.partition(",")[0], filled(TREES[name].build())
    yield "Flax, an encoder of 12 layers", filled(jax.eval_shape(Encoder(12).init, key, jnp.ones((1, 8, 32))))
    yield "Flax NNX, 4 convolutions", Convolutions(nnx.Rngs(0))
    yield "Haiku, 4 convolutions", hk.transform_with_state(haiku_network).init(key, jnp.ones((1, 8, 8, 3)))
    yield "Equinox, 10 blocks", TREES["equinox"].build()
    model = eqx.filter(eqx.nn.MLP(8, 4, 32, 6, key=key), eqx.is_array)
    yield "Equinox, an MLP of 7 layers", model
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.99))
    yield "optax.chain for it, most is 0", transform.init(model)


def moved(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    is_float = [hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    return treedef.unflatten([1.5 * leaf if is_float[i] and i % 3 == 0 else leaf for i, leaf in enumerate(leaves)])


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


def floor_of_data(view: View) -> int:
    """What the best compressor saves of the data of a plain page: 0 or less."""
    packed = pack(view)
    return min(0, least(zlib.decompress(packed, -15)) - len(packed))


def floor_of_statistics(view: View) -> int:
    table = view.table
    columns = [np.asarray(table.rolled(table.columns[name]), float)[table.is_leaf] for name in _STATISTICS]
    heights = bars(table, table.columns["histogram"])[0][:, table.is_leaf]
    return least_of_numbers(np.stack(columns, axis=1)) + least(heights.tobytes(), heights.T.tobytes())


def floor_of_differences(view: View) -> int:
    """What stands there in both trees and where, the greatest difference, and the magnitudes of both sides."""
    table = view.table
    if "delta" not in table.columns:
        return 0
    columns = [table.columns[name] for name in ("left", "right")]
    is_changed = [bool(columns[0][row]) for row in range(len(table))]
    rows = np.flatnonzero(is_changed)
    places = [table.notes[row][0].details[0][1].partition(" at ")[2] for row in rows.tolist()]
    texts = "\n".join([*(str(column[row]) for column in columns for row in rows), *places]).encode()
    deltas = np.asarray(table.rolled(table.columns["delta"]), float)[rows]
    sides = [bars for _, *both in view.diff["bars"].values() for bars in both] if view.diff else []
    return least(texts) + least_of_numbers(deltas[:, None]) + least(bytes(each // 5 for side in sides for each in side))


def main() -> None:
    print(f"{'':31}{'leaves':>6}{'':>12}{'page':>8}{'limit':>8}{'over':>8}{'':18}script  numbers at least")
    script_of = lambda view: len(packed_text(view.part))
    for name, tree in trees():
        n_leaves = len(jax.tree.leaves(tree))
        limit = 34_000 + 14 * n_leaves
        plain, same = treeviz.render(tree), treeviz.diff(tree, tree)
        kinds: list[tuple[str, Any, Any, Any]] = [
            ("plain", plain, plain, floor_of_data),
            ("statistics", treeviz.render(tree, stats=True), plain, floor_of_statistics),
            ("differences", treeviz.diff(tree, moved(tree)), same, floor_of_differences),
        ]
        for kind, view, bare, floor in kinds:
            n_bytes, script = page_bytes(view), script_of(view) - script_of(plain)
            start = f"{name:31}{n_leaves:6}" if kind == "plain" else " " * 37
            over = f"{n_bytes - limit:+8,}{100 * n_bytes / limit - 100:+7.1f} %"
            numbers = int(_AS_TEXT * floor(view))
            least = page_bytes(bare) + script_of(view) - script_of(bare) + numbers
            rest = f"{script:+9,}{numbers:+9,}{least:9,}{' > limit' if least > limit else ''}"
            print(f"{start} {kind:11}{n_bytes:8,}{limit:8,}{over}{rest}")


if __name__ == "__main__":
    main()
