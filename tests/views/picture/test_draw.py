"""The picture of a tree, as SVG and as PNG."""

from __future__ import annotations

import re
import sys
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_series import NAN_FROM, layers, leaf, run
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.series import FindingMark, Series, thinned
from treeviz.tree.text import number_text
from treeviz.views.picture import COLORS, MAX_ROWS, ROW, SCALE, STOPS, Box, Cells, Curve, Line, Text, png, svg
from treeviz.views.tree_view import TreeView

pytestmark = pytest.mark.oldest_jax

SVG = "{http://www.w3.org/2000/svg}"


def texts(written: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(written.encode()).iter(f"{SVG}text")]


def model():
    return {"layers": [{"w": jnp.ones((64, 32)), "b": jnp.zeros(32)} for _ in range(2)], "name": "x", "n": None}


def test_the_picture_shows_every_row_of_a_small_tree_with_what_it_is_and_its_sizes():
    view = treeviz.render(model(), name="model")
    shown = texts(svg(view.picture()))
    for row in view.table:
        assert row.label in shown
    assert shown.count("float32[64,32]") == 2
    assert {"bytes", "elements", "16.6 kB", "4,160", "2,080"} <= set(shown)
    assert "list · 2 · 4 leaves" in shown
    assert any("4,160 elements" in text for text in shown)


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_every_sample_tree_is_well_formed_bounded_and_made_of_shapes_and_text_only(sample):
    view = treeviz.render(sample())
    picture = view.picture()
    written = svg(picture)
    root = ElementTree.fromstring(written.encode("utf-8", "strict"))
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "desc", "style", "text", "rect", "line")
    }
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not any(name.startswith("on") or "href" in name for name in attributes)
    assert picture.height < (MAX_ROWS + 12) * ROW
    assert picture.width < 4000
    assert len(written) < 400_000


def test_no_shape_leaves_the_picture():
    long = {f"{'k' * 300}": jnp.ones((2,) * 20), "deep": model()}
    for _ in range(60):
        long = {"down": long}
    picture = treeviz.render(long, name="n" * 500, stats=True).picture()
    for shape in picture.shapes:
        if isinstance(shape, Line):
            assert min(shape.x1, shape.x2) >= 0 and max(shape.x1, shape.x2) <= picture.width
        elif isinstance(shape, Box):
            assert shape.x >= 0 and shape.x + shape.width <= picture.width
        else:
            width = 7.83 * len(shape.text)  # of DejaVu Sans Mono at 13 pixels
            start = shape.x - width if shape.anchor == "end" else shape.x
            assert start >= 0 and start + width <= picture.width


def test_a_tree_of_many_rows_says_what_is_left_out():
    shown = texts(svg(treeviz.render({f"k{i:05}": i for i in range(10_000)}).picture()))
    assert "k00000" in shown
    assert any(re.fullmatch(r"… 9,9\d\d more \(9,9\d\d leaves\)", text) for text in shown)


def test_badges_stand_in_the_row_that_they_speak_of():
    class Holder:
        def __init__(self):
            self.w = jnp.ones(3)

    picture = treeviz.render({"a": Holder(), "b": 1}).picture()
    (badge,) = (
        shape for shape in picture.shapes if isinstance(shape, Text) and shape.text.startswith("1 hidden array")
    )
    (row,) = (shape for shape in picture.shapes if isinstance(shape, Text) and shape.text == "a")
    assert badge.role == "bad"
    assert badge.y == row.y


def test_every_colour_has_a_dark_counterpart_that_a_media_query_brings():
    written = svg(treeviz.render(model()).picture())
    (style,) = (element.text for element in ElementTree.fromstring(written.encode()).iter(f"{SVG}style"))
    assert style.startswith("@media (prefers-color-scheme:dark){")
    used = set(re.findall(r'class="([a-z]+)"', written))
    assert used <= COLORS.keys()
    for role in used:
        assert f".{role}{{fill:{COLORS[role][1]}}}" in style


def test_two_pictures_of_a_tree_are_the_same_bytes():
    pytest.importorskip("matplotlib")
    first, second = (treeviz.render(model()).picture() for _ in range(2))
    assert svg(first) == svg(second)
    assert png(first) == png(second)


def with_series(n_layers: int = 3, n_columns: int = 100):
    table = layers(n_layers)
    return TreeView(table, table.chosen(("bytes",)), series=run(table, n_columns))


def places_of(picture, key: str) -> list[float]:
    """Where it stands."""
    return [shape.y for shape in picture.shapes if isinstance(shape, Text) and shape.text == key]


def curves_at(picture, y: float, role: str) -> list[Curve]:
    curves = [shape for shape in picture.shapes if isinstance(shape, Curve) and shape.role == role]
    return [curve for curve in curves if y - 15 <= curve.lines[0][0][1] < y - 15 + ROW]


def test_every_row_has_its_last_value_and_a_line_that_goes_as_its_values_did():
    view = with_series()
    series, picture = view.series[0], view.picture()
    assert series.high is not None
    shown = texts(svg(picture))
    assert "grads norm, log scale" in shown and "grads norm at steps 990 to 999 and since steps 0 to 9" in shown
    up = leaf(view.table, "layers/1/up")
    assert number_text(float(series.values[up, -1])) in shown
    y = places_of(picture, "up")[1]
    ((line,),) = [curve.lines for curve in curves_at(picture, y, "accent")]
    xs, ys = np.array(line).T
    high = np.log10(series.high[up])
    columns = np.minimum((np.arange(len(xs)) + 1) * -(-100 // 64), 100) - 1  # the last that a point sums up
    expected = [high[: c + 1][-2:].max() if c else high[0] for c in columns]
    assert np.corrcoef(-ys, expected)[0, 1] > 0.999
    assert (np.diff(xs) > 0).all() and y - 15 < ys.min() and ys.max() < y - 15 + ROW


def test_what_is_not_finite_has_crosses_and_no_line_and_zero_lies_at_the_bottom():
    picture = with_series(4).picture()
    y = places_of(picture, "down")[2]
    (line,), (crosses, _) = curves_at(picture, y, "accent"), curves_at(picture, y, "bad")
    end = max(x for points in line.lines for x, _ in points)
    assert end < min(x for points in crosses.lines for x, _ in points) + 5
    assert len(crosses.lines) >= 10
    (zero,) = curves_at(picture, places_of(picture, "bias")[0], "accent")
    assert len({height for points in zero.lines for _, height in points}) == 1


def test_findings_are_badges_and_of_a_closed_node_a_number():
    shown = texts(svg(with_series(4).picture()))
    assert f"nonfinite at steps {10 * NAN_FROM} to {10 * NAN_FROM + 9}" in shown
    view = with_series(4)
    shallow = texts(svg(TreeView(view.table, [], depth=1, series=view.series).picture()))
    assert "⚠3" in shallow


@pytest.mark.parametrize("n_columns", [1, 2, 7, 1000])
def test_a_picture_with_series_is_well_formed_bounded_and_stays_inside(n_columns):
    view = with_series(40, max(n_columns, 70))
    view = TreeView(view.table, [], series=[thinned(each, n_columns) for each in view.series])
    picture = view.picture()
    written = svg(picture)
    tags = {element.tag for element in ElementTree.fromstring(written.encode()).iter()}
    assert tags == {SVG + tag for tag in ("svg", "title", "desc", "style", "text", "rect", "line", "path")}
    assert len(written) < 400_000
    for curve in (shape for shape in picture.shapes if isinstance(shape, Curve)):
        points = np.array([point for line in curve.lines for point in line])
        assert np.isfinite(points).all() and all(len(line) > 1 for line in curve.lines)
        assert (points >= 0).all() and (points <= [picture.width, picture.height]).all()
    assert svg(view.picture()) == written


def test_the_png_has_the_sparklines_in_their_colours():
    pytest.importorskip("matplotlib")
    view = with_series()
    picture = view.picture()
    image = pixels(png(picture))[..., :3]
    for role in ("accent", "bad"):
        color = np.array([int(COLORS[role][0][i : i + 2], 16) for i in (1, 3, 5)]) / 255
        curve = next(shape for shape in picture.shapes if isinstance(shape, Curve) and shape.role == role)
        points = np.array([point for line in curve.lines for point in line]) * SCALE
        (left, top), (right, bottom) = points.min(axis=0) - 2, points.max(axis=0) + 2
        part = image[int(top) : int(bottom), int(left) : int(right)]
        assert (abs(part - color).max(axis=-1) < 0.1).sum() > 20


def test_an_inspector_draws_its_series(tmp_path):
    inspector = treeviz.GradientInspector()
    for step in range(5):
        inspector.record(treeviz.measure(grads={"a": np.ones(2) * step, "b": np.ones(1)}), step)
    shown = inspector.save(tmp_path / "x.svg").read_text()
    assert shown.count('class="accent-line"') == 3 and "grads norm at step 4 and since step 0" in shown


def pixels(data: bytes) -> np.ndarray:
    image = pytest.importorskip("matplotlib.image")
    return image.imread(BytesIO(data))


def test_the_png_shows_the_same_lines_as_the_svg():
    pytest.importorskip("matplotlib")
    picture = treeviz.render(model(), name="model").picture()
    image = pixels(png(picture))
    assert image.shape[:2] == (SCALE * picture.height, SCALE * picture.width)
    paper = image[-1, -1]
    for shape in picture.shapes:
        if isinstance(shape, Text):  # there is ink where the text stands, and it is as wide as the SVG takes it to be
            top, bottom = SCALE * (shape.y - 11), SCALE * (shape.y + 3)
            width = 8 * len(shape.text)
            left = shape.x - width if shape.anchor == "end" else shape.x
            part = image[int(top) : int(bottom), int(SCALE * left) : int(SCALE * (left + width))]
            inked = np.flatnonzero((abs(part - paper).max(axis=-1) > 0.3).any(axis=0))
            assert len(inked) and inked[-1] - inked[0] > 0.5 * part.shape[1] - 16
    assert abs(paper - image[0, 0]).max() == 0


def test_the_users_settings_of_matplotlib_change_nothing():
    matplotlib = pytest.importorskip("matplotlib")
    picture = treeviz.render({"a$x_1$": 1.0}).picture()
    before = png(picture)
    with matplotlib.rc_context(
        {"text.usetex": True, "savefig.bbox": "tight", "font.size": 30, "figure.facecolor": "red"}
    ):
        assert png(picture) == before


def test_characters_that_the_font_lacks_are_escaped_and_no_warning_is_given():
    pytest.importorskip("matplotlib")
    plain, escaped = (pixels(png(treeviz.render({key: 1}).picture())) for key in ("日本", "\\u65e5\\u672c"))
    assert plain.shape[0] == escaped.shape[0]
    assert (plain < 0.5).sum() > 0


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jax-treeviz\[png\]'"):
        treeviz.render([1]).save(tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_of_20000_leaves_looks_at_its_first_rows_only():
    tree = {
        f"block{i}": {f"w{j}": jax.ShapeDtypeStruct((i + 1, j + 1), jnp.float32) for j in range(100)}
        for i in range(200)
    }
    assert len(treeviz.render(tree).picture().shapes) < 20 * MAX_ROWS


# On paper, and for those who cannot see it


def test_a_picture_for_a_paper_is_as_wide_as_asked_with_text_of_seven_points_and_the_columns_that_fit(tmp_path):
    view = treeviz.render(model(), name="model", stats=True)
    wide, narrow = (
        ElementTree.parse(view.save(tmp_path / "x.svg", width=width)).getroot() for width in ("7in", "84mm")
    )
    for root, inches in ((wide, 7), (narrow, 84 / 25.4)):
        assert root.get("width") == f"{inches:.4g}in"
        units = float(root.get("viewBox").split()[2])
        assert 13 * inches * 72 / units == pytest.approx(7, abs=0.02)
        ends = [float(e.get("x")) + (0 if e.get("text-anchor") else 8 * len(e.text)) for e in root.iter(f"{SVG}text")]
        assert max(ends) <= units
    titles = [{text.text for text in root.iter(f"{SVG}text")} for root in (wide, narrow)]
    assert "mean" in titles[0] and "mean" not in titles[1] and {"name", "type", "elements"} <= titles[1]
    with pytest.raises(ValueError, match="width='wide': give the width of a picture on paper, as '84mm'"):
        view.save(tmp_path / "x.svg", width="wide")


def test_a_heat_map_stands_beside_the_rows_in_the_colors_of_the_page():
    table = layers()
    steps, loss = np.arange(1000), np.linspace(1.0, 8.0, 1000, dtype=np.float32)[None]
    loss[:, 600:700] = np.nan
    marks = (FindingMark(0, 500, "spike", "The loss jumped."),)
    scalar = Series("loss", "loss", steps, steps, loss, np.isnan(loss), log=False, marks=marks)
    view = TreeView(table, table.chosen(["bytes"]), series=run(table), depth=9, scalars=[scalar])
    picture = view.picture()
    up, down, bias = (leaf(table, f"layers/{path}") for path in ("1/up", "2/down", "0/bias"))
    strips = {}
    for shape in picture.shapes:
        if isinstance(shape, Cells):
            for x, y, _, height in shape.rectangles:
                if height == ROW - 2:
                    strips.setdefault(y, []).append((x, STOPS.split().index(shape.color[1:])))
    tops = sorted(strips)
    rows = [row for row in range(len(table)) if row != bias]
    assert len(tops) == len(rows), "zeros are a line"
    cells = {row: sorted(strips[top]) for row, top in zip(rows, tops, strict=True)}
    assert cells[up][-1][1] == len(STOPS.split()) - 1, "it explodes"
    assert cells[down][-1][0] < cells[up][-1][0], "it is NaN to the end"
    text = (Path(treeviz.__file__).parent / "views/html/assets/series/colors.js").read_text("utf-8")
    assert f'VIRIDIS = "{STOPS}"' in text
    style = (Path(treeviz.__file__).parent / "views/html/assets/tree/tree.css").read_text("utf-8")
    for role, colors in COLORS.items():
        name = {"paper": "background", "ink": "text"}.get(role, role)
        assert re.findall(rf"--{name}: .*?(#\w+)\)*;", style)[:2] in ([*colors], ["#fff", colors[1]]), role
    assert "A heat map shows the grads norm of each row over steps 0 to 999, from" in picture.description
    assert "Curves above it show loss (last 8, 1 … 8)." in picture.description
    assert {"loss", "8", "1 … 8"} <= set(texts(svg(picture)))
    curve, crosses, *_ = [shape for shape in picture.shapes if isinstance(shape, Curve)]
    (start, *_, before), (after, *_, end) = curve.lines
    left, width = min(x for x, _ in strips[tops[0]]), 256
    assert [round((x - left) / width, 2) for x, _ in (before, after, end)] == [0.6, 0.71, 1.0], "of 8 steps each"
    assert start[1] - end[1] == 24 and crosses.role == "bad" and len(crosses.lines) > 2
    (mark,) = [shape for shape in picture.shapes if isinstance(shape, Line) and shape.role == "bad"]
    assert (mark.x1 - left) / width == pytest.approx(0.5, abs=0.01)


def test_what_is_to_be_seen_is_said_in_words_in_both_formats(tmp_path):
    view = treeviz.diff({"a": np.ones(3), "b": 1}, {"a": np.zeros(3)})
    root = ElementTree.parse(view.save(tmp_path / "diff.svg")).getroot()
    assert root.get("role") == "img" and root[0].tag == f"{SVG}title" and root[1].tag == f"{SVG}desc"
    assert root[1].text.startswith("2 differences: 1 missing, 1 value. 3 of 3 rows of a tree")
    assert root[1].text.endswith("a: value: 1 → 0 (at [0]); b: only in the first")
    image = pytest.importorskip("PIL.Image").open(view.save(tmp_path / "diff.png", width="84mm"))
    assert image.text == {"Title": root[0].text, "Description": root[1].text}
    assert image.width / image.info["dpi"][0] == pytest.approx(84 / 25.4, abs=0.01)
