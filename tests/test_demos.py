"""Every file in demos/ runs, and shows what it says that it shows."""

from __future__ import annotations

import functools
import json
import os
import re
import runpy
import struct
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import pythons
from browser.conftest import CHROMIUM
from notebooks import HOUSE, check_views, environment, execute, executed, read

DEMOS = HOUSE / "demos"
# two_hosts.py, locate_nan.ipynb and live_training.ipynb are run by a test of their own
SCRIPTS = sorted(DEMOS.glob("[0-9]*.py"))
NOTEBOOKS = sorted(DEMOS.glob("[0-9]*.ipynb"))
IN_LAB = "01_see_a_model.ipynb"  # tests/browser/test_lab.py runs and checks it, where it can
LIBRARIES = ("equinox", "flax", "optax")

HIDE = f"import sys; sys.modules.update(dict.fromkeys({LIBRARIES}))\n"


def run(program: str, folder: Path) -> str:
    command = [*pythons.command("jax"), "-c", program]
    finished = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=folder, env=environment())
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def program(script: Path) -> str:
    return f"import runpy; runpy.run_path({str(script)!r})"


@pytest.fixture(scope="module")
def run_once(tmp_path_factory) -> Callable[[str], tuple[str, Path]]:
    """`run_once(name)` gives what a script has printed, and the folder in which it ran."""

    @functools.cache
    def run_script(name: str) -> tuple[str, Path]:
        folder = tmp_path_factory.mktemp("demo")
        return run(program(DEMOS / name), folder), folder

    return run_script


def test_there_is_a_script_and_a_notebook():
    assert SCRIPTS and NOTEBOOKS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_runs_where_it_can_write(script, run_once):
    run_once(script.name)


def test_see_a_model_says_which_library_is_missing_and_goes_on(tmp_path):
    output = run(HIDE + program(DEMOS / "01_see_a_model.py"), tmp_path)
    for name in ("Equinox", "Flax", "optax"):
        assert f"{name} is not installed: pip install {name.lower()}" in output


def test_see_a_model_shows_a_tree_of_each_library_and_finds_rows_in_it(run_once):
    for library in LIBRARIES:
        pytest.importorskip(library)
    output, folder = run_once("01_see_a_model.py")
    for text in ("mlp · 8 leaves", "Partitioned", "BatchStat", "ScaleByAdamState"):
        assert text in output
    assert [line for line in output.splitlines() if line.startswith("state[")] == [
        f"state['params']['layers'][{i}]['w'] float32 (64, 64)" for i in range(4)
    ]
    assert sorted(os.listdir(folder)) == ["model.html", "model.svg"]


def test_watch_gradients_finds_the_bad_example_and_what_came_of_it(run_once):
    printed, folder = run_once("02_watch_gradients.py")
    output = " ".join(printed.split())
    assert output.startswith("mlp · 6 leaves · 600 steps · step 599 · ")
    (first_bad,) = re.findall(r"nonfinite: 6 of 6 leaves of grads were NaN or infinite at step (\d+)", output)
    assert 400 < int(first_bad) < 410 and re.search(r"had grown \S+-fold since step 40[01]\. ", output)
    assert re.search(r"spike: The norm of grads jumped to \S+ at step 40\d", output)
    assert os.listdir(folder) == ["gradients.html"]
    page = (folder / "gradients.html").read_text("utf-8")
    assert "[1]" in page and "weights" in page and "<script" in page


def norms_on_one_host(script: Path) -> list[float]:
    """Those of the last gradients where one process has all parameters and all examples."""
    demo, rng = runpy.run_path(str(script)), np.random.default_rng(0)
    params, grad = demo["init"](rng), jax.jit(jax.grad(demo["loss_fn"]))
    with jax.numpy_rank_promotion("allow"):
        for _ in range(demo["N_STEPS"]):
            batch = demo["batch"](rng)
            grads, params = grad(params, *batch), demo["update"](params, *batch)
    return [np.linalg.norm(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(grads)]


def test_two_hosts_print_the_same_norms_which_are_those_of_one_host_and_leave_nothing_running(tmp_path):
    script = DEMOS / "two_hosts.py"
    command = [*pythons.command("jax"), str(script)]
    hosts = subprocess.run(  # ends when both have closed its output, or fails
        command, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path, env=environment(), timeout=150
    )
    assert hosts.returncode == 0, hosts.stderr
    said = re.findall(r"^process (\d) holds (\d+) of 32 rows; norms of step 29: (.*)$", hosts.stdout, re.MULTILINE)
    (first, rows, norms), (second, other_rows, other_norms) = said
    assert (first, second) == ("0", "1")
    assert max(int(rows), int(other_rows)) <= 16  # neither has a whole gradient
    assert norms == other_norms
    assert "mlp · 6 leaves · 30 steps · step 29 · 0 findings" in hosts.stdout
    assert os.listdir(tmp_path) == ["gradients.html"]

    assert [float(norm) for norm in norms.split()] == pytest.approx(norms_on_one_host(script), rel=1e-4)


@pytest.mark.filterwarnings("default")  # of the kernel's client, not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_every_view_is_there_as_a_page_and_as_text(path, tmp_path_factory):
    if path.name == IN_LAB and CHROMIUM and all(map(find_spec, ("playwright", "jupyterlab"))):
        return
    check_views(executed(path, tmp_path_factory))


def texts_of(notebook) -> list[str]:
    """What each code cell shows, as text."""
    shown = []
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        outputs = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
        shown.append("".join(outputs))
    return shown


@pytest.mark.filterwarnings("default")
def test_explore_selects_in_python_what_it_shows_and_trains_that_alone(tmp_path_factory):
    for library in ("equinox", "optax"):
        pytest.importorskip(library)
    notebook = executed(DEMOS / "03_explore.ipynb", tmp_path_factory)
    assert "widgets" not in notebook.metadata
    _, trained, view, heard, selected, ablated, replaced, tuned = texts_of(notebook)
    assert 0 < float(re.fullmatch(r"loss (\S+)\n", trained).group(1)) < 0.5
    assert "\nmodel  " in view and "grads rms" in view and "mu rms" in view
    lines = heard.splitlines()
    assert lines[0] == "now at .blocks[0].attention.query_proj.weight"
    assert lines[1].startswith("True (32, 32) ")
    assert "model.blocks[1].attention.output_proj.weight" in selected
    whole, without = map(float, re.search(r"loss (\S+), without what is selected (\S+)\n", ablated).groups())
    assert without > 2 * whole
    assert replaced == "True\n"
    changed = [".blocks[0].attention.output_proj.weight", ".blocks[1].attention.output_proj.weight"]
    assert tuned.splitlines() == changed


@pytest.mark.filterwarnings("default")
def test_what_is_wrong_names_every_mismatch_where_jax_names_one(tmp_path_factory):
    texts = texts_of(executed(DEMOS / "04_what_is_wrong.ipynb", tmp_path_factory))
    assert ".mu['b']: type: tuple → list\n.nu['b']: only in the other: float32[4]" in texts
    assert "['b']: length: 2 children → 3 children" in texts
    for text in (
        "T100 error at ['layer']: 1 hidden array (48 B): Special is not registered",
        "T220 info at ['w']: a tuple of 2 integers is a node with as many leaves",
        "T114 warning at ['m']: cannot be unflattened with object()",
        "[1]['k3']: only in the prefix: 0 (did you mean 'k2'?)",
        "(did you mean in_axes=({'k1': 0, 'k2': 0},)?)",
        "True ← ['layers']",
        "the trees to transpose do not match:\n  in [1]: ['x']: length: 2 children → 3 children",
        "48 B of 64 B donated are reused · 1 donated, not reused · 2 never read",
        "the function that jax.tree.map calls raised:\n  ['b']: float32[4] and float32[5]",
        "the arrays of the call that failed:\n  x: float32[5,8]\n  params['layers'][1]['w']: float32[4,2]",
    ):
        assert any(text in each for each in texts), text
    (view,) = (text for text in texts if text.startswith("tree · 4 differences"))
    assert "NaN: 0 NaN → 1 NaN (the first at [2, 1])" in view and "11 leaves are the same" in view


@pytest.mark.filterwarnings("default")
def test_checkpoints_find_the_layer_that_was_not_trained_and_where_a_model_does_not_fit(tmp_path_factory):
    texts = texts_of(executed(DEMOS / "05_checkpoints.ipynb", tmp_path_factory))
    assert "never trained: [\"['layers'][2]['bias']\", \"['layers'][2]['kernel']\"]\n" in "".join(texts)
    assert any("7 leaves moved since step 0 · 2 leaves never moved" in text for text in texts)
    assert "only in the other" in texts[-2] and "1 length, 2 extra" in texts[-2]
    assert "same values under other names: 8 of 9 arrays; largest gap: ['layers'][3]['kernel']" in texts[-1]


WHOLE_AT_STEP_40 = """
bad = inspector.history.values("grads", "nonfinite", first=40, until=40).latest[0]
print(*(path for path, n in zip(inspector.history.sources["grads"].paths, bad, strict=True) if not n))
"""


@pytest.mark.filterwarnings("default")
def test_locate_nan_names_the_step_the_leaves_and_the_operation_line_and_cell(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    notebook = read(DEMOS / "locate_nan.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell(WHOLE_AT_STEP_40))
    notebook = execute(notebook, tmp_path)
    check_views(notebook)
    codes = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    (cell,) = (i for i, code in enumerate(codes, 1) if "def rms_norm" in code and "jnp.sqrt" in code)
    (line,) = (i for i, text in enumerate(codes[cell - 1].splitlines(), 1) if "jnp.sqrt" in text)
    _, _, _, trained, view, found, located, origin, repaired, whole = texts_of(notebook)

    losses = dict(re.findall(r"step +(\d+) +loss (\S+)", trained))
    assert 0 < float(losses["40"]) < 1 < float(losses["0"])  # it trains, and nobody who prints the loss sees the step
    assert losses["41"] == losses["50"] == "nan"
    assert view.startswith("transformer · 15 leaves · 60 steps · step 59 · loss NaN · 1 finding")
    assert "not finite since step 40" in view
    # Behind it in the model are only the last norm and the head, which are whole at that step.
    down = r"grads\['blocks'\]\[1\]\['mlp'\]\['down'\]"
    assert re.match(rf"nonfinite: {down} had [\d,]+ non-finite values at step 40\. 15 of 15", found)
    place = f"Cell In[{cell}], line {line} in rms_norm"
    assert located.startswith(f"In the backward pass, div at {place} produced 3 +Inf (of 384), the first at [")
    assert f"the backward pass of mul at {place} turned it into NaN." in located
    assert "The derivative of a square root, and so of a norm, is infinite at 0" in located
    source = codes[cell - 1].splitlines()[line - 1].strip()
    assert origin == f"backward | div | rms_norm | {line} | {source}\n"
    ((loss, rest),) = re.findall(r"^loss (\S+), (.*)\n$", repaired)
    assert float(loss) < float(losses["40"]) and rest == "locate_nan: None, findings: 0"
    assert whole == "['head'] ['norm']\n"  # what the text says can be seen in the view


@pytest.mark.filterwarnings("default")
def test_live_training_keeps_the_whole_picture_of_each_run_where_its_panel_was(tmp_path):
    pytest.importorskip("anywidget")
    notebook = execute(read(DEMOS / "live_training.ipynb"), tmp_path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [o for cell in cells for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert "widgets" not in notebook.metadata  # so that a converter takes the page, which needs no network
    for cell, (steps, found) in (
        (cells[2], ("500 steps · step 499", "1 finding")),
        (cells[4], ("200 steps · step 199", "0 findings")),
    ):
        widget, page = cell.outputs
        assert "application/vnd.jupyter.widget-view+json" in widget.data and widget.data["text/html"] == ""
        headline = rf"adder · 11 leaves · {steps} · loss \S+ · {found}"
        assert re.match(headline, page.data["text/plain"])
        assert (
            "data-treeviz-fallback" in page.data["text/html"]
            and steps in page.data["text/html"]
            and found in page.data["text/html"]
        )
    assert "spike at step 300\n" in texts_of(notebook)[3]
    assert texts_of(notebook)[-1].startswith("([(DictKey(key='blocks'), SequenceKey(idx=1), DictKey(key='up'))], 200)")


@pytest.mark.filterwarnings("default")
def test_show_displays_a_view_below_the_cell_and_gives_nothing_back(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    cell = nbformat.v4.new_code_cell("import treeviz\nassert treeviz.render([1, 2]).show() is None")
    (cell,) = execute(nbformat.v4.new_notebook(cells=[cell]), tmp_path).cells
    (output,) = cell.outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"].startswith("tree · 2 leaves")
    assert "data-treeviz" in output.data["text/html"]


@pytest.mark.parametrize("path", sorted(DEMOS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    for cell in read(path).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def records_of(path: Path) -> Iterator[Any]:
    """What W&B's client has written: records of its protocol, in blocks of 32 kB as those of LevelDB's log."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", data, at + 4) if left >= 7 else (0, 0)
        if kind:  # 1: all of it, 2: its start, 4: its end
            whole += data[at + 7 : at + 7 + length]
            if kind in (1, 4):
                yield messages.Record.FromString(whole)
                whole = b""
        at += 7 + length if kind else left


def test_log_to_wandb_gives_the_real_client_what_wandb_watch_would(tmp_path):
    for library in ("wandb", "flax", "optax"):
        pytest.importorskip(library)
    output = run(program(DEMOS / "log_to_wandb.py"), tmp_path)
    assert "The loss jumped to" in output and "at step 75" in output
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = list(records_of(file))
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert sum("loss" in row for row in rows) == 101, "the user's rows"
    logged = {row["treeviz step"]: row for row in rows if "treeviz step" in row}
    assert logged.keys() <= set(range(0, 101, 5)), "each in one of them"
    assert {"grads norm", "grads norm/layers/2/kernel", "updates ratio/layers/0/kernel", "scalars/loss"} <= logged[
        100
    ].keys()
    assert logged[100]["grads log2/layers/2/kernel/_type"] == "histogram"
    alerts = [record.alert for record in records if record.HasField("alert")]
    assert any("The loss jumped" in alert.text and alert.title == "spike at step 75" for alert in alerts)
