"""The plugin: trees are displayed without a call, and everything else as before."""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shells import ipython

import treeviz
from treeviz.plugin.shown import is_shown

pytest.importorskip("IPython")
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
    "a long list of numbers": list(range(100_000)),
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


@pytest.fixture
def shell():
    with ipython() as shell:
        yield shell
        treeviz.unregister()


def shown(shell, value) -> tuple:
    """What a cell shows, without the identifiers that are new each time."""
    data, metadata = shell.display_formatter.format(value)
    return {kind: re.sub(r"[0-9a-f]{8,}|\d{6,}", "", text) for kind, text in data.items()}, metadata


def is_ours(data: dict) -> bool:
    return "treeviz" in data.get("text/html", "")


@pytest.mark.parametrize("name", SHOWN)
def test_a_tree_is_shown(name):
    assert is_shown(SHOWN[name])


def test_trees_are_displayed_from_loading_to_unloading_and_all_else_as_before(shell):
    both = SHOWN | AS_BEFORE
    plain = {name: shown(shell, value) for name, value in both.items()}
    magics = {kind: set(of) for kind, of in shell.magics_manager.magics.items()}
    shell.run_line_magic("load_ext", "treeviz")
    shell.run_line_magic("load_ext", "treeviz")
    treeviz.register_as_default()  # which is the same
    assert all(is_ours(shown(shell, value)[0]) for value in SHOWN.values())
    assert {name: shown(shell, value) for name, value in AS_BEFORE.items()} == {name: plain[name] for name in AS_BEFORE}
    shell.run_line_magic("unload_ext", "treeviz")
    assert {name: shown(shell, value) for name, value in both.items()} == plain
    assert {kind: set(of) for kind, of in shell.magics_manager.magics.items()} == magics
    assert "format" not in vars(shell.display_formatter)
    assert not [each for each in shell.configurables if type(each).__name__ == "TreeViz"]


@dataclasses.dataclass
class Unknown:
    """What JAX does not know, and treescope shows."""

    params: object


@pytest.mark.parametrize("is_first", [True, False], ids=["before treescope", "after treescope"])
def test_beside_treescope_trees_are_ours_and_all_else_is_treescopes_with_a_summary_of_each_tree_in_it(
    shell, is_first, monkeypatch
):
    import treescope

    before = treescope.active_renderer.get()
    if is_first:
        monkeypatch.delitem(sys.modules, "treescope")
    treeviz.register_as_default()
    monkeypatch.setitem(sys.modules, "treescope", treescope)
    steps = [treeviz.register_as_default, partial(treescope.basic_interactive_setup, autovisualize_arrays=False)]
    for step in steps if is_first else reversed(steps):
        step()
    assert is_ours(shown(shell, {"w": np.ones(2)})[0])
    assert "treescope" in shell.display_formatter.format({"a": 1})[0]["text/html"]
    params = {"layers": [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4)}, {"w": jnp.ones(3), "b": "x"}], "n": [1, 2]}
    lines = treescope.render_to_text(Unknown(params)).splitlines()
    assert [line.partition("#")[2] for line in lines if "leaves" in line] == [
        " 2 leaves · 16 elements · 64 B",
        " 2 leaves · 3 elements · 12 B",
        " 4 leaves · 19 elements · 76 B",
        " 6 leaves · 19 elements · 76 B",
    ]
    deleted = jnp.ones(4)
    deleted.delete()
    assert "# 2 leaves · 7 elements · 28 B · 1 finding: T121" in treescope.render_to_text([jnp.ones(3), deleted])
    html = treescope.render_to_html([treeviz.render(params)], compressed=False)
    assert html.count("srcdoc=") == 1  # and not once more as the HTML of an object
    treeviz.unregister()
    assert treescope.active_renderer.get() == before
    assert "treescope" in shell.display_formatter.format({"w": np.ones(2)})[0]["text/html"]


def test_where_a_summary_fails_treescope_shows_what_it_shows_without_it_and_one_line_says_so(
    shell, monkeypatch, capsys
):
    import treescope

    plain = treescope.render_to_text({"w": np.ones(2)})
    treeviz.register_as_default()
    monkeypatch.setattr("treeviz.plugin.in_treescope.summaries", lambda *_: 1 / 0)
    assert treescope.render_to_text({"w": np.ones(2)}) == plain
    said = "treeviz: nothing is added to treescope's output, since it failed with ZeroDivisionError: division by zero"
    assert capsys.readouterr().err == f"{said}\n"


def test_what_others_put_before_the_display_stays_when_it_is_removed(shell):
    treeviz.register_as_default()
    ours, seen = shell.display_formatter.format, []
    shell.display_formatter.format = lambda value, **how: (seen.append(value), ours(value, **how))[1]
    treeviz.unregister()
    data, _ = shell.display_formatter.format({"w": np.ones(2)})
    assert len(seen) == 1 and not is_ours(data)


def test_a_failure_falls_back_to_the_display_before_with_one_line(shell, monkeypatch, capsys):
    plain = shown(shell, {"w": np.ones(2)})
    treeviz.register_as_default()
    monkeypatch.setattr("treeviz.views.tree_view.TreeView._repr_mimebundle_", lambda *_, **__: 1 / 0)
    assert shown(shell, {"w": np.ones(2)}) == plain
    assert (
        capsys.readouterr().err
        == "treeviz: no tree is shown, since it failed with ZeroDivisionError: division by zero\n"
    )


def test_the_root_has_the_name_of_the_users_variable_and_settings_are_those_of_config(shell, capsys):
    shell.run_line_magic("load_ext", "treeviz")
    shell.run_cell("import numpy as np\nparams = {'w': np.full(3, 2.0)}")
    assert shown(shell, shell.user_ns["params"])[0]["text/plain"].startswith("params · 1 leaf")
    assert "mean" not in shown(shell, shell.user_ns["params"])[0]["text/plain"]
    shell.run_line_magic("config", "TreeViz.stats = True")
    assert "mean" in shown(shell, shell.user_ns["params"])[0]["text/plain"]
    shell.run_cell("%%tree_errors\nimport jax\njax.tree.map(lambda a, b: a, {'w': 1}, {'v': 1})")
    assert "treeviz: " in capsys.readouterr().out


def test_the_magic_gives_back_a_name_that_was_taken(shell):
    def mine(line):
        return line

    shell.register_magic_function(mine, "line", "tree")
    treeviz.register_as_default()
    assert shell.magics_manager.magics["line"]["tree"] is not mine
    treeviz.unregister()
    assert shell.magics_manager.magics["line"]["tree"] is mine


def test_without_ipython_it_is_said_what_shows_a_tree():
    with pytest.raises(RuntimeError, match=r"there is no IPython here. In a script, treeviz.render\(tree\).show\(\)"):
        treeviz.register_as_default()
