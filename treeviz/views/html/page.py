"""A view as HTML: a fragment for a notebook cell, or a document of its own."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256

from treeviz.views.html.bundle import fallback_text, loader_text, packed_page_module, page_module_text
from treeviz.views.html.characters import in_characters
from treeviz.views.html.escape import Markup, attribute, text
from treeviz.views.html.fit import pack_within
from treeviz.views.html.payload import FORMAT
from treeviz.views.html.static import outline
from treeviz.views.view import View

_KEEP_KEYS = 'data-lm-suppress-shortcuts="true"'  # a notebook does not take the keys of the static rows
_N_IN_TITLE = 3  # a tab shows less: "tree · 148 leaves · 124.4 M elements · 497.8 MB"
# The static rows do not flash up before the view; they stand after a second if there is none, at once without scripts.
_UNTIL_RUN = "@media(scripting){pre{animation:a 1s}@keyframes a{0%,to{display:none}}}"
_SCRIPT = re.compile(r"<script\s*>(.*?)</script\s*>", re.DOTALL | re.IGNORECASE)


def fragment(view: View) -> str:
    """The first rows as static HTML, and the script and data that turn them into the interactive page.

    The static rows go no deeper than `view.depth`. Series are shown as sparklines, a heat map and charts.
    """
    return _host(view, pack_within(view), f"{_KEEP_KEYS} data-treeviz") + _script(view.part)


def page(view: View, *, title: str = "") -> str:
    """The same as a self-contained document.

    Its content security policy allows no request, and no script but the front end and those of `view.values`.

    Args:
      title: Of the document; by default the tree's name, and what its headline begins with.
    """
    policy = f"default-src 'none';style-src 'unsafe-inline';img-src data:;{_script_policy(view)}"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        f"<style>:root{{color-scheme:light dark}}{_UNTIL_RUN}</style>"
    )
    host = _host(view, pack_within(view), "data-page data-treeviz")
    return (
        # HTML needs no tags around its head and its body.
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8">{head}'
        f"<title>{text(title or _title(view))}</title>\n"
        f"<main>{host}</main>{_script(view.part)}</html>\n"
    )


def _title(view: View) -> str:
    return " · ".join((view.table.name, *view.table.headline[:_N_IN_TITLE]))


def fallback(view: View, packed: bytes, *, token: str) -> str:
    """The page that a notebook stores with a widget, shown only if the widget with this token does not appear.

    Args:
      packed: `pack(view)`, which the widget needs as well.
    """
    host = _host(view, pack_within(view, packed), f"{_KEEP_KEYS} data-treeviz-waiting")
    module = packed_page_module(view.part)
    return (
        f'<div data-treeviz-fallback="{attribute(token)}">{host}<script type="text/treeviz-waiting">{module}</script>'
        f'<script type="text/treeviz-loader">{loader_text()}</script><script>{fallback_text()}</script></div>'
    )


def _host(view: View, packed: bytes, attributes: str) -> str:
    """The element that the front end takes over, with the static rows and the packed table.

    The value of the last attribute names the modules it needs; a script without these ignores it.
    """
    needs = f"{FORMAT} {view.part}".strip()
    return (
        f'<div class="treeviz" {attributes}="{needs}">'
        f'{outline(view.brief)}<script type="text/plain">{in_characters(packed)}</script></div>'
    )


@cache
def _script(part: str) -> Markup:
    packed = packed_page_module(part)
    return Markup(f'<script type="text/treeviz">{packed}</script><script type="module">{loader_text()}</script>')


@cache
def _script_hash(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _script_policy(view: View) -> str:
    """Allow the front end and the scripts of `view.values`, whose sandboxed frames inherit the policy."""
    documents = [html for html in (view.values or {}).values() if isinstance(html, str)]
    scripts = dict.fromkeys(script for html in documents for script in _SCRIPT.findall(html) if script)
    builds_functions = any("new Function" in script for script in scripts)
    hashes = map(_script_hash, (loader_text(), page_module_text(view.part), *scripts))
    return " ".join(["script-src", *hashes, *(["'unsafe-eval'"] if builds_functions else [])])
