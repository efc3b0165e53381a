"""Take the picture of README: the page of demos/02_watch_gradients.py in Chromium, light and dark.

    python docs/picture.py

Needs playwright, Pillow, a Chromium and the DejaVu fonts, as the browser tests do; TREEVIZ_CHROMIUM names another one.
"""

import io
import os
import runpy
import tempfile
from pathlib import Path
from shutil import which

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parent
CHROMIUM = os.environ.get("TREEVIZ_CHROMIUM") or which("chromium-headless-shell") or which("chromium")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        os.chdir(folder)
        runpy.run_path(str(DOCS.parent / "demos" / "02_watch_gradients.py"))
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1200, "height": 686}, color_scheme=theme)
            page.goto(Path("gradients.html").absolute().as_uri())
            page.locator(".window .row", has_text="float32[128,128]").click()
            page.mouse.move(0, 0)
            page.wait_for_timeout(1000)
            seen = Image.open(io.BytesIO(page.screenshot()))
            seen.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
                DOCS / f"picture-{theme}.png", optimize=True
            )
        browser.close()
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
