"""A picture as PNG, drawn by matplotlib in its own font, DejaVu Sans Mono."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from math import nan
from pathlib import Path

from treeviz.tree.safe_repr import visible
from treeviz.views.picture.shapes import COLORS, FONT, Box, Cells, Curve, Line, Picture, Shape

SCALE = 2  # image pixels per picture pixel, for high-density screens
_POINT = 72 / 100  # points in a pixel of the picture: the figure has 100 pixels an inch


def png(picture: Picture) -> bytes:
    """The picture in light colours. Characters that the font lacks become escape sequences.

    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "save: a PNG is drawn by matplotlib, which is not installed: pip install 'jax-treeviz[png]'. "
            "The same picture as .svg needs nothing."
        ) from error
    # Not pyplot, which would keep the figure. The user's rcParams are not read.
    figure = Figure((picture.width / 100, picture.height / 100), dpi=100 * SCALE, facecolor=COLORS["paper"][0])
    for order, shape in enumerate(picture.shapes):
        artist = _artist(shape, picture.height, order)
        figure.add_artist(artist, clip=False)
    data = BytesIO()
    said = {"Software": None, "Title": visible(picture.title, 2000), "Description": visible(picture.description, 2000)}
    dpi = 100 * SCALE if picture.inches is None else picture.width * SCALE / picture.inches
    FigureCanvasAgg(figure).print_png(data, metadata=said, pil_kwargs={"dpi": (dpi, dpi)})
    return data.getvalue()


def _artist(shape: Shape, height: int, order: int):
    from matplotlib import collections, lines, patches, text
    from matplotlib.transforms import Affine2D

    to_pixels = Affine2D().translate(0, -height).scale(SCALE, -SCALE)
    if isinstance(shape, Cells):
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in shape.rectangles]
        how = {"facecolor": shape.color, "linewidth": 0, "antialiased": False}
        return collections.PolyCollection(corners, transform=to_pixels, zorder=order, **how)
    color = COLORS[shape.role][0]
    if isinstance(shape, Line):
        return lines.Line2D(
            (shape.x1, shape.x2), (shape.y1, shape.y2), color=color, linewidth=_POINT, transform=to_pixels, zorder=order
        )
    if isinstance(shape, Box):
        style = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
        return patches.FancyBboxPatch(
            (shape.x, shape.y),
            shape.width,
            shape.height,
            style,
            facecolor=color if shape.is_filled else "none",
            edgecolor="none" if shape.is_filled else color,
            linewidth=_POINT,
            transform=to_pixels,
            zorder=order,
        )
    if isinstance(shape, Curve):
        points = [point for line in shape.lines for point in (*line, (nan, nan))]  # NaN lifts the pen
        xs, ys = zip(*points, strict=True)
        return lines.Line2D(xs, ys, color=color, linewidth=1.2 * _POINT, transform=to_pixels, zorder=order)
    x, y = shape.x * SCALE, (height - shape.y) * SCALE
    return text.Text(
        x,
        y,
        _drawable(shape.text),
        color=color,
        fontproperties=_font(shape.is_bold),
        horizontalalignment="right" if shape.anchor == "end" else "left",
        verticalalignment="baseline",
        parse_math=False,
        usetex=False,
        wrap=False,
        transform=Affine2D(),
        zorder=order,
    )


def _font_file(is_bold: bool) -> str:
    from matplotlib import get_data_path

    return str(Path(get_data_path(), "fonts", "ttf", "DejaVuSansMono-Bold.ttf" if is_bold else "DejaVuSansMono.ttf"))


@cache
def _font(is_bold: bool):
    from matplotlib.font_manager import FontProperties

    return FontProperties(fname=_font_file(is_bold), size=FONT * _POINT)


def _drawable(content: str) -> str:
    if content.isascii():
        return content
    known = _characters()
    return "".join(c if ord(c) in known else c.encode("unicode_escape", "surrogatepass").decode() for c in content)


@cache
def _characters() -> frozenset[int]:
    """The code points that the font has."""
    from matplotlib.font_manager import get_font

    return frozenset(get_font(_font_file(False)).get_charmap())
