"""What `treeviz.` offers, and the example of each public name, which runs."""

from __future__ import annotations

import inspect
import operator
import re
import textwrap
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shells import ipython

import treeviz
import treeviz.inspector.inspector
import treeviz.views.text.text
from treeviz import differ
from treeviz.analysis import overlay
from treeviz.explainer import explain
from treeviz.inspector import panel, run_log, runs
from treeviz.integrations import treescope
from treeviz.steps.compiles import watch
from treeviz.steps.findings import find
from treeviz.steps.recording import history, recorder
from treeviz.steps.tracing import instrumented, verify

NAMES = [name for name in treeviz.__all__ if callable(getattr(treeviz, name))]


@dataclass
class Quantity:
    unit: str


def example(docstring: str) -> str:
    """The code of a docstring: the paragraphs that are indented by four."""
    paragraphs = docstring.split("\n\n")
    code = [part for part in paragraphs if all(line.startswith("    ") for line in part.split("\n"))]
    return textwrap.dedent("\n\n".join(code))


def surroundings() -> dict[str, Any]:
    """What the examples take for granted."""
    optax = pytest.importorskip("optax")
    params = {"layers": [{"w": jnp.ones((3, 3)), "b": jnp.ones(3)}]}
    x, y = jnp.ones((2, 3)), jnp.zeros((2, 3))

    def loss(params, batch):
        layer = params["layers"][0]
        return jnp.mean((batch[0] @ layer["w"] + layer["b"][None] - batch[1]) ** 2)

    @jax.jit
    def update(params, x, y):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, (x, y)))

    optimizer = optax.adam(1e-3)
    return {
        "tv": treeviz,
        "treeviz": treeviz,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "optax": optax,
        "params": params,
        "new_params": jax.tree.map(lambda leaf: leaf * 2, params),
        "grads": jax.grad(loss)(params, (x, y)),
        "optimizer": optimizer,
        "opt_state": optimizer.init(params),
        "batch": (x, y),
        "x": x,
        "y": y,
        "w": jnp.ones((3, 4)),
        "loss": loss,
        "update": update,
        "Quantity": Quantity,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if name == "explore":
        pytest.importorskip("anywidget")
    code = example(inspect.getdoc(getattr(treeviz, name)) or "")
    assert code, f"{name} has no example: a paragraph of its docstring that is indented by four"
    scope = surroundings()
    if name == "Finding":
        scope["inspector"] = treeviz.GradientInspector()
        scope["inspector"].record(treeviz.measure(grads=scope["grads"]))
    if name == "inspect_gradients":

        def update(params, opt_state, batch):
            optimizer = scope["optimizer"]
            updates, opt_state = optimizer.update(
                jax.grad(scope["loss"])(params, batch), optimizer.init(params), params
            )
            return scope["optax"].apply_updates(params, updates), opt_state

        scope |= {"update": jax.jit(update), "inspector": treeviz.GradientInspector()}
    with ipython() if "register" in name else nullcontext():
        exec(code, scope)
        if name == "register_as_default":
            treeviz.unregister()
    if name == "explore":
        scope["widget"].close()


def methods() -> dict[str, Any]:
    """The public methods and properties that public classes define or inherit from treeviz, each once, by name."""
    found = {}
    for cls in (getattr(treeviz, name) for name in NAMES):
        for name in dir(cls) if inspect.isclass(cls) else ():
            member = inspect.getattr_static(cls, name)
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if not name.startswith("_") and str(getattr(function, "__module__", "")).startswith("treeviz"):
                found.setdefault(function, (f"{cls.__name__}.{name}", inspect.getdoc(getattr(cls, name))))
    return dict(found.values())


def test_every_public_method_says_what_it_is_for_and_its_example_runs(tmp_path, monkeypatch, capsys):
    for library in ("anywidget", "pandas"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    documented = methods()
    assert [name for name, text in documented.items() if not text] == []
    scope = surroundings() | {"pandas": pytest.importorskip("pandas"), "state": SimpleNamespace(step=100)}
    scope["table"] = treeviz.render(scope["params"], stats=True).table
    inspector = scope["inspector"] = treeviz.GradientInspector()
    step, params, x, y = (scope[name] for name in ("update", "params", "x", "y"))
    scope["svi"] = SimpleNamespace(run=lambda *_: jax.jit(step.__wrapped__)(params, x, y))
    scope["key"], scope["update"] = None, inspector.watch(step)
    # tests/cli/test_serve.py starts a process.
    monkeypatch.setattr("treeviz.inspector.served.Server", lambda path, port: SimpleNamespace(close=path.exists))
    examples = {name: code for name, text in documented.items() if (code := example(text))}
    assert {"GradientInspector.record", "GradientInspector.watching", "TreeTable.find"} <= set(examples)
    for name in sorted(examples, key="GradientInspector.reset".__eq__):  # which leaves nothing to show
        exec(compile(examples[name].replace("1000", "3"), name, "exec"), scope)
    scope["widget"].close()


def test_the_api_page_has_every_public_name():
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text("utf-8")
    assert sorted(re.findall(r"^::: treeviz\.(.*)$", page, re.MULTILINE)) == sorted(NAMES)


@pytest.mark.oldest_jax
def test_dir_and_star_offer_the_public_names_and_nothing_else():
    assert [name for name in dir(treeviz) if not name.startswith("_")] == sorted(treeviz.__all__)
    assert all(hasattr(treeviz, name) for name in treeviz.__all__)
    scope: dict[str, Any] = {}
    exec("from treeviz import *", scope)
    assert sorted(set(scope) - {"__builtins__"}) == sorted(treeviz.__all__)
    assert inspect.ismodule(treeviz.views) and inspect.ismodule(treeviz.inspector)


@pytest.mark.parametrize("use_jedi", [False, True])
def test_completion_in_ipython_offers_the_public_names_and_nothing_else(use_jedi):
    completer = pytest.importorskip("IPython.core.completer")
    if use_jedi:
        pytest.importorskip("jedi")
    completions = completer.IPCompleter(namespace={"treeviz": treeviz}, use_jedi=use_jedi)
    completions.use_jedi = use_jedi
    with completer.provisionalcompleter():
        offered = {each.text.removeprefix("treeviz").lstrip(".") for each in completions.completions("treeviz.", 8)}
    assert {name for name in offered if not name.startswith("_")} == set(treeviz.__all__)


PROMISED = {
    "GradientInspector": [
        (lambda: f"at most {recorder.MOST_LATE} inspected steps after the bad one"),
        (lambda: f"uses at most {find._SHARE:.0%} of the time"),
        (lambda: f"The histories of the last {runs.MOST_EARLIER} runs"),
        (lambda: f"sample the {', '.join(ordinals(9))} … inspected step"),
    ],
    "GradientInspector.watch": [(lambda: f"Inspected steps {compared_steps()} and so on are compared")],
    "GradientInspector.explore": [
        (lambda: f"at most {panel.MOST_PER_S} times a second, and updates use at most {panel.SHARE:.0%} of the time"),
    ],
    "GradientInspector.keep": [(lambda: "the last second" if recorder.KEPT_WITHIN_S == 1 else "more")],
    "GradientInspector.log_to": [
        (lambda: f"as many as {run_log.SHARE:.0%} of the time allows"),
        (lambda: "at most ten times a second" if run_log._Wandb.every_s == 0.1 else "more"),
    ],
    "GradientInspector.record_scalars": [
        (lambda: f"up to {history.MOST_NAMES} names, {history.TRACK_BYTES >> 20} MB for each"),
        (lambda: f"The first {history.MOST_IDS:,} are kept"),
    ],
    "CompileWatch": [(lambda: f"The first {watch._MOST_KEPT:,} calls that compiled")],
    "assert_same": [(lambda: f"the first {differ._MOST_LINES}, one line each")],
    "explain_errors": [(lambda: "more than a second" if explain.TIME_LIMIT_S == 1 else "more")],
    "overlay": [(lambda: f"at most {overlay._MOST:,} leaves that do not fit")],
    "render": [(lambda: f"the first {treescope._MOST_OBJECTS} leaves of types unknown to JAX")],
}


def compared_steps() -> str:
    first, n, growth = verify.AT_CALL, verify.N_CALLS, verify.GROWTH
    return f"{first} to {first + n - 1}, {', '.join(f'{first * growth**i:,}' for i in (1, 2, 3))}"


def ordinals(n: int) -> list[str]:
    """The inspected steps in which parameters are sampled."""
    steps = [1]
    while len(steps) < n:
        steps.append(instrumented.next_sampled(steps[-1]))
    return [f"{step:,}{'st' if step == 1 else 'th'}" for step in steps]


@pytest.mark.parametrize("name", PROMISED)
def test_the_limits_in_a_docstring_are_those_of_the_code(name):
    owner = watch if name == "CompileWatch" else treeviz
    documented = " ".join((operator.attrgetter(name)(owner).__doc__ or "").split()).replace(" %", "%")
    for promise in PROMISED[name]:
        assert promise() in documented


def test_the_questions_name_the_steps_that_are_compared():
    for page in ("faq.md", "guide/gradients.md", "benchmarks.md"):
        text = (Path(__file__).parents[1] / "docs" / page).read_text("utf-8")
        assert f"inspected steps {compared_steps()} and so on" in " ".join(text.split()).replace(
            "Inspected", "inspected"
        )
