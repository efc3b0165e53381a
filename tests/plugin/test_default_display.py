"""The plugin: trees are displayed without a call, and everything else as before."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from shells import ipython
from thirty_values import SHOWN, formatted, formatted_by_marimo, is_ours, wrong_displays, wrong_in_this_notebook

import treeviz
from treeviz.plugin.shown import is_shown

pytest.importorskip("IPython")


@pytest.fixture
def shell():
    with ipython() as shell:
        yield shell
        treeviz.unregister()


@pytest.mark.parametrize("name", SHOWN)
def test_a_tree_is_shown(name):
    assert is_shown(SHOWN[name])


@pytest.mark.parametrize("beside", ["alone", "beside treescope"])
def test_trees_are_displayed_from_loading_to_unloading_and_all_else_as_before(shell, beside):
    if beside != "alone":
        import treescope

        treescope.basic_interactive_setup(autovisualize_arrays=False)
    magics = {kind: set(of) for kind, of in shell.magics_manager.magics.items()}

    def load() -> None:
        shell.run_line_magic("load_ext", "treeviz")
        shell.run_line_magic("load_ext", "treeviz")
        treeviz.register_as_default()  # which is the same

    unload = partial(shell.run_line_magic, "unload_ext", "treeviz")
    assert wrong_displays(partial(formatted, shell), load, unload) == []
    assert {kind: set(of) for kind, of in shell.magics_manager.magics.items()} == magics
    assert "format" not in vars(shell.display_formatter)
    assert not [each for each in shell.configurables if type(each).__name__ == "TreeViz"]


def test_marimo_displays_trees_and_all_else_as_before(monkeypatch, capsys):
    marimo = pytest.importorskip("marimo")
    from marimo._output import formatting

    monkeypatch.setattr(marimo, "running_in_notebook", lambda: True)
    treeviz.register_as_default()
    treeviz.register_as_default()  # which is the same
    treeviz.unregister()
    assert wrong_in_this_notebook() == [], "also with treescope set up before and after"
    assert "get_formatter" not in vars(formatting.FORMATTERS)
    plain = formatted_by_marimo({"w": np.ones(2)})
    treeviz.register_as_default()
    monkeypatch.setattr("treeviz.views.tree_view.TreeView._repr_html_", lambda self: 1 / 0)
    try:
        assert formatted_by_marimo({"w": np.ones(2)}) == plain
    finally:
        treeviz.unregister()
    said = "treeviz: no tree is shown, since it failed with ZeroDivisionError: division by zero\n"
    assert capsys.readouterr().err == said


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
    assert is_ours(formatted(shell, {"w": np.ones(2)}))
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
    assert "# 2 leaves · 7 elements · 12 B · 1 finding: T121" in treescope.render_to_text([jnp.ones(3), deleted])
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
    monkeypatch.setattr("treeviz.plugin.extension.summaries", lambda *_: 1 / 0)
    assert treescope.render_to_text({"w": np.ones(2)}) == plain
    said = "treeviz: nothing is added to treescope's output, since it failed with ZeroDivisionError: division by zero"
    assert capsys.readouterr().err == f"{said}\n"


def test_where_treescope_has_moved_what_is_extended_trees_are_displayed_and_one_line_says_so(
    shell, monkeypatch, capsys
):
    import treescope

    monkeypatch.setattr(treescope, "active_renderer", object())
    for _ in range(2):
        shell.run_line_magic("load_ext", "treeviz")
        shell.run_cell("1")
    assert is_ours(formatted(shell, {"w": np.ones(2)}))
    shell.run_line_magic("unload_ext", "treeviz")
    said = "treeviz: nothing is added to treescope's output, since it failed with AttributeError: "
    assert capsys.readouterr().err == f"{said}'object' object has no attribute 'get'\n"


def test_what_others_put_before_the_display_stays_when_it_is_removed(shell):
    treeviz.register_as_default()
    ours, seen = shell.display_formatter.format, []
    shell.display_formatter.format = lambda value, **how: (seen.append(value), ours(value, **how))[1]
    treeviz.unregister()
    data, _ = shell.display_formatter.format({"w": np.ones(2)})
    assert len(seen) == 1 and not is_ours(data)


def test_a_failure_falls_back_to_the_display_before_with_one_line(shell, monkeypatch, capsys):
    plain = formatted(shell, {"w": np.ones(2)})
    treeviz.register_as_default()
    monkeypatch.setattr("treeviz.views.tree_view.TreeView._repr_mimebundle_", lambda *_, **__: 1 / 0)
    assert formatted(shell, {"w": np.ones(2)}) == plain
    assert (
        capsys.readouterr().err
        == "treeviz: no tree is shown, since it failed with ZeroDivisionError: division by zero\n"
    )


def test_the_root_has_the_name_of_the_users_variable_and_settings_are_those_of_config(shell, capsys):
    shell.run_line_magic("load_ext", "treeviz")
    shell.run_cell("import numpy as np\nparams = {'w': np.arange(3.0)}")
    assert formatted(shell, shell.user_ns["params"])["text/plain"].startswith("params · 1 leaf")
    assert "mean" not in formatted(shell, shell.user_ns["params"])["text/plain"]
    shell.run_line_magic("config", "TreeViz.stats = True")
    assert "mean" in formatted(shell, shell.user_ns["params"])["text/plain"]
    shell.run_cell("%%tree_errors\nimport jax\njax.tree.map(lambda a, b: a, {'w': 1}, {'v': 1})")
    assert capsys.readouterr().out.count("treeviz: the trees") == 1


def test_loading_offers_to_explain_errors_and_a_setting_does(shell, capsys):
    wrong = "import jax\njax.tree.map(lambda a, b: a, {'w': 1}, {'v': 1})"
    shell.run_line_magic("load_ext", "treeviz")
    assert capsys.readouterr().out == (
        "treeviz: trees are displayed. %config TreeViz.explain_errors = True also explains errors of JAX.\n"
    )
    n_explained = []
    for lines in (
        [],
        ["%config TreeViz.explain_errors = True"],
        ["%%tree_errors\n0"],
        ["%config TreeViz.explain_errors = False"],
        ["%config TreeViz.explain_errors = True", "%unload_ext treeviz"],
    ):
        for line in lines:
            shell.run_cell(line)
        capsys.readouterr()
        shell.run_cell(wrong)
        out = capsys.readouterr().out
        assert "Error in callback" not in out
        n_explained.append(out.count("treeviz: "))
    assert n_explained == [0, 1, 1, 0, 0]


def test_the_magic_gives_back_a_name_that_was_taken(shell):
    def mine(line):
        return line

    shell.register_magic_function(mine, "line", "tree")
    treeviz.register_as_default()
    assert shell.magics_manager.magics["line"]["tree"] is not mine
    treeviz.unregister()
    assert shell.magics_manager.magics["line"]["tree"] is mine


def test_without_ipython_it_is_said_what_shows_a_tree():
    with pytest.raises(
        RuntimeError, match=r"there is no IPython here, and no marimo. In a script, treeviz.render\(tree\).show\(\)"
    ):
        treeviz.register_as_default()
