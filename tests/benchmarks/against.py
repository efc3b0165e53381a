"""What pages of two checkouts cost Chromium: CPU time of its main thread, the least of some pairs that take turns.

    python tests/benchmarks/against.py 5872c3a

The first table is of pages as they open; which rows are open first, and which fold, has changed over time. The second
is of pages that open with the same two levels, and so with as many rows. The third is of equal work throughout: a tree
of 100,000 leaves of which nothing folds, open to the same level, with as many columns, so that the same rows fill the
screen. The pages hold the whole tree.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import PageFigures, open_bench

HERE = Path(__file__).parents[2]
MAKE = """
import sys
from pathlib import Path
file, tree, depth, columns, trees = sys.argv[1:]
sys.path.append(trees)
from trees import TREES, UNLIKE
import treeviz
tree = TREES.get(tree, UNLIKE).build()
page = treeviz.render(tree, depth=int(depth) or None, columns=columns.split() or None, whole=True).html()
Path(file).write_text(page, "utf-8")
"""
AS_IT_OPENS = 0
ROWS = (
    ("opening, over a blank page", "ready_s"),
    ("elements", "elements"),
    ("toggle", "toggle_s"),
    ("expand all", "expand_all_s"),
    ("toggle, of a screen full of rows", "toggle_full_s"),
    ("sort by bytes", "sort_s"),
    ("again, the other way", "sort_again_s"),
    ("sort by name", "sort_names_s"),
    ("keystroke in the search", "keystroke_s"),
    ("the slowest one", "slowest_keystroke_s"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="of git: what this checkout is compared with")
    parser.add_argument("--tree", default="numpy-100k", help="its name in trees.py")
    parser.add_argument("--pairs", type=int, default=4)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        archive = subprocess.run(
            ["git", "archive", arguments.revision, "treeviz"], cwd=HERE, check=True, capture_output=True
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as before:
            before.extractall(folder / "before", filter="data")
        print(f"{arguments.tree}, ms of main-thread CPU, least of {arguments.pairs} pairs in turn")
        for title, tree, depth, columns in (
            ("as it opens", arguments.tree, AS_IT_OPENS, ""),
            ("two levels open", arguments.tree, 2, ""),
            ("equal work", "unlike", 3, "bytes host_bytes"),
        ):
            pages = {
                arguments.revision: page(folder / "before", folder / "before.html", tree, depth, columns),
                "now": page(HERE, folder / "now.html", tree, depth, columns),
            }
            compare(title, pages, folder, arguments.pairs)


def page(checkout: Path, file: Path, tree: str, depth: int, columns: str) -> Path:
    command = [sys.executable, "-c", MAKE, str(file), tree, str(depth), columns, str(Path(__file__).parent)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=file.parent)
    return file


def compare(title: str, pages: dict[str, Path], folder: Path, n_pairs: int) -> None:
    measured: dict[str, list[PageFigures]] = {name: [] for name in pages}
    with open_bench(folder) as bench:
        for pair in range(n_pairs):
            for name in list(pages)[:: 1 if pair % 2 else -1]:
                figures = bench.measure(pages[name], "treeviz")
                if figures.trouble:
                    raise SystemExit(f"{name}: {figures.trouble}")
                measured[name].append(figures)
    print(f"\n{title:36}" + "".join(f"{name:>12}" for name in pages) + f"{'ratio':>9}")
    for words, field in ROWS:
        least = [min(getattr(figures, field) for figures in each) for each in measured.values()]
        scale, digits = (1, 0) if field == "elements" else (1e3, 1)
        numbers = "".join(f"{scale * number:12,.{digits}f}" for number in least)
        print(f"{words:36}{numbers}{least[1] / least[0]:9.2f}", flush=True)


if __name__ == "__main__":
    main()
