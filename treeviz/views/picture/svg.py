"""A picture as SVG."""

from __future__ import annotations

from treeviz.tree.safe_repr import visible
from treeviz.views.html.escape import attribute
from treeviz.views.html.escape import text as escaped
from treeviz.views.picture.shapes import COLORS, FONT, Box, Cells, Curve, Line, Picture, Shape


def svg(picture: Picture) -> str:
    """The picture as SVG, in light or dark colours as the reader's system has it. It makes no network request."""
    dark = "".join(f".{role}{{fill:{color}}}.{role}-line{{stroke:{color}}}" for role, (_, color) in COLORS.items())
    width, height = str(picture.width), str(picture.height)
    if picture.inches is not None:
        width, height = f"{picture.inches:.4g}in", f"{picture.inches * picture.height / picture.width:.4g}in"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {picture.width} {picture.height}" role="img" xml:space="preserve" font-size="{FONT}" '
        "font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\">",
        f"<title>{escaped(_printable(picture.title))}</title>",
        f"<desc>{escaped(_printable(picture.description))}</desc>",
        f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>",
        *map(_element, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _element(shape: Shape) -> str:
    """The light colours are attributes, which every SVG reader knows; the dark ones need a style sheet."""
    if isinstance(shape, Cells):
        path = "".join(
            f"M{x:.1f} {y:g}h{width:.1f}v{height:g}h-{width:.1f}z" for x, y, width, height in shape.rectangles
        )
        return f'<path d="{path}" fill="{shape.color}"/>'
    light = COLORS[shape.role][0]
    if isinstance(shape, Curve):
        path = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line) for line in shape.lines)
        return f'<path d="{path}" class="{shape.role}-line" stroke="{light}" stroke-width="1.2" fill="none"/>'
    if isinstance(shape, Line):
        places = f'x1="{shape.x1:g}" y1="{shape.y1:g}" x2="{shape.x2:g}" y2="{shape.y2:g}"'
        return f'<line {places} class="{shape.role}-line" stroke="{light}"/>'
    if isinstance(shape, Box):
        places = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
        color = f'class="{shape.role}" fill="{light}"'
        if not shape.is_filled:
            color = f'class="{shape.role}-line" stroke="{light}" fill="none"'
        radius = f'rx="{shape.radius:g}" ' if shape.radius else ""
        return f"<rect {places} {radius}{color}/>"
    how = ' text-anchor="end"' if shape.anchor == "end" else ""
    how += ' font-weight="bold"' if shape.is_bold else ""
    content = escaped(_printable(shape.text))
    return f'<text x="{shape.x:g}" y="{shape.y:g}" class="{attribute(shape.role)}" fill="{light}"{how}>{content}</text>'


def _printable(content: str) -> str:
    """Without control characters, which XML cannot hold even as escapes."""
    return visible(content, 2000)
