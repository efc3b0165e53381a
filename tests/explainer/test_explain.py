"""What is said below errors of JAX: the leaves, with their paths. Many errors are from public threads."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from explained import explained, lines_of
from hostile_objects import boom
from jax import lax
from sample_nodes import AdamState, Layer, Validating

import treeviz as tv

needs_new = pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="this JAX keeps the trees elsewhere")
pytestmark = pytest.mark.oldest_jax

params, x = jax.device_put(({"w": np.ones((2, 3)), "b": np.zeros(3)}, np.ones(2)))


class State(NamedTuple):
    params: Any
    step: Any


def pullback(cotangent: Any) -> Any:
    return jax.vjp(lambda p: {"o": x * p["b"][0], "p": p}, params)[1](cotangent)


def of_rules(*cotangents: Any) -> Callable:
    """A function whose rule returns these."""
    function = jax.custom_vjp(lambda p, y: p["w"].sum() * y)
    function.defvjp(lambda p, y: (p["w"].sum() * y, None), lambda _, __: cotangents)
    return function


def of_jvp_rule(tangent: Any) -> Callable:
    function = jax.custom_jvp(lambda p: {"o": p["o"]})
    function.defjvp(lambda primals, _: ({"o": primals[0]["o"]}, tangent))
    return function


def deleted(array: jax.Array) -> jax.Array:
    array.delete()
    return array


def scan(body: Callable, init: Any, xs: Any = None) -> Any:
    return lax.scan(body, init, xs, length=None if xs is not None else 3)


# What fails, and the lines that say why.
FAILURES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "jax#23771: a longer list deep in dicts": (
        lambda: jax.tree.map(lambda *_: 0, {"a": {"b": [1, 2, 3]}}, {"a": {"b": [1, 2, 3, 4]}}),
        ["['a']['b']: length: 3 children → 4 children"],
    ),
    "jax#39297: the field of a named tuple": (
        lambda: jax.tree.map(jnp.add, AdamState(x, params, params), AdamState(x, params, {"w": x})),
        [".nu['b']: only in the first: float32[3]"],
    ),
    "jax#17798: a tuple for a list": (
        lambda: jax.tree_util.tree_map(lambda *_: 0, [params, (x, x)], [params, [x, x]]),
        ["[1]: type: tuple → list"],
    ),
    "jax#12643: all keys that are missing": (
        lambda: jax.tree.map(lambda *_: 0, {"a": 1, "b": 2, "c": 3}, {"a": 1}),
        ["['b']: only in the first: int 2", "['c']: only in the first: int 3"],
    ),
    "equinox#880: a None in one of them": (
        lambda: jax.tree.map(lambda *_: 0, {"a": None, "b": 1}, {"a": x, "b": 1}),
        ["['a']: none: None → float32[2]"],
    ),
    "jax 0.10.2 blames an innocent None": (
        lambda: jax.tree.map(lambda *_: 0, {"a": None, "b": (1, 2)}, {"a": 1, "b": (1,)}, is_leaf=lambda y: y is None),
        ["['b']: length: 2 children → 1 child"],
    ),
    "EasyDeL#279: static data of a node": (
        lambda: jax.tree.map(lambda *_: 0, Layer("a", x, x), Layer("b", x, x)),
        ["the root: static: name = 'a' → 'b'"],
    ),
    "with paths, in the third tree": (
        lambda: jax.tree_util.tree_map_with_path(lambda *_: 0, params, params, {"w": x}),
        ["tree 2: ['b']: only in the first: float32[3]"],
    ),
    "an update of gradients of a part": (
        lambda: jax.tree.map(lambda p, g: p - g, State(params, 0), State({"w": x}, 0)),
        [".params['b']: only in the first: float32[3]"],
    ),
    "jvp: a tangent is missing": (
        lambda: jax.jvp(lambda p: p["w"].sum(), (params,), ({"w": params["w"]},)),
        ["[0]['b']: only in the primals: float32[3]"],
    ),
    "jvp: a tangent of another shape": (
        lambda: jax.jvp(lambda p: p["w"].sum(), (params,), ({**params, "b": x},)),
        ["[0]['b']: shape: (3,) → (2,)"],
    ),
    "vjp: keys of the cotangent": (
        lambda: pullback({"o": x, "q": x}),
        ["['p']: only in the result: dict · 2 leaves", "['q']: only in the cotangent: float32[2]"],
    ),
    "vjp: shapes and dtypes of the cotangent": (
        lambda: pullback({"o": jnp.ones(4), "p": {**params, "b": jnp.ones(3, jnp.int32)}}),
        ["['o']: shape: (2,) → (4,)", "['p']['b']: dtype: float32 → int32"],
    ),
    "linear_transpose": (
        lambda: jax.linear_transpose(lambda p: p["w"], params)({"w": 1.0}),
        ["the root: leaf: float32[2,3] → dict · 1 leaf"],
    ),
    "jacfwd of an integer": (
        lambda: jax.jacfwd(lambda p: p["x"] * p["n"])({"n": 3, "x": 1.0}),
        ["the argument['n']: int 3"],
    ),
    "transposition of trees that are not alike": (
        lambda: jax.tree.transpose(jax.tree.structure([0, 0]), jax.tree.structure((0, 0)), [(1, 2), (1, 2, 3)]),
        ["in [1]: the root: length: 2 children → 3 children"],
    ),
    "transposition of trees that have one more in all": (
        lambda: jax.tree.transpose(jax.tree.structure([0, 0]), jax.tree.structure((0, 0)), [(1, 2, 3)] * 2),
        [f"in [{i}]: the root: length: 2 children → 3 children" for i in range(2)],
    ),
    "transposition: the outer tree": (
        lambda: jax.tree.transpose(jax.tree.structure([0, 0]), jax.tree.structure((0, 0)), [(1, 2)] * 3),
        ["the root: length: 2 children → 3 children"],
    ),
    "device_put: a string": (
        lambda: jax.device_put({**params, "name": "adam", "ids": np.array(["x"])}),
        ["['ids']: <U1[1]", "['name']: str 'adam'"],
    ),
    "grad of integers": (
        lambda: jax.grad(lambda p: p["w"].sum())({"w": x, "step": 3, "ids": jnp.arange(2)}),
        ["the argument['ids']: int32[2]", "the argument['step']: int 3"],
    ),
    "custom_vjp: a rule for a part of the arguments": (
        lambda: jax.grad(of_rules({"w": x}, None), argnums=(0, 1))({"w": x, "b": 1.0}, 2.0),
        ["[0]['b']: only in the arguments: float32[]"],
    ),
    "custom_vjp: a node for a leaf": (
        lambda: jax.grad(of_rules(None, {"y": x}), argnums=(0, 1))({"w": x, "b": 1.0}, 2.0),
        ["[1]: leaf: float32[] → dict · 1 leaf"],
    ),
    "custom_jvp: other keys of the tangents": (
        lambda: jax.jvp(of_jvp_rule({"q": x}), ({"o": x},), ({"o": x},)),
        ["['o']: only in the primals: float32[2]", "['q']: only in the tangents: float32[2]"],
    ),
    "checkpoint of a mode": (
        lambda: jax.checkpoint(lambda p, mode: p["w"])(params, {"mode": "train"}),
        ["[1]['mode']: str 'train'"],
    ),
    "jit of what was donated": (
        lambda: jax.jit(lambda p: p["w"] + 1)({"w": deleted(jnp.ones(5)), "b": x}),
        ["argument 0['w']: float32[5]"],
    ),
    "jit: an array of texts": (
        lambda: jax.jit(lambda s: s["w"])({"w": x, "labels": np.array(["a", None], object)}),
        ["argument 0['labels']: object[2]: convert it to numbers"],
    ),
    "jit: a name in a state": (
        lambda: jax.jit(lambda s: s)({"opt": "adam", "w": x}),
        ["argument 0['opt']: str 'adam': make it static"],
    ),
    "jit: a function in a model": (
        lambda: jax.jit(lambda n, model: model, static_argnums=0)(3, {"act": min, "w": x}),
        ["argument 1['act']: builtin_function_or_method min: make it static, or partition"],
    ),
}
NEW_FAILURES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "vmap: a key that in_axes misspells": (
        lambda: jax.vmap(lambda a, b: 0.0, in_axes=(None, {"w": 0, "bias": None}))(1.0, params),
        ["[1]['bias']: only in the prefix: None", "[1]['b']: only in the tree: float32[3]"],
    ),
    "vmap: an argument of another size": (
        lambda: jax.vmap(lambda p, y: 0.0)({"w": jnp.ones((2, 3)), "b": jnp.ones((3, 3))}, x),
        ["[0]['b']: size: axis 0 has 3 (2 leaves have 2, such as [0]['w'])"],
    ),
    "jax#24406: vmap: an argument by keyword of another size": (
        lambda: jax.vmap(lambda p, q: 0.0, in_axes=({"w": 1, "b": None},))(params, q={"y": x}),
        ["kwargs['q']['y']: size: axis 0 has 2 ([0]['w'] has 3)"],
    ),
    "jax#705: in_axes of another argument": (
        lambda: jax.vmap(lambda a, b: 0.0, in_axes=(0, 1))(jnp.ones((10, 4)), {"u": jnp.ones((10, 2))}),
        ["[1]['u']: size: axis 1 has 2 ([0] has 10)"],
    ),
    "jax#9928: in_axes for two of three arguments": (
        lambda: jax.vmap(lambda a, b, c: 0.0, in_axes=(0, None))(x, x, params),
        ["the root: length: 2 children → 3 children"],
    ),
    "vmap: a name": (
        lambda: jax.vmap(lambda p: 0.0)({"act": "relu", "w": x}),
        ["[0]['act']: str 'relu'"],
    ),
    "scan: a name in the carry": (
        lambda: scan(lambda c, _: (c, None), {"act": "relu", "w": x}),
        ["the initial carry['act']: str 'relu'"],
    ),
    "cond: an object in an operand": (
        lambda: lax.cond(True, lambda *_: 0, lambda *_: 0, x, [x, min]),
        ["[1][1]: builtin_function_or_method min"],
    ),
    "fori_loop: a name in the carry": (
        lambda: lax.fori_loop(0, 3, lambda i, c: c, {"act": "relu", "w": x}),
        ["['act']: str 'relu'"],
    ),
    "vmap: out_axes": (
        lambda: jax.vmap(lambda y: {"y": y}, out_axes={"z": 0})(x),
        ["['z']: in the prefix, but not in the tree", "['y']: in the tree, but not in the prefix"],
    ),
    "jit: in_shardings": (
        lambda: jax.jit(lambda p: p, in_shardings=({"w": None, "c": None},))(params),
        ["[0]['c']: only in the prefix: None", "[0]['b']: only in the tree: float32[3]"],
    ),
    "device_put: a device for each leaf": (
        lambda: jax.device_put(params, {"w": jax.devices()[0]}),
        ["['b']: in the tree, but not in the prefix"],
    ),
    "scan: a carry that gets another dtype": (
        lambda: scan(lambda c, _: ({**c, "h": c["h"].astype(jnp.bfloat16)}, None), {"h": x, "n": x}),
        ["['h']: dtype: float32 → bfloat16"],
    ),
    "scan: a carry that grows": (
        lambda: scan(lambda c, _: (State(c.params, (c.step, 1)), None), State(params, 0)),
        [".step: leaf: int32[] → tuple · 2 leaves"],
    ),
    "brax#228: a reward that gets an axis": (
        lambda: scan(lambda c, _: ({**c, "reward": c["reward"][None]}, None), {"reward": jnp.zeros(()), "done": 0.0}),
        ["['reward']: shape: () → (1,)"],
    ),
    "jax#15178: the same node twice": (
        lambda: scan(lambda c, _: (({**c[0], "b": c[0]["a"]},) * 2, None), ({"a": jnp.array(0)},) * 2),
        ["[0]['b']: only in the other: int32[]", "[1]['b']: only in the other: int32[]"],
    ),
    "scan: None that becomes an array": (
        lambda: scan(lambda c, _: ({"h": x, "mask": x}, None), {"h": x, "mask": None}),
        ["['mask']: none: None → float32[2]"],
    ),
    "scan: a carry of a class that checks its leaves": (
        lambda: scan(lambda c, _: ([c[0], x], None), [Validating(x), 1]),
        ["[1]: shape: () → (2,)"],
    ),
    "scan: lengths of the first axis": (
        lambda: scan(lambda c, _: (c, None), 0, {"a": jnp.ones(3), "b": jnp.ones((3, 2)), "c": x}),
        ["xs['c']: float32[2]"],
    ),
    "while_loop": (
        lambda: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1][None]), (0, x)),
        ["[1]: shape: (2,) → (1, 2)"],
    ),
    "a condition that is an array": (
        lambda: lax.while_loop(lambda c: c["err"] * 2 > 1e-3, lambda c: c, {"err": x, "x": x}),
        ["the result: bool[2]: reduce it, as by .all() or .any()", "it is made of the carry['err']: float32[2]"],
    ),
    "jax#21186: two conditions in place of one": (
        lambda: lax.while_loop(lambda t: (t < 10, True), lambda t: t + 1, 0),
        ["[0] of the result: bool[]", "[1] of the result: bool[]"],
    ),
    "a condition that is a number": (
        lambda: lax.while_loop(lambda c: c[0], lambda c: c, (3, x)),
        ["the result: int32[]: compare it, as by != 0"],
    ),
    "a condition that returns nothing": (
        lambda: lax.while_loop(lambda c: None, lambda c: c, x),
        ["it returns nothing"],
    ),
    "jax#22857: one list of twenty": (
        lambda: lax.while_loop(
            lambda _: False,
            lambda _: {f"roy{i}": [1.0] * (4 if i == 5 else i) for i in range(20)},
            {f"roy{i}": [1.0] * i for i in range(20)},
        ),
        ["['roy5']: length: 5 children → 4 children", "['roy5'][4]: only in the first: float32[]"],
    ),
    "fori_loop with a known end": (
        lambda: lax.fori_loop(0, 3, lambda i, c: {"a": c["a"]}, {"a": x, "b": x}),
        ["['b']: only in the first: float32[2]"],
    ),
    "fori_loop with an end that is traced": (
        lambda: jax.jit(lambda n: lax.fori_loop(0, n, lambda i, c: (c[0], None), (x, x)))(3),
        ["[1]: none: float32[2] → None"],
    ),
    "jax#17663: branches of cond": (
        lambda: lax.cond(True, lambda y: {"y": y, "aux": (y, y)}, lambda y: {"y": y, "aux": (y, None)}, x),
        ["['aux'][1]: none: float32[2] → None"],
    ),
    "branches of cond of other dtypes": (
        lambda: lax.cond(True, lambda y: (y, y), lambda y: (y, y.astype(jnp.int32)), x),
        ["[1]: dtype: float32 → int32"],
    ),
    "branches of switch": (
        lambda: lax.switch(0, [lambda y: [y], lambda y: [y], lambda y: [y[None]]], x),
        ["[0]: shape: (2,) → (1, 2)"],
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_an_error_names_the_leaves(name):
    fail, expected = FAILURES[name]
    lines = lines_of(explained(fail))
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


@needs_new
@pytest.mark.parametrize("name", NEW_FAILURES)
def test_an_error_of_a_loop_or_a_branch_names_the_leaves(name):
    fail, expected = NEW_FAILURES[name]
    assert lines_of(explained(fail)) == expected


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="this JAX differentiates with respect to references")
def test_the_references_are_named_for_which_grad_raises():
    params = {"w": x, "n": 1.0, "state": jax.new_ref(x)}
    gradient = jax.grad(lambda params: params["w"].sum())
    for fail in (gradient, jax.jit(gradient)):
        assert lines_of(explained(lambda fail=fail: fail(params))) == ["the argument['state']: float32[2]"]


def test_the_error_stays_what_it_was_and_its_traceback_has_no_frame_of_jax():
    with pytest.raises(ValueError) as plain:
        jax.tree.map(jnp.add, (1, 2), (1,))
    error = explained(lambda: jax.tree.map(jnp.add, (1, 2), (1,)))
    assert type(error) is type(plain.value) and error.args == plain.value.args
    text = "".join(traceback.format_exception(error))
    assert text.rstrip().endswith("the root: length: 2 children → 1 child") and "/jax/_src/" not in text


def test_jax_is_set_as_it_was_after_the_block_also_where_blocks_are_nested():
    before = jax.config.jax_traceback_filtering
    with tv.explain_errors() as outer, tv.explain_errors():
        assert jax.config.jax_traceback_filtering == "tracebackhide"
    with outer:
        pass
    assert jax.config.jax_traceback_filtering == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_jax_is_set_as_it_was_after_blocks_that_overlap(order):
    before = jax.config.jax_traceback_filtering
    blocks = [tv.explain_errors(), tv.explain_errors()]
    for block in blocks:
        block.__enter__()
    settings = []
    for i in order:
        blocks[i].__exit__(None, None, None)
        settings.append(jax.config.jax_traceback_filtering)
    assert settings == ["tracebackhide", before]


def of_notes(notes: Any) -> type[Exception]:
    return type("Own", (Exception,), {"__notes__": notes})


@pytest.mark.parametrize(
    "cls",
    [
        of_notes(3),
        of_notes(("treeviz: ",)),
        of_notes(property(boom)),
        of_notes(type("Notes", (), {"__iter__": boom})()),
        type("Slots", (Exception,), {"__slots__": ()}),
        type("Unset", (Exception,), {"__setattr__": boom}),
        type("Unread", (Exception,), {"__getattribute__": boom}),
    ],
)
def test_an_error_whose_class_takes_no_note_is_still_the_one_that_is_raised(cls):
    def fail(_: Any) -> None:
        raise error

    error = cls("its message")
    with pytest.raises(cls) as raised, tv.explain_errors():
        jax.tree.map(fail, {"a": 1})
    assert raised.value is error and BaseException.args.__get__(error) == ("its message",)


def test_errors_of_the_user_and_of_other_code_get_no_note():
    class Own(Exception):
        pass

    def fail(_: Any) -> None:
        raise Own

    def of_integers() -> Any:
        return jax.grad(fail, allow_int=True)({"n": 3})

    for call in (lambda: fail(0), lambda: jax.jit(fail)(1), of_integers):
        with pytest.raises(Own) as raised, tv.explain_errors():
            call()
        assert not hasattr(raised.value, "__notes__")
    with pytest.raises(KeyboardInterrupt) as interrupted, tv.explain_errors():
        raise KeyboardInterrupt
    assert not hasattr(interrupted.value, "__notes__")


def test_a_function_is_explained_whenever_it_is_called_and_keeps_its_name():
    @tv.explain_errors()
    def step(grads: Any) -> Any:
        return jax.tree.map(jnp.add, params, grads)

    assert step.__name__ == "step" and step(params)["b"].shape == (3,)
    for _ in range(2):
        with pytest.raises(ValueError) as raised:
            step({"w": x})
        assert lines_of(raised.value) == ["['b']: only in the first: float32[3]"]


def test_what_takes_too_long_is_left_unsaid(monkeypatch):
    import threading

    from treeviz.explainer import explain

    never = threading.Event()
    monkeypatch.setattr(explain, "_explanation", lambda error: never.wait() and "late")
    assert explain.explanation(ValueError("no"), limit_s=0.01) == ""
    never.set()


def test_an_error_of_a_cell_is_explained_below_its_traceback(capsys, monkeypatch):
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactive.InteractiveShell()
    shell.user_ns.update(tv=tv, jax=jax, get_ipython=lambda: shell)
    from treeviz.explainer import explain

    explain._explain_cells(shell)
    explain._explain_cells(shell)
    shell.run_cell("with tv.explain_errors():\n    jax.tree.map(max, {'a': 1}, {'b': 1})")
    shell.run_cell("1 + 1")
    out = capsys.readouterr().out
    assert out.count("treeviz: the trees do not match:\n  ['a']: only in the first: int 1") >= 1
    explain._explain_no_cells(shell)
    monkeypatch.setattr(explain, "_shell", lambda: shell)
    with tv.explain_errors():  # a block is for itself
        assert explain._explain_cell not in shell.events.callbacks["post_run_cell"]
    everywhere = tv.explain_errors()
    with tv.explain_errors():
        assert explain._explain_cell in shell.events.callbacks["post_run_cell"]
    everywhere.stop()
    assert explain._explain_cell not in shell.events.callbacks["post_run_cell"]


PROGRAM = """
import jax
import numpy as np
import pytest

def test_update():
    jax.tree.map(max, {"a": [1, 2]}, {"a": [1, 2, 3]})

LEFT, RIGHT = {"b": [1.0, 2.0], "c": 3.0}, {"b": [1.0, 2.01], "c": 4.0}

def test_leaves():
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0.1), LEFT, RIGHT)

def test_chex():
    pytest.importorskip("chex").assert_trees_all_close(LEFT, RIGHT)

def test_other():
    np.testing.assert_allclose(1, 2)
"""


def test_the_plugin_of_pytest_adds_it_to_the_report_of_a_test(tmp_path):
    (tmp_path / "test_it.py").write_text(PROGRAM)
    command = [
        *pythons.command("jax"),
        "-m",
        "pytest",
        "-q",
        "-p",
        "treeviz.pytest",
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert run.returncode == 1, run.stderr
    assert "the trees do not match:\n  ['a']: length: 2 children → 3 children" in run.stdout
    has_chex = importlib.util.find_spec("chex") is not None
    assert run.stdout.count("- treeviz -") == 2 + has_chex
    assert run.stdout.count("the trees are not the same: 1 difference\n  ['c']: value: 3 → 4") == 1
    assert run.stdout.count("the trees are not the same: 2 differences\n  ['b'][1]: value: 2 → 2.01") == has_chex


def test_numbers_of_numpy_are_arrays_and_integers_have_no_derivative():
    error = explained(lambda: jax.grad(lambda p: p["a"])({"a": np.float32(1), "f": min, "n": np.int64(2)}))
    assert [line.partition(":")[0] for line in lines_of(error)] == ["the argument['f']", "the argument['n']"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_in_a_terminal_a_long_line_is_folded_and_no_key_path_is_cut(stream, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr", stream())
    tree = {"a name that has blanks": [{"the_name_of_a_layer": (1, 2)}]}
    other = {"a name that has blanks": [{"the_name_of_a_layer": [1, 2]}]}
    lines = explained(lambda: jax.tree.map(jnp.add, tree, other)).__notes__[-1].split("\n")
    path = "['a name that has blanks'][0]['the_name_of_a_layer']:"
    if stream is Terminal:
        assert lines[1:] == [f"  {path}", "    type: tuple → list"]
    else:
        assert lines[1:] == [f"  {path} type: tuple → list"]
