"""Kinds of values of which half are displayed as trees, and half must stay as they were, whatever displays them.

The tests show them in IPython and in marimo, and the notebooks of the browser tests in theirs.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import treeviz

Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    w: object


@jax.tree_util.register_static
class Static:
    pass


class WithHtml(Model):
    def _repr_html_(self) -> str:
        return "<b>mine</b>"


jax.tree_util.register_dataclass(WithHtml, data_fields=["w"], meta_fields=[])
CYCLE: list = [1]
CYCLE.append(CYCLE)

SHOWN = {
    "a dict of arrays": {"w": np.ones(3)},
    "a list with an array": [1, 2, jnp.ones(3)],
    "a tuple with an array": (np.ones(3), "b"),
    "a named tuple with an array": Point(1, np.ones(2)),
    "a default dict": collections.defaultdict(list, a=[np.ones(2)]),
    "an ordered dict": collections.OrderedDict(a=np.ones(2)),
    "a deque": collections.deque([np.ones(2)]),
    "shapes": {"w": jax.ShapeDtypeStruct((3,), jnp.float32)},
    "a key": {"rng": jax.random.key(0)},
    "an array deep inside": {"a": [{"b": (Point(np.zeros(1), 1),)}]},
    "a registered node": Model(1),
    "a registered node in a list": [Model(1)],
    "a static node": Static(),
    "a partial": jax.tree_util.Partial(sum, 1),
    "a flax state": {"params": {"kernel": jnp.ones((2, 2))}},
}
AS_BEFORE = {
    "None": None,
    "a number": 3,
    "text": "text",
    "an array": np.ones(3),
    "an array of jax": jnp.ones(3),
    "an empty dict": {},
    "a dict of numbers": {"a": 1, "b": [2, 3]},
    "a list of text": ["a", "b"],
    "a long list of numbers": list(range(2_000)),
    "a named tuple of numbers": Point(1, 2),
    "a list that contains itself": CYCLE,
    "a function": partial(sum, 1),
    "a set": {1, 2},
    "a treedef": jax.tree.structure([1]),
    "a tree with a display of its own": WithHtml(1),
    "a view": treeviz.render({"a": 1}),
    "a numpy scalar": np.float32(3),
    "a module": np,
}


def formatted(shell, value) -> dict[str, str]:
    """What a cell of IPython shows, without the identifiers that are new each time; "treescope" is a page of it."""
    data, _ = shell.display_formatter.format(value)
    return {kind: "treescope" if "treescope" in text else _without_ids(text) for kind, text in data.items()}


def formatted_by_marimo(value) -> dict[str, str]:
    """What a cell of marimo shows."""
    from marimo._output.formatting import try_format

    output = try_format(value)
    # A kernel of marimo serves the page in a frame as a file, and of these values only our views have scripts.
    return {output.mimetype: _without_ids(re.sub(r"(?<!\S)\S*/@file/\S+", "treeviz", output.data))}


def is_ours(data: dict[str, str]) -> bool:
    return "treeviz" in data.get("text/html", "")


def wrong_displays(format: Callable[[Any], dict[str, str]], load: Callable, unload: Callable) -> list[str]:
    """The values that are not displayed as they should be before, while and after treeviz displays trees."""
    both = SHOWN | AS_BEFORE
    plain = {name: format(value) for name, value in both.items()}
    wrong = [f"{name} was ours" for name in SHOWN if is_ours(plain[name])]
    load()
    wrong += [f"{name} is not ours" for name, value in SHOWN.items() if not is_ours(format(value))]
    wrong += [f"{name} is another" for name, value in AS_BEFORE.items() if format(value) != plain[name]]
    unload()
    return wrong + [f"{name} stayed another" for name, value in both.items() if format(value) != plain[name]]


def wrong_in_this_notebook() -> list[str]:
    """The same in a notebook that runs: of Jupyter, with treescope off and on, or of marimo."""
    import treescope
    from IPython import get_ipython
    from IPython.utils.capture import capture_output

    shell = get_ipython()
    if shell is None:
        steps = _treescope_without_ipython, treeviz.register_as_default, _treescope_without_ipython
        return wrong_displays(formatted_by_marimo, lambda: [step() for step in steps], treeviz.unregister)
    treeviz.unregister()
    how = partial(formatted, shell), treeviz.register_as_default, treeviz.unregister
    with capture_output():  # what treescope sends while it formats
        wrong = wrong_displays(*how)
        treescope.basic_interactive_setup(autovisualize_arrays=False)
        return wrong + wrong_displays(*how)


def _treescope_without_ipython() -> None:
    """treescope's setup, which (0.1.10) is for IPython alone: in marimo it fails, and changes no display."""
    import treescope

    with contextlib.suppress(AttributeError):
        treescope.basic_interactive_setup(autovisualize_arrays=False)
        raise RuntimeError("treescope can be set up in marimo: try both of its orders")


def _without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8,}|\d{6,}", "", text)
