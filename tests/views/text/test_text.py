"""The text view: what a terminal shows stands beside the tree that it shows."""

import re
import textwrap
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_trees import TREES, array, item, leaf, node, table
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.facts import Column
from treeviz.tree.series import FindingMark, Series
from treeviz.tree.walk import walk
from treeviz.views.text.terminal import ASCII, UNICODE, display_width
from treeviz.views.text.text import text
from treeviz.views.view import View

ANSI = re.compile(r"\x1b\[\d+m")
GBK = UNICODE._replace(encoding="gbk")


def shown(tree, *names, depth=None, **how):
    return text(View(tree, [tree.columns[name] for name in names], depth=depth), **how)


def expect(expected):
    return textwrap.dedent(expected).strip("\n")


def test_a_model():
    tree = TREES["model"]().with_headline("6 leaves", "3.1 M parameters", "12.1 MB")
    assert shown(tree, "elements", "bytes") == expect("""
        params · 6 leaves · 3.1 M parameters · 12.1 MB
                                              elements     bytes
        params            dict                   3.1 M   12.1 MB  ████████  100 %
        ├─ layers         list                   2.9 M   11.8 MB  ███████▊   98 %
        │  ├─ [0]         Linear               590.6 K    2.4 MB  █▌         20 %  in_features=768, use_bias=True
        │  │  ├─ .weight  float32[768,768]     589.8 K    2.4 MB  █▌         20 %
        │  │  └─ .bias    bfloat16[768]            768    1.5 kB             <1 %
        │  └─ [1]         Linear                 2.4 M    9.4 MB  ██████▎    78 %  in_features=768, use_bias=True
        │     ├─ .weight  float32[768,3072]      2.4 M    9.4 MB  ██████▎    78 %  shared with ['layers'][0].weight
        │     └─ .bias    None
        ├─ h/0/attn       dict                 147.5 K  294.9 kB  ▎           2 %
        │  └─ W           bfloat16[2,768,96]   147.5 K  294.9 kB  ▎           2 %
        ├─ act            function                                                 gelu  nn/functions.py:12
        └─ lr             float 0.003
    """)


def test_a_state_with_everything_that_can_be_wrong():
    assert shown(TREES["state"](), "bytes", "nan", "max", width=90) == expect("""
        state
                                           bytes  nan    max
        state        AdamState            1.3 kB    2  10000
        ├─ .count    int32[]                 4 B    0      7
        ├─ .mu       dict                  144 B    2  10000
        │  ├─ w      float32[4]             16 B    0   -1.5
        │  └─ nan    float16[64]           128 B    2  10000
        ├─ .key      key<fry>[]              4 B
        ├─ .mask     bool[4,4]              16 B    0      1
        ├─ .fft      complex64[1,8]         64 B    0
        ├─ .scale    float8_e4m3fn[1000]  1.0 kB    0   0.25
        ├─ .tangent  float0[3]
        ├─ .hidden   Special                                  holds 2 arrays that JAX cannot see
        ├─ .broken   Node                                     error: ValueError: no
        ├─ .self     Node                                     contains itself
        ├─ .u        uint8[100]            100 B    0    255
        └─ .rest     list                                     … 480 more
    """)


def test_words_that_a_type_gives_up_leave_no_blank_columns_behind():
    values = np.linspace(-1.2345, 2.3456, 64).reshape(8, 8)
    tree = {f"layer_{i}": {"kernel": values - i / 7, "bias": values[0] + i / 7} for i in range(12)}
    whole, narrow = (treeviz.render(tree, stats=True).text(width=width) for width in (200, 70))
    assert "dict · 2 leaves · 576 B each" in whole and "576 B each" not in narrow
    gaps = [re.search(r"(?:leaves|numpy)( +)", line)[1] for line in narrow.split("\n")[3:]]
    assert min(map(len, gaps)) == 2


def test_a_narrow_terminal_gives_up_columns_before_types_and_badges():
    assert shown(TREES["state"](), "elements", "bytes", "leaves", width=50) == expect("""
        state
        state        AdamState · 10 leaves
        ├─ .count    int32[]
        ├─ .mu       dict · 2 leaves
        │  ├─ w      float32[4]
        │  └─ nan    float16[64]
        ├─ .key      key<fry>[]
        ├─ .mask     bool[4,4]
        ├─ .fft      complex64[1,8]
        ├─ .scale    float8_e4m3fn[1000]
        ├─ .tangent  float0[3]
        ├─ .hidden   Special                holds 2 array…
        ├─ .broken   Node                   error: ValueE…
        ├─ .self     Node                   contains itse…
        ├─ .u        uint8[100]
        └─ .rest     list                   … 480 more
        .hidden: holds 2 arrays that JAX cannot see
        .broken: error: ValueError: no
        .self: contains itself
    """)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_name_is_cut_and_no_indentation_lost_while_a_column_stands(width):
    tree = walk({"model": {"decoder": [{"post_attention_layernorm": {"weight_of_all": np.ones(3)}}]}})
    columns = [tree.fact_column(f"number {i}", np.ones(len(tree.facts)), format="number") for i in range(12)]
    _, *lines = text(View(tree, columns), width=width).splitlines()
    assert lines[-1].startswith("            └─ weight_of_all ")
    assert lines[-2].startswith("         └─ post_attention_layernorm  dict")
    # two stand beside a type without its word "numpy"
    assert "".join(lines).count("number") == min(12, max((width - 54) // 10, min(2, (width - 48) // 10)))


def test_sizes_go_before_a_name_is_cut_and_before_a_column_that_was_asked_for():
    tree = walk({f"resnet/~/block_group_0/~/block_{i}/~/batchnorm_0": {"scale": np.ones(3)} for i in range(2)})
    sizes = [tree.fact_column(name, np.ones(len(tree.facts)), format="count") for name in ("elements", "zeros")]
    norms = [tree.fact_column(name, np.ones(len(tree.facts)), format="number") for name in ("min", "max", "rms")]
    titles = {width: shown_titles(tree, [*sizes, *norms], width) for width in (66, 80, 100)}
    assert titles == {66: ["rms"], 80: ["min", "rms"], 100: ["elements", "zeros", "min", "max", "rms"]}
    first = text(View(tree, sizes), width=66).splitlines()
    assert first[2].startswith("├─ resnet/~/block_group_0/~/block_0/~/batchnorm_0  dict") and "elements" not in first[1]


def test_counts_of_nan_and_then_magnitudes_stay_in_a_narrow_terminal():
    tree = walk({"encoder": {"attention": np.ones(3)}})
    names = ("min", "max", "rms", "grads rms", "grads NaN/Inf")
    columns = [tree.fact_column(name, np.ones(len(tree.facts)), format="number") for name in names]
    titles = {width: shown_titles(tree, columns, width) for width in (45, 60, 68, 200)}
    assert titles == {
        45: ["grads", "NaN/Inf"],
        60: ["rms", "grads", "NaN/Inf"],
        68: ["rms", "grads", "rms", "grads", "NaN/Inf"],
        200: " ".join(names).split(),
    }


def test_static_fields_that_do_not_fit_are_left_out_whole():
    fields = ("in_features=768", "use_bias=True", "init='lecun'")
    static = tuple(tuple(field.split("=")) for field in fields)
    tree = table("layer", [(0, 0, leaf("opaque", "Linear", static=static))])
    for n, more in ((3, ""), (2, ", … 1 more"), (1, ", … 2 more")):
        line = f"layer  Linear  {', '.join(fields[:n])}{more}"
        assert shown(tree, width=len(line)).splitlines()[1:] == [line]


def test_no_column_goes_for_a_name_that_is_cut_anyway():
    tree = walk({"x" * 300: np.ones(3), "b": np.ones(2)})
    columns = [tree.fact_column(name, np.ones(len(tree.facts)), format="number") for name in ("min", "max", "rms")]
    for width in (80, 120, 200):
        assert shown_titles(tree, columns, width) == ["min", "max", "rms"]
    assert max(map(len, text(View(tree, columns), width=120).splitlines()[1:])) >= 118, "names have what columns leave"


def shown_titles(tree, columns, width):
    return text(View(tree, columns), width=width).splitlines()[1].split()


def test_names_that_are_too_long_keep_their_ends_and_types_whole_words():
    class ParameterOfALongName(NamedTuple):
        w: np.ndarray

    names = [f"res_net50/~/block_group_0/~/block_{i}/~/batchnorm_{i}" for i in range(3)]
    tree = {name: ParameterOfALongName(np.ones(3)) for name in names}
    lines = treeviz.render(tree).text(width=50, fold=False).splitlines()
    assert [line.split()[1] for line in lines if "batch" in line] == [
        f"res_net5…_{i}/~/batchnorm_{i}" for i in range(3)
    ]
    assert treeviz.render(tree).text(width=50).splitlines()[3].split()[1:3] == ["res_net5…~/batchnorm_2", "×3"]
    _, *lines = treeviz.render([{"w": np.ones(3), "b": np.ones(2)}], stats=True).text(width=36).splitlines()
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_names_that_begin_and_end_alike_are_cut_so_that_they_differ(width):
    names = [f"https://storage.example.com/checkpoints/run_{i}/of/a/model/part-00001-of-00010.npz" for i in range(4)]
    tree = {name: np.ones((i + 1, 2)) for i, name in enumerate(names)} | {"z": 1}
    lines = shown(walk(tree), width=width).splitlines()[2:6]
    assert [re.findall(r"n_(\d)/", line) for line in lines] == [["0"], ["1"], ["2"], ["3"]]


@pytest.mark.parametrize("width", [60, 80, 120, 160, 200])
def test_the_worst_leaves_are_told_apart_and_what_is_said_of_them_is_not_cut(width):
    weights = {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}
    blocks = {f"layers_{i}": {"attention": {"query_projection": weights}} for i in range(4)}
    of = walk({"model": {"the_encoder_of_a_model_with_a_long_name": blocks}}, name="params")
    values = np.where(of.is_leaf, 1.0, np.nan)[:, None] * np.ones(5)
    why = "The norm of its gradient jumped to 9.56e37 at step 3, 2.06e37× its median before, and 6 of 6 leaves did so"
    marks = [FindingMark(row, 3, "spike", f"{why}. Clip it.") for row in np.flatnonzero(of.is_leaf)]
    steps, bad = np.arange(5), np.zeros(values.shape, bool)
    series = Series("grads.norm", "grads norm", steps, steps, values, bad, marks=tuple(marks))
    said = text(View(of, [], series=[series]), width=width).partition("worst leaves")[2]
    assert "".join(said.split()).count("".join(why.split())) == 8 and max(map(len, said.splitlines())) <= width
    leaves = [re.match(r"  (\S+)", line) for line in said.splitlines() if "layers" in line]
    paths = [found[1] for found in leaves if found]
    assert len({*paths}) == 8 and {*re.findall(r"layers_(\d)", "".join(paths))} == {*"0123"}
    assert (paths[0] in {row.keystr for row in of.leaves}) == (width == 200)


def test_a_count_of_nothing_is_a_word_in_the_headline_unless_a_value_was_not_read():
    tree = walk([np.ones(2), 1])
    counts = [("a", [0, 0, 0.0]), ("b c", [0, 0, 0.0]), ("d", [0, np.nan, 0]), ("e", [0, 1, 0.0])]
    columns = [tree.fact_column(name, np.array(levels), format="count") for name, levels in counts]
    headline, titles, *_ = text(View(tree, columns)).splitlines()
    assert headline == "tree · no a, b c: 0" and titles.split() == ["d", "e"]


def test_where_one_of_two_sizes_fits_it_is_the_bytes():
    tree = treeviz.walk({"w": np.ones(3)})
    titles = [shown(tree, "elements", "bytes", width=width).splitlines()[-3] for width in (60, 36)]
    assert [line.split()[:2] for line in titles] == [["elements", "bytes"], ["bytes"]]


def test_a_column_without_a_single_value_is_left_out():
    tree = walk([np.ones(2), 1])
    columns = [
        tree.fact_column(name, levels, format="number") for name, levels in (("a", [np.nan] * 3), ("b", [1, 2, 3]))
    ]
    assert text(View(tree, columns)).splitlines()[1].split() == ["b"]


def test_the_leaves_of_a_node_stand_behind_its_type():
    tree = walk({"layers": [{"w": 1, "b": 2}, {"w": 3, "b": 4}], "norm": {"scale": 1.0}, "shapes": [1, 2]})
    leaves = tree.fact_column("leaves", [facts.leaves for facts in tree.facts], format="count", rollup="sum")
    assert text(View(tree, [leaves])) == expect("""
        tree
        tree         dict · 7 leaves
        ├─ layers    list · 2 · 4 leaves
        │  ├─ [0]    dict · 2 leaves
        │  │  ├─ b   int 2
        │  │  └─ w   int 1
        │  └─ [1]    dict · 2 leaves
        │     ├─ b   int 4
        │     └─ w   int 3
        ├─ norm      dict
        │  └─ scale  float 1.0
        └─ shapes    list · 2 leaves
           ├─ [0]    int 1
           └─ [1]    int 2
    """)


def test_what_does_not_fit_is_counted_where_it_is_missing():
    tree = treeviz.walk({"blocks": [{"b": np.ones(3), "w": np.ones((3, 3))} for _ in range(40)], "step": 7})
    assert shown(tree, "bytes", max_rows=16) == expect("""
        tree · 81 leaves · 480 elements · 3.8 kB · float64 100 %
                                         bytes
        tree        dict                3.8 kB  ████████  100 %
        ├─ blocks   list                3.8 kB  ████████  100 %
        │  ├─ [0]   dict                  96 B  ▎           3 %
        │  │  ├─ b  float64[3] numpy      24 B             <1 %
        │  │  └─ w  float64[3,3] numpy    72 B  ▏           2 %
        │  ├─ [1]   dict                  96 B  ▎           3 %
        │  │  ├─ b  float64[3] numpy      24 B             <1 %
        │  │  └─ w  float64[3,3] numpy    72 B  ▏           2 %
        │  ├─ [2]   dict                  96 B  ▎           3 %
        │  │  ├─ b  float64[3] numpy      24 B             <1 %
        │  │  └─ w  float64[3,3] numpy    72 B  ▏           2 %
        │  ├─ [3]   dict                  96 B  ▎           3 %  … 2 inside
        │  ├─ [4]   dict                  96 B  ▎           3 %  … 2 inside
        │  └─ … 35 more (70 leaves, 3.4 kB)
        └─ step     int 7
    """)


def test_a_depth_closes_what_is_below():
    assert shown(TREES["model"](), depth=1) == expect("""
        params
        params       dict
        ├─ layers    list         … 2 inside
        ├─ h/0/attn  dict         … 1 inside
        ├─ act       function     gelu  nn/functions.py:12
        └─ lr        float 0.003
    """)


def test_ascii_is_nothing_but_ascii():
    tree = table(
        "größe",
        [(0, 0, node("dict")), (1, item("漢字"), array("float32", 2)), (1, item("b"), leaf("string", "str", "'é'"))],
    ).with_headline("1 leaf")
    assert shown(tree, "bytes", glyphs=ASCII) == expect(r"""
        gr\xf6\xdfe - 1 leaf
                                     bytes
        gr\xf6\xdfe      dict          8 B  ########  100 %
        |- \u6f22\u5b57  float32[2]    8 B  ########  100 %
        `- b             str '\xe9'
    """)


def test_wide_characters_are_aligned():
    tree = table(
        "t", [(0, 0, node("dict")), (1, item("漢字"), array("int8", 2)), (1, item("e\u0301"), array("int8", 3))]
    )
    assert shown(tree) == expect("""
        t
        t        dict
        ├─ 漢字  int8[2]
        └─ e\u0301     int8[3]
    """)


def test_a_key_that_is_empty_is_seen():
    assert shown(walk({"": 1})).splitlines()[-1] == "└─ ''  int 1"


def test_a_histogram_is_a_small_chart_of_the_bins_that_are_used():
    tree = table("t", [(0, 0, node("list")), (1, 0, array("int8", 9)), (1, 1, array("int8", 10))])
    bins = np.zeros((3, 64))
    bins[1, 30:34] = 1, 0, 8, 4
    bins[2, 32] = 5
    column = Column("h", "sizes", bins, format="histogram", rollup="sum")
    assert text(View(tree, [column])) == expect("""
        t
                          sizes
        t       list      ▁ █▃
        ├─ [0]  int8[9]   ▁ █▄
        └─ [1]  int8[10]    █
    """)


def test_columns_of_labels_are_shown_unless_every_line_says_it_anyway():
    tree = table("t", [(0, 0, node("list")), (1, 0, array("int8", 9))])
    columns = [tree.fact_column("dtype", ["", "int8"]), tree.fact_column("change", ["", "added"])]
    assert text(View(tree, columns)) == expect("""
        t
                         change
        t       list
        └─ [0]  int8[9]  added
    """)


def test_deep_rows_say_their_level():
    tree = walk_chain(43)
    assert shown(tree).splitlines()[-4:] == [
        "   " * 38 + "└─ [0]  list",
        "   " * 39 + "└─ [0]  list",
        "   " * 40 + "41 └─ [0]  list",
        "   " * 40 + "42 └─ [0]  list  empty",
    ]


def test_a_badge_says_where_the_other_place_is():
    both = np.ones(2)
    loop: list = [1]
    loop.append(loop)
    lines = shown(walk({"a": {"x": both}, "b": both, "loop": loop})).splitlines()
    assert lines[3].endswith("occurs in 2 places")
    assert lines[4].endswith("shared with ['a']['x']")
    assert lines[7].endswith("cycle to ['loop']")


def test_an_opaque_leaf_says_what_it_hides():
    class Special:
        def __init__(self):
            self.arrays = [np.ones(i) for i in range(5)]

    assert (
        shown(walk(Special()))
        .splitlines()[-1]
        .endswith(
            ": .arrays[0] float64[0], .arrays[1] float64[1], .arrays[2] float64[2], …"
            "  inside: arrays=[float64[0], float64[1], float64[2], … 2 more]"
        )
    )


def test_that_all_arrays_have_a_shape_only_is_said_once_and_in_a_mixed_tree_by_each():
    spec = jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    lines = str(treeviz.render({"a": spec, "b": [spec, 1.0]})).splitlines()
    assert lines[0].endswith(" · shape only") and not any("shape only" in line for line in lines[1:])
    lines = str(treeviz.render({"a": spec, "b": np.ones(2)})).splitlines()
    assert [line for line in lines if "shape only" in line] == [line for line in lines if "bfloat16[2]" in line]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (jnp.ones((2, 3)), "float32[2,3]"),
        (jnp.array(1.0), "~float32[]"),
        (np.ones(2, np.int8), "int8[2] numpy"),
        (np.float32(0.5), "float32[] 0.5"),
        (0.1, "float 0.1"),
        (True, "bool True"),
        (None, "None"),
        ((), "tuple  empty"),
        (jax.ShapeDtypeStruct((2,), jnp.bfloat16), "bfloat16[2] shape only"),
        (jax.random.key(0), "key<fry>[]"),
        (np.zeros((3,), jax.dtypes.float0), "float0[3]"),
        ("text", "str 'text'"),
        ("text" * 9, f"str  {'text' * 9!r}"),
        (object(), "object"),
        (jax.tree.structure(1), "*"),
    ],
)
def test_each_kind_of_leaf_says_what_it_is(value, what):
    line = text(View(walk(value), [])).splitlines()[1]
    assert line == f"tree  {what}"


# What holds for every tree


def walk_chain(n: int):
    return table("deep", [(0, 0, node("list")), *((depth, 0, node("list")) for depth in range(1, n))])


def trees():
    yield from (make() for make in TREES.values())
    yield walk({"漢字" * 20: {"x" * 150: np.ones(3), "y": ["long " * 30] * 3}, "b": [{"c": None}] * 30})
    yield walk_chain(60)


@pytest.mark.parametrize("width", [1, 7, 20, 33, 40, 57, 80, 100, 200])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII, GBK], ids=["unicode", "ascii", "gbk"])
def test_no_line_is_wider_than_the_terminal(width, glyphs):
    for tree in trees():
        for max_rows in (None, 10):
            lines = text(
                View(tree, [*tree.columns.values()]), width=width, max_rows=max_rows, glyphs=glyphs
            ).splitlines()
            assert max(map(display_width, lines)) <= width


@pytest.mark.parametrize("width", [None, 60, 100])
def test_colours_change_nothing_but_the_colour(width):
    for tree in trees():
        columns = [*tree.columns.values()]
        plain = text(View(tree, columns), width=width, max_rows=12)
        coloured = text(View(tree, columns), width=width, max_rows=12, color=True)
        assert "\x1b" not in plain
        assert "\x1b" in coloured
        assert [line.rstrip() for line in ANSI.sub("", coloured).splitlines()] == plain.splitlines()


def test_every_row_has_a_line_and_they_are_in_order():
    for tree in trees():
        lines = text(View(tree, [])).splitlines()[-len(tree) :]
        for row, line in zip(tree, lines, strict=True):
            assert (row.label or row.keystr) in line
            assert row.depth > 40 or len(re.match(r"[│├└─ ]*", line)[0]) >= 3 * row.depth


def test_the_tree_can_be_read_back_from_its_indentation():
    tree = TREES["model"]()
    above, parents = [], []
    for i, line in enumerate(shown(tree).splitlines()[1:]):
        depth = len(re.match(r"[│├└─ ]*", line)[0]) // 3
        parents.append(above[depth - 1] if depth else -1)
        above[depth:] = [i]
    assert parents == tree.parent.tolist()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_strange_tree_is_shown_in_printable_lines_that_fit(name):
    tree = treeviz.walk(SAMPLES[name]())
    columns = [*tree.columns.values()]
    whole = text(View(tree, columns))
    assert whole.count("\n") >= len(tree)
    assert all(line.isprintable() for line in whole.split("\n"))
    whole.encode()
    for glyphs, encoding in (UNICODE, "utf-8"), (GBK, "gbk"), (ASCII, "ascii"):
        lines = text(View(tree, columns), width=80, max_rows=40, glyphs=glyphs).split("\n")
        assert max(map(display_width, lines)) <= 80
        assert len(lines) <= 58  # of them a headline of some lines, the titles, and 12 of badges that had no room
        "".join(lines).encode(encoding)


def test_nothing_that_a_key_or_a_value_says_breaks_its_line():
    hostile = ["\n", "\x1b[31m", "\r", "\u202e", "\x00", "\ud800", "\t", "\u2028", "</pre>"]
    tree = walk({key: key for key in hostile}, name="a\nb")
    shown_text = text(View(tree, []), width=80)
    assert len(shown_text.splitlines()) == 2 + len(hostile)
    assert all(line.isprintable() for line in shown_text.splitlines())
    shown_text.encode()


def test_a_tree_of_20_000_levels_takes_lines_of_bounded_length():
    lines = shown(walk_chain(20_000), width=100).splitlines()
    assert len(lines) == 20_001
    assert max(map(len, lines)) <= 100


def test_looking_does_not_change_the_table():
    tree = TREES["state"]()
    before = {name: str(column.values.tolist()) for name, column in tree.columns.items()}
    first = text(View(tree, [*tree.columns.values()]), max_rows=5)
    assert text(View(tree, [*tree.columns.values()]), max_rows=5) == first
    assert all(str(column.values.tolist()) == before[name] for name, column in tree.columns.items())


def test_the_column_that_was_asked_for_stays_beside_long_names_and_what_is_wrong():
    layer = {"attention_output_projection_kernel_0123": np.ones((32, 64)), "b": np.ones(64)}
    overlaid = treeviz.overlay(({"layer": 0, "c": None},), ({"layer": layer, "c": np.ones(3)},))
    lines = overlaid.text(width=80).splitlines()
    assert [line.split() for line in lines if "in_axes" in line] == [["in_axes"]]
    assert any(line.split()[-1] == "None" for line in lines)
    assert all(len(line) <= 80 for line in lines if "─" in line)


def test_a_diff_of_several_trees_has_the_column_of_each_beside_long_names():
    name = "transformer_decoder_block_attention_q1"
    first = {"layers": [{name: {"kernel": np.ones((4, 4)), "bias": np.zeros(4)}} for _ in range(2)]}
    second, third = ({"layers": [{name: {**layer[name]}} for layer in first["layers"]]} for _ in range(2))
    second["layers"][0][name]["kernel"] = np.zeros((4, 4))
    third["layers"][1][name]["bias"] = jnp.ones(4, jnp.bfloat16)
    lines = treeviz.diff(first, second, third).text(width=80).splitlines()
    assert [line.split() for line in lines if "  tree " in line] == [["tree", "1", "tree", "2"]]
    assert any("python type · d" in line for line in lines) and all(len(line) <= 80 for line in lines)
