"""Count the clicks and keys that it takes to answer sixteen questions about trees, in a real browser.

    python tests/browser/tasks.py

Prints a table; the exit status is 1 where a task fails or takes more than its goal. Nothing is timed: a click counts as
1.2 s and a key as 0.2 s, as in the keystroke-level model (Card, Moran and Newell 1980).
"""

# ruff: noqa: E402 (JAX reads its environment when it is imported)
from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from browser.conftest import ARGUMENTS, CHROMIUM, new_context
from browser.driving import active, copied, labels, opened, settled, status
from browser.fake_kernel import PAGE, FakeKernel
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from playwright.sync_api import sync_playwright
from sample_series import EXPLODES_FROM, layers, run

import treeviz
from treeviz.views.html.page import page as as_page
from treeviz.views.view import View

CLICK_S, KEY_S = 1.2, 0.2
TASKS: list[tuple[str, str, Any]] = []


class Person:
    """Someone at a page, whose clicks, keys and drags are counted."""

    def __init__(self, page):
        self.page = page
        self.clicks = self.keys = self.drags = 0

    def click(self, target, **options):
        self.clicks += 1
        target.click(**options)
        settled(self.page)

    def press(self, *keys: str):
        for key in keys:
            self.keys += 1
            self.page.keyboard.press(key)
        settled(self.page)

    def type(self, text: str):
        self.press(*text)

    def drag(self, start, end):
        self.drags += 1
        self.page.mouse.move(*start)
        self.page.mouse.down()
        self.page.mouse.move((start[0] + end[0]) / 2, end[1])
        self.page.mouse.move(*end)
        self.page.mouse.up()
        settled(self.page)

    @property
    def seconds(self) -> float:
        return CLICK_S * (self.clicks + self.drags) + KEY_S * self.keys


def task(question: str, goal: str, make: Callable[[], str], width: int = 1400):
    """A task: the page that `make` makes, what the decorated function does there, and the most that it may take."""

    def add(act: Callable[[Person], bool]):
        TASKS.append((question, goal, (make, width, act)))
        return act

    return add


def first_rows(page, n: int) -> list[str]:
    return labels(page)[:n]


def params():
    rng = np.random.default_rng(0)

    def layer(i):
        return {"attn": {"kernel": rng.normal(size=(16, 16 + 8 * (i == 5))).astype(np.float32), "bias": np.zeros(16)},
                "mlp": {"kernel": jnp.asarray(rng.normal(size=(16, 32)), jnp.bfloat16)}}  # fmt: skip

    return {"embed": rng.normal(size=(20, 16)).astype(np.float32), "layers": [layer(i) for i in range(12)]}


def of_params() -> str:
    return treeviz.render(params(), name="params").html()


def beside_gradients() -> str:
    return treeviz.render(params(), grads=params(), stats=True, name="params").html()


def with_moments() -> str:
    tree = jax.tree.map(jnp.asarray, params())
    adam = optax.adam(1e-3)
    _, state = adam.update(tree, adam.init(tree), tree)
    return treeviz.render(tree, opt_state=state, stats=True, name="params").html()


def of_ten_thousand() -> str:
    tree = [np.ones(3) for _ in range(10_000)]
    tree[7_654] = np.array([1.0, np.nan, 1.0])
    return treeviz.render(tree, stats=True, name="batch").html()


def of_sharded() -> str:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    put = NamedSharding(mesh, PartitionSpec("data"))
    return treeviz.render({"w": jax.device_put(np.ones((64, 8)), put), "b": np.ones(3)}).html()


def of_equinox() -> str:
    return treeviz.render(eqx.nn.MLP(2, 3, 8, 2, key=jax.random.key(0))).html()


class Buffer:
    """What JAX sees as one leaf."""

    def __init__(self):
        self.items = np.zeros((100, 100), np.float32)


def with_opaque() -> str:
    return treeviz.render({"replay": Buffer(), "step": 3}).html()


def of_a_run() -> str:
    table = layers()
    return as_page(View(table, table.chosen(("bytes",)), series=run(table), depth=9))


def of_equal_layers() -> str:
    return treeviz.render(
        {"layers": [{"w": np.zeros((4, 4)), "b": np.zeros(4)} for _ in range(96)]}, name="params"
    ).html()


@task("the heaviest layer", "1 click", of_params)
def heaviest_layer(person):
    person.click(person.page.locator(".head .bytes"))
    return "[5]" in first_rows(person.page, 3)


@task("the heaviest leaf", "1 click", of_params)
def heaviest_leaf(person):
    person.click(person.page.get_by_role("button", name="Leaves only"))
    return first_rows(person.page, 1) == ["['layers'][5]['attn']['kernel']"]


@task("all bf16 leaves", "5 keys", of_params)
def bf16_leaves(person):
    person.press("Control+f")
    person.type("bf16")
    return status(person.page).endswith("12 matches")


@task("the path of layer 7's kernel", "4 s", of_params)
def path_of_a_kernel(person):
    person.press("Control+f")
    person.type("7/attn/k*")
    person.press("Enter", "ArrowDown")
    copy = copied(person.page, lambda: person.press("Control+c"))
    return copy == "params['layers'][7]['attn']['kernel']"


@task("the NaN among 10,000 leaves", "1 Enter", of_ten_thousand)
def the_nan(person):
    person.press("Control+f")
    person.type("nan")
    person.keys = 0
    person.press("Enter")
    return active(person.page) == "[7654]"


@task("norms of parameters and gradients side by side", "0 clicks", beside_gradients)
def side_by_side(person):
    titles = person.page.locator(".head .number").all_inner_texts()
    return {"rms", "grads rms"} <= set(titles)


@task("the largest Adam moment", "1 click", with_moments)
def largest_moment(person):
    person.click(person.page.locator(".head .cell", has_text="mu rms"), modifiers=["Shift"])
    mu = {
        path: np.sqrt(np.mean(np.square(leaf, dtype=float)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params())
    }
    return first_rows(person.page, 1) == [jax.tree_util.keystr(max(mu, key=mu.__getitem__))]


@task("sharding and bytes on each device", "0 clicks", of_sharded)
def sharding(person):
    said = [person.page.locator(part).inner_text() for part in (".head", ".tree")]
    return "bytes/device" in said[0] and "data" in said[1]


@task("the static fields of a module", "0 clicks", of_equinox)
def static_fields(person):
    return "in_features=2" in settled(person.page).locator(".treeviz .tree").inner_text()


@task("five leaves as a mask", "0 lines of Python", of_params)
def a_mask(person):
    person.press("Control+f")
    person.type("layers/[0-4]/attn/bias")
    person.click(person.page.get_by_role("button", name="Select all matches"))
    person.click(person.page.locator(".tools summary", has_text="Copy"))
    code = copied(person.page, lambda: person.click(person.page.get_by_role("button", name="mask:")))
    return sum(jax.tree.leaves(eval(code, {"jax": jax, "params": params()}))) == 5


@task("which leaf changed", "1 click", lambda: PAGE)
def changed(person):
    tree = params()
    widget = treeviz.explore(tree, name="params")
    kernel = FakeKernel(person.page, widget)
    kernel.show()
    new = jax.tree.map(lambda leaf: leaf, tree)
    new["layers"][7]["attn"]["bias"] = np.ones(16)
    widget.tree = new
    kernel.until(lambda: status(person.page) == "1 changed")
    person.click(person.page.get_by_role("button", name="1 changed"))
    return active(person.page) == "bias" and "[7]" in labels(person.page)


@task("inside an opaque object", "1 click", with_opaque)
def inside(person):
    person.click(person.page.get_by_role("treeitem", name="replay"))
    return "items" in person.page.locator(".detail").inner_text()


@task("what exploded, and when", "1 click", of_a_run)
def exploded(person):
    person.click(person.page.get_by_text("Findings (3)"))
    said = person.page.locator(".finding", has_text="exploding").inner_text()
    return "['layers'][1]['up']" in said and f"{10 * (EXPLODES_FROM + 9)}" in said


@task("zoom to a spike", "1 drag", of_a_run)
def zoom(person):
    area = person.page.locator(".heat-map").bounding_box()
    at = [(area["x"] + part * area["width"], area["y"] + 40) for part in (0.5, 0.7)]
    person.drag(*at)
    return person.page.get_by_role("spinbutton", name="From step").input_value() == "500"


@task("a picture for a colleague", "2 clicks", of_a_run)
def picture(person):
    with person.page.expect_download() as download:
        person.click(person.page.locator(".tools summary", has_text="Export"))
        person.click(person.page.get_by_role("button", name="Picture (PNG)", exact=True))
    return download.value.suggested_filename == "params.png"


@task("96 equal layers, folded", "0 clicks", of_equal_layers)
def folded(person):
    return any("[0…95]" in label for label in labels(person.page)) and len(labels(person.page)) < 10


def most(goal: str) -> Callable[[Person], bool]:
    number, unit = float(goal.split()[0]), goal.split()[1].rstrip("s")
    return {
        "click": lambda person: person.clicks <= number and not person.keys,
        "key": lambda person: person.keys <= number and not person.clicks,
        "Enter": lambda person: person.keys <= number and not person.clicks,
        "drag": lambda person: person.drags <= number and not person.clicks + person.keys,
        "": lambda person: person.seconds <= number,
        "line": lambda person: True,
    }[unit]


def main() -> int:
    n_missed = 0
    print(f"{'task':50} {'goal':18} {'clicks':>6} {'keys':>5} {'drags':>5} {'seconds':>8}")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for question, goal, (make, width, act) in TASKS:
            file = Path(folder, "page.html")
            file.write_text(make(), "utf-8")
            context = new_context(
                browser, viewport={"width": width, "height": 800}, permissions=["clipboard-read", "clipboard-write"]
            )
            person = Person(context.new_page())
            person.page.goto(file.as_uri())
            try:
                opened(person.page, n_views=0)
                is_done = act(person)
            except Exception as error:
                is_done, question = False, f"{question} ({type(error).__name__})"
            is_met = is_done and most(goal)(person)
            n_missed += not is_met
            note = "" if is_met else "not answered" if not is_done else "too many"
            counts = f"{person.clicks:6} {person.keys:5} {person.drags:5} {person.seconds:8.1f}"
            print(f"{question:50} {goal:18} {counts}  {note}")
            context.close()
        browser.close()
    return int(n_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
