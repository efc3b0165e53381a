"""Small tables, written out row by row, on which `query_cases.json` says what each query finds.

The numbers in the comments are the rows' numbers; the cases use them.
"""

from __future__ import annotations

import math

import numpy as np

from treeviz.tree.facts import Column, Facts, Note, Sharding
from treeviz.tree.keys import Key
from treeviz.tree.paths import table_of_paths
from treeviz.tree.table import TreeTable

NAN = math.nan


def item(name: str) -> Key:
    return Key(name, f"[{name!r}]", name, (f"[{name!r}]",))


def attribute(name: str) -> Key:
    return Key(f".{name}", f".{name}", name, (f".{name}",))


def node(kind: str, type_: str = "", **more) -> Facts:
    return Facts(kind, type_ or kind, False, **more)


def array(dtype: str, *shape: int, kind: str = "array", itemsize: int = 4, **more) -> Facts:
    n = math.prod(shape)
    return Facts(kind, "jax.Array", True, 1, n, n * itemsize, shape, dtype, **more)


def leaf(kind: str, type_: str, text: str = "", **more) -> Facts:
    return Facts(kind, type_, True, 1, text=text, **more)


def table(name: str, rows: list[tuple[int, Key | int, Facts]], notes=None, **columns) -> TreeTable:
    """A table out of (depth, key or index, facts); `columns` holds a list of numbers for each statistic."""
    depth = [depth for depth, _, _ in rows]
    n, parent, end, position = len(rows), [-1] * len(rows), [len(rows)] * len(rows), [0] * len(rows)
    open_rows: list[int] = []
    n_children = [0] * n
    for row in range(n):
        while len(open_rows) > depth[row]:
            end[open_rows.pop()] = row
        if open_rows:
            parent[row] = open_rows[-1]
            position[row] = n_children[parent[row]]
            n_children[parent[row]] += 1
        open_rows.append(row)
    keys = [Key("[…]", "[…]", "*", ())]
    keys += dict.fromkeys(key for _, key, _ in rows[1:] if isinstance(key, Key))
    facts = list(dict.fromkeys(facts for _, _, facts in rows))
    found = TreeTable(
        name,
        *(np.array(column, dtype=np.int32) for column in (depth, parent, end, position)),
        key_codes=np.array([keys.index(key) if isinstance(key, Key) else 0 for _, key, _ in rows], dtype=np.int32),
        keys=tuple(keys),
        fact_codes=np.array([facts.index(f) for _, _, f in rows], dtype=np.int32),
        facts=tuple(facts),
        notes=notes or {},
    )
    sizes = [
        found.fact_column(name, np.array([getattr(f, name) for f in facts]), format=format_, rollup="sum")
        for name, format_ in (("elements", "count"), ("bytes", "bytes"), ("leaves", "count"))
    ]
    statistics = [
        Column(name, name, np.array(values, dtype=float), format="number", rollup="max" if name == "max" else "sum")
        for name, values in columns.items()
    ]
    return found.with_columns(*sizes, *statistics)


def model() -> TreeTable:
    linear = node("module", "Linear", static=(("in_features", "768"), ("use_bias", "True")))
    sharded = Sharding("P('data', None)", 8, (96, 768), False, True, True)
    return table(
        "params",
        [
            (0, 0, node("dict")),  # 0 params
            (1, item("layers"), node("list")),  # 1 ['layers']
            (2, 0, linear),  # 2 ['layers'][0]
            (3, attribute("weight"), array("float32", 768, 768, sharding=sharded)),  # 3
            (3, attribute("bias"), array("bfloat16", 768, itemsize=2)),  # 4
            (2, 1, linear),  # 5 ['layers'][1]
            (3, attribute("weight"), array("float32", 768, 3072)),  # 6
            (3, attribute("bias"), node("none", "None")),  # 7
            (1, item("h/0/attn"), node("dict")),  # 8 ['h/0/attn'], as Haiku names modules
            (2, item("W"), array("bfloat16", 2, 768, 96, itemsize=2)),  # 9
            (1, item("act"), leaf("function", "function", "gelu  nn/functions.py:12")),  # 10
            (1, item("lr"), leaf("scalar", "float", "0.003", weak=True)),  # 11
        ],
        notes={6: (Note("shared", "shared with ['layers'][0].weight", 3),)},
    )


def state() -> TreeTable:
    everywhere = Sharding("P()", 8, (4,), True, True, True)
    found = table(
        "state",
        [
            (0, 0, node("namedtuple", "AdamState")),  # 0 state
            (1, attribute("count"), array("int32")),  # 1
            (1, attribute("mu"), node("dict")),  # 2
            (2, item("w"), array("float32", 4, sharding=everywhere)),  # 3
            (2, item("nan"), array("float16", 64, itemsize=2)),  # 4
            (1, attribute("key"), array("key<fry>", kind="key")),  # 5
            (1, attribute("mask"), array("bool", 4, 4, itemsize=1)),  # 6
            (1, attribute("fft"), array("complex64", 1, 8, itemsize=8)),  # 7
            (1, attribute("scale"), array("float8_e4m3fn", 1000, itemsize=1)),  # 8
            (1, attribute("tangent"), array("float0", 3, kind="float0", itemsize=0)),  # 9
            (1, attribute("hidden"), leaf("opaque", "Special")),  # 10
            (1, attribute("broken"), node("error", "Node")),  # 11
            (1, attribute("self"), node("cycle", "Node")),  # 12
            (1, attribute("u"), array("uint8", 100, itemsize=1)),  # 13
            (1, attribute("rest"), node("list")),  # 14
        ],
        notes={
            10: (Note("hidden", "holds 2 arrays that JAX cannot see"),),
            11: (Note("error", "ValueError: no"),),
            12: (Note("cycle", "contains itself"),),
            14: (Note("more", "… 480 more"),),
        },
        #        0    1    2    3    4    5    6    7    8    9   10   11   12   13   14
        nan=[NAN, 0.0, NAN, 0.0, 2.0, NAN, 0.0, 0.0, 0.0, NAN, NAN, NAN, NAN, 0.0, NAN],
        inf=[NAN, 0.0, NAN, 0.0, 0.0, NAN, 0.0, 1.0, 0.0, NAN, NAN, NAN, NAN, 0.0, NAN],
        max=[NAN, 7.0, NAN, -1.5, 1e4, NAN, 1.0, NAN, 0.25, NAN, NAN, NAN, NAN, 255.0, NAN],
    )
    return found.with_columns(Column("Diff", "differs in", ["", "shape, value", *[""] * 11, "value", ""]))


def names() -> TreeTable:
    """Keys that look like something else."""
    one = array("float32")
    keys = ["a b", "x|y", "UPPER", "nan", "bytes:>1", "-minus", "*", "", "grüße", "a/b"]
    return table("tree", [(0, 0, node("dict")), *((1, item(key), one) for key in keys)])  # 1 to 10


def stack() -> TreeTable:
    """An array that is open into its layers, which are no leaves."""
    layer = node("layer", "jax.Array", shape=(2,), dtype="float32")
    rows = [
        (1, item("layers"), node("dict")),
        (2, item("w"), array("float32", 3, 2)),
        *((3, i, layer) for i in range(3)),
    ]
    return table("params", [(0, 0, node("dict")), *rows])  # 1 layers, 2 w, 3 to 5 its layers


def printed() -> TreeTable:
    """Keys that `keystr` prints in another way than a name in quotes, or that are paths themselves."""

    def other(text: str) -> Key:
        return Key(text, f"[{text}]", text, (f"[{text}]",))

    one, across = array("float32"), Key("[:, 1]", "[:, 1]", "1", ("[:, 1]",))
    rows = [(1, item(name), one) for name in ("it's", 'say "no"')]  # 1, 2
    rows += [(1, other("None"), one), (1, other("(1, 2)"), one)]  # 3, 4
    rows += [(1, item("a.b"), node("dict")), (2, attribute("w"), one)]  # 5, 6
    rows += [
        (1, item("w32"), array("float16", 3, 2)),
        (2, Key("[:, 0]", "[:, 0]", "0", ("[:, 0]",)), one),
        (2, across, one),
    ]
    rows += [(1, Key(".kernel", ".kernel.value", "kernel", (".kernel", ".value")), one)]  # 10, a variable of NNX
    return table("tree", [(0, 0, node("dict")), *rows])


def beside() -> TreeTable:
    """Columns of another tree, as `render(params, mu=mu)` adds them."""
    found = table(
        "p",
        [(0, 0, node("dict")), (1, item("a"), array("float32", 2)), (1, item("b"), array("float32", 3, axes=("seq",)))],
    )
    return found.with_columns(
        found.fact_column("axis", [", ".join(facts.axes) for facts in found.facts]),
        Column("mu.dtype", "mu", ["", "~float32 (2,)", "bfloat16"]),
        Column("mu.norm", "mu norm", np.array([NAN, 1.0, 3.0]), format="number", rollup="given"),
    )


def chains() -> TreeTable:
    """A run of a LoRA, in which a node and its only child are one row; rows 2 and 8 are layers."""
    paths = []
    for layer in range(2):
        at = f"['layers'][{layer}]['mlp']"
        paths += [f"{at}['down']['lora']['a']", f"{at}['up']['lora']['a']", f"{at}['up']['lora']['b'].value"]
    return table_of_paths("params", paths, [array("float32", 4, 4)] * 6, chains=True)


TREES = {
    "model": model,
    "state": state,
    "names": names,
    "stack": stack,
    "printed": printed,
    "beside": beside,
    "chains": chains,
}
