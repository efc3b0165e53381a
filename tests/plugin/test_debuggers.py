"""Debuggers show trees, arrays and tracers by shape and dtype, and read nothing."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shells import ipython

from treeviz.pdb import Pdb, set_trace

HOUSE = Path(__file__).parents[2]


class Cell:
    """What JAX does not know."""

    def __repr__(self) -> str:
        return "<a cell>"


def said_to(*commands: str, frame=None) -> str:
    """What pdb prints when it is asked in a frame, that of the caller by default."""
    out = io.StringIO()
    debugger = Pdb(stdin=io.StringIO("\n".join([*commands, "continue", ""])), stdout=out, nosigint=True, readrc=False)
    debugger.reset()
    debugger.use_rawinput = False
    debugger.interaction(frame or sys._getframe(1), None)
    return out.getvalue()


def test_pdb_prints_a_tree_as_a_tree_and_all_else_as_before():
    params, cell = {"w": np.ones((3, 4)), "b": np.zeros(4)}, Cell()
    assert params and cell
    said = said_to("p params", "pp params['w'][0]", "params", "p cell", "p [1, 2]", "p missing", "p [params] * 2")
    assert re.findall(r"\(Pdb\) (.+?) · (\d) leaves", said) == [("params", "2"), ("tree", "2"), ("([params] * 2)", "4")]
    assert len(re.findall(r"w +float64\[3,4\] numpy", said)) == 4
    assert "array([1., 1., 1., 1.])" in said and "<a cell>\n" in said and "[1, 2]\n" in said
    assert "*** NameError: name 'missing' is not defined" in said


def test_where_printing_a_tree_fails_pdb_prints_what_it_would_without(monkeypatch, capsys):
    params = {"w": np.ones(2)}
    monkeypatch.setattr("treeviz.plugin.shown.render", lambda *_, **__: 1 / 0)
    assert f"{params}\n" in said_to("p params")
    assert "treeviz: no tree is printed, since it failed with ZeroDivisionError" in capsys.readouterr().err


def test_in_a_jitted_function_tracers_are_shown_and_nothing_is_added_to_its_program():
    said = []

    def loss(params, looks):
        if looks:
            said.append(said_to("p params", "params", "pp [params]"))
        return jnp.sum(params["w"] @ params["x"])

    params = {"w": jnp.ones((3, 4)), "x": jnp.ones(4)}
    plain, looked = (jax.make_jaxpr(lambda p, looks=looks: loss(p, looks))(params) for looks in (False, True))
    assert str(looked) == str(plain)
    assert len(re.findall(r"w +float32\[3,4\] tracer", said[0])) == 3 and "Traced" not in said[0]


def test_an_ipython_shell_debugs_with_trees_until_it_is_unloaded(monkeypatch):
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    with ipython() as shell:
        before = shell.InteractiveTB.debugger_cls
        shell.run_line_magic("load_ext", "treeviz")
        ours = shell.InteractiveTB.debugger_cls
        assert issubclass(ours, before) and ours._msg_val_func is Pdb._msg_val_func
        assert sys.breakpointhook is set_trace
        shell.run_line_magic("unload_ext", "treeviz")
        assert shell.InteractiveTB.debugger_cls is before and sys.breakpointhook is sys.__breakpointhook__


@pytest.fixture(scope="module")
def pydevd(tmp_path_factory):
    """pydevd's own modules, as of the debugger of VS Code and JupyterLab, with our file where the wheel puts it."""
    pytest.importorskip("debugpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", os.environ.copy())
        folder = tmp_path_factory.mktemp("site-packages") / "pydevd_plugins" / "extensions"
        folder.mkdir(parents=True)
        shutil.copy(HOUSE / "treeviz" / "plugin" / "pydevd_plugin_treeviz.py", folder)
        patch.syspath_prepend(folder.parents[1])
        from debugpy._vendored import force_pydevd  # noqa: F401, I001
        from _pydevd_bundle import pydevd_extension_utils, pydevd_suspended_frames, pydevd_xml

        import pydevd_plugins.extensions

        assert str(folder) in pydevd_plugins.extensions.__path__
        patch.setattr(pydevd_extension_utils, "EXTENSION_MANAGER_INSTANCE", pydevd_extension_utils.ExtensionManager())
        handler = pydevd_xml.TypeResolveHandler()
        for module in (pydevd_xml, pydevd_suspended_frames):
            patch.setattr(module, "get_type", handler.get_type)
        patch.setattr(pydevd_xml, "_str_from_providers", handler.str_from_providers)
        yield pydevd_suspended_frames


def pane(pydevd, variables: dict, **how) -> dict[str, str]:
    """The values that the variables pane shows."""
    return {name: variable_of(pydevd, name, value).get_var_data(**how)["value"] for name, value in variables.items()}


def variable_of(pydevd, name, value):
    class Presentation:
        get_presentation = staticmethod(lambda scope: "group")

    debugger = type("PyDB", (), {"variable_presentation": Presentation})
    return pydevd._ObjectVariable(debugger, name, value, lambda variable: None)


def test_a_variables_pane_shows_shapes_and_dtypes_and_reads_no_values(pydevd):
    pandas = pytest.importorskip("pandas")
    array, cell = jnp.ones((3, 4)), Cell()
    trees = {
        "params": {"w": array, "b": np.zeros(4, np.float32)},
        "twice": [array, array],
        "array": array,
        "numpy": np.ones((2, 3)),
        "shape": jax.ShapeDtypeStruct((5,), jnp.int32),
        "key": jax.random.key(0),
    }
    assert pane(pydevd, trees) == {
        "params": "dict · 2 leaves · 16 elements · 64 B · float32 100 % · 48 B on cpu:0 · 16 B in host memory",
        "twice": "list · 2 leaves (1 unique) · 24 elements (12 unique) · 96 B (48 B unique) · float32 100 % · on cpu:0",
        "array": "float32[3,4]",
        "numpy": "float64[2,3] numpy",
        "shape": "int32[5] shape only",
        "key": "key<fry>[]",
    }
    assert array._npy_value is None
    plain = {"n": 3, "text": "x", "list": [1, 2], "none": None, "cell": cell, "dict": {"a": 1}, "set": {1}}
    expected = {"n": "3", "text": "'x'", "list": "[1, 2]", "none": "None", "cell": "<a cell>", "dict": "{'a': 1}"}
    assert pane(pydevd, plain) == expected | {"set": "{1}"}
    frame = pandas.DataFrame({"a": [1]})
    assert "a" in pane(pydevd, {"frame": frame})["frame"].splitlines()[0]  # as debugpy shows it
    assert "w  float32[3,4]" in pane(pydevd, {"p": trees["params"]}, context="repl")["p"]
    assert pane(pydevd, {"p": [np.ones(1)]}, context="clipboard")["p"] == "[array([1.])]"


def test_an_array_and_a_tracer_open_to_what_costs_nothing(pydevd):
    array, seen = jnp.ones((3, 4)), {}

    def opened(x, looks=True):
        if looks:
            children = variable_of(pydevd, "x", x).get_children_variables()
            seen[type(x).__name__] = {child.name: child.get_var_data()["value"] for child in children}
        return x + 1

    opened(array)
    assert array._npy_value is None
    plain, looked = (jax.make_jaxpr(lambda x, looks=looks: opened(x, looks))(array) for looks in (False, True))
    assert str(looked) == str(plain)
    of_array, of_tracer = seen.values()
    assert of_array["shape"] == of_tracer["shape"] == "(3, 4)" and of_array["nbytes"] == "48"
    assert "T" not in of_array and "T" not in of_tracer


def test_while_jax_is_not_imported_as_a_whole_nothing_of_it_is_imported_by_a_debugger(pydevd, monkeypatch):
    monkeypatch.setattr(jax.__spec__, "_initializing", True)
    assert pane(pydevd, {"n": [1], "numpy": np.ones(2)}) == {"n": "[1]", "numpy": "array([1., 1.])"}
