"""Minify and pack the front end of pages as treeviz/views/html/assets/ has it now: python .ci/pack_pages.py"""

import minify  # the package tdewolff-minify
from zopfli.zlib import compress

from treeviz.views.html.bundle import in_characters, packed_file, readable_page_module, stamp

for series in (False, True):
    readable = readable_page_module(series=series)
    # In a function of its own all names can be shortened.
    minified = minify.string("application/javascript", f"(() => {{{readable}}})()")
    deflated = compress(minified.encode(), numiterations=30)[2:-4]  # without what zlib puts around it
    packed_file(series=series).write_text(f"{stamp(readable)}\n{in_characters(deflated)}", "utf-8")
