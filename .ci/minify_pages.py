"""Minify the front end of pages as treeviz/views/html/assets/ has it now: python .ci/minify_pages.py"""

import minify  # the package tdewolff-minify

from treeviz.views.html.bundle import minified_page_module, readable_page_module, stamp


def minified(readable: str) -> str:
    """The text below its stamp. In a function of its own all names can be shortened."""
    return f"{stamp(readable)}\n{minify.string('application/javascript', f'(() => {{{readable}}})()')}\n"


if __name__ == "__main__":
    for series in (False, True):
        minified_page_module(series=series).write_text(minified(readable_page_module(series=series)), "utf-8")
