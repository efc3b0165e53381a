"""What README.md shows: its text is what `render` writes, its code runs, and its commands install what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_public_names import surroundings

import treeviz as tv

HOUSE = Path(__file__).parents[1]
README = (HOUSE / "README.md").read_text("utf-8")
TEXTS = re.findall(r"```text\n(.*?)\n```", README, re.DOTALL)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the text names the device, and its last digits")
def test_the_text_is_what_render_writes():
    optimizer = pytest.importorskip("optax").adam(1e-3)
    params = {
        "encoder": {"bias": jnp.zeros(64), "kernel": jnp.ones((128, 64))},
        "head": {"bias": jnp.zeros(10), "kernel": jnp.ones((64, 10), jnp.bfloat16)},
    }
    grads = jax.tree.map(lambda p: p * 0.01, params)
    _, opt_state = optimizer.update(grads, optimizer.init(params))
    grads["head"]["bias"] = grads["head"]["bias"].at[3].set(jnp.nan)
    assert TEXTS[0] == tv.render(params, name="params", grads=grads, opt_state=opt_state, stats=True).text(width=100)


def test_the_text_of_a_comparison_is_what_diff_writes():
    layers = [{"w": jnp.ones((4, 4)), "b": jnp.zeros(4)} for _ in range(12)]
    before = {"layers": layers, "head": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
    changed = {**layers[7], "w": layers[7]["w"].at[2, 1].add(1e-3)}
    after = {
        "layers": [*layers[:7], changed, *layers[8:]],
        "head": {"weight": jnp.ones((3, 2)), "bias": jnp.ones(2, jnp.bfloat16)},
    }
    assert TEXTS[1] == tv.diff(before, after).text(width=100)


def test_the_code_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("anywidget")
    scope = surroundings() | {"equinox": pytest.importorskip("equinox")}
    scope |= {"restored": jax.tree.map(jnp.copy, scope["params"])}
    scope |= {"model": scope["params"], "state": {"params": scope["params"], "opt_state": scope["opt_state"]}}
    scope["writer"] = lambda step, numbers: None
    monkeypatch.chdir(tmp_path)
    np.savez("params.npz", w=np.ones(3))
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(re.sub(r"\b[14]000\b", "4", code), scope)
    assert len(scope["inspector"].history) == 8 and len(scope["widget"].selected) == 1
    assert (tmp_path / "state.html").exists() and (tmp_path / "run.treeviz").exists()
    scope["widget"].close()


def test_the_commands_install_what_the_project_defines():
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = re.findall(r"^oldest=(.*)$", (HOUSE / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert "install '.[test]'" in README and "test" in project["optional-dependencies"]
    assert f"Python {project['requires-python'].removeprefix('>=')} or later, and jax {oldest[0]} or later" in README
    assert f"jax>={oldest[0]}" in project["dependencies"]
    assert "treeviz" in project["scripts"]
