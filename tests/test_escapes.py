"""No name that comes from a file, an argument or user code reaches a terminal with what the terminal would obey."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz
from treeviz import cli
from treeviz.steps.measure import source_of
from treeviz.tree.facts import Column, Facts
from treeviz.tree.paths import table_of_paths

pytestmark = pytest.mark.oldest_jax

# A title for the window, a clear screen, a C1 control, right-to-left, a line break that spoofs, a lone surrogate
EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202egrads\r\n\udc80"
COLORS = re.compile(r"\x1b\[(0|1|2|3[0-9])m")


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in COLORS.sub("", text).split("\n"))


def recorded(source: str = EVIL, name: str = EVIL) -> treeviz.GradientInspector:
    inspector = treeviz.GradientInspector(name=name)
    tree = {EVIL: jnp.ones(3), "w": jnp.array([1.0, jnp.nan])}
    for step in range(3):
        inspector.record(treeviz.measure(**{source: tree, f"grads {source}": tree}), step)
    return inspector


def from_file(folder: Path) -> treeviz.GradientInspector:
    """As someone else may have written it: each name, path, dtype and shape of the header, and the file's own name."""
    whole, path = folder / "run.treeviz", folder / f"{EVIL[:-1]}.treeviz"
    recorded("grads", "params").save(whole)
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(path, "w") as changed:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "header.json":
                header = json.loads(data)
                for source in header["sources"]:
                    source["name"] += EVIL
                    for field in ("paths", "dtypes"):
                        source[field] = [value + EVIL for value in source[field]]
                for track in header["tracks"]:
                    track["source"] += EVIL
                data = json.dumps(header)
            changed.writestr(name, data)
    return treeviz.GradientInspector.load(path, name=EVIL)


@pytest.fixture(params=["measured", "loaded"])
def inspector(request, tmp_path) -> treeviz.GradientInspector:
    return recorded() if request.param == "measured" else from_file(tmp_path)


def test_all_that_an_inspector_prints_is_harmless(inspector, monkeypatch):
    for color in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", color)
        assert is_harmless(repr(inspector))
    history = inspector.history
    for source in history.sources:
        view = inspector.render(source)
        texts = [repr(view), view.text(), view.title, repr(view.table), *map(repr, view.table)]
        texts += [view._repr_mimebundle_(include=["text/plain"])["text/plain"]]
        assert all(map(is_harmless, texts))
    assert inspector.findings
    assert all(is_harmless(str(found)) for found in inspector.findings)
    assert is_harmless(repr(history)) and all(map(str.isprintable, history.sources))
    with pytest.raises(ValueError) as error:
        history.append(9, {"nowhere": {}})
    assert is_harmless(str(error.value))


def test_nothing_measured_is_lost_by_its_name(inspector):
    assert len(inspector.history.sources) == 2
    for source in inspector.history.sources:
        assert inspector.history.last(source)[1]["nonfinite"].sum() == 1


def test_a_tap_and_the_name_of_a_step_are_harmless():
    inspector = treeviz.GradientInspector()

    def step(x):
        return x - jax.grad(lambda w: jnp.sum(treeviz.tap(w * w, EVIL)))(x)

    def other(x):
        return step(x)

    step.__name__ = other.__name__ = EVIL[:-1]  # JAX takes no surrogate
    for function in (step, other):
        watched = inspector.watch(jax.jit(function))
        assert is_harmless(repr(watched))
        watched(jnp.ones(2))
    assert len(inspector.history.sources) == 4
    assert all(map(str.isprintable, inspector.history.sources)) and is_harmless(repr(inspector))


def test_the_names_of_a_step_and_of_its_arguments_are_harmless_where_its_compilations_are_told(caplog):
    class Key(str):
        def __repr__(self):
            return EVIL[:-1]  # JAX takes no surrogate

        __lt__ = str.__lt__

    def step(x):
        return x

    step.__name__ = step.__qualname__ = EVIL[:-1]
    jitted = jax.jit(step)
    watched = treeviz.watch_compiles(jitted)
    for n in (1, 2):
        watched({Key("w"): jnp.ones(n)})
    with pytest.raises(TypeError) as error:
        treeviz.watch_compiles(step)
    texts = [treeviz.forecast(jitted, {Key("w"): 1}), watched.compiles, error.value, *caplog.messages]
    assert len(watched.compiles) == 2 and len(caplog.messages) >= 1
    assert all(is_harmless(str(text)) for text in texts)


def test_a_measurement_and_its_sources_are_harmless():
    measurement = treeviz.measure(**{EVIL: {EVIL: jnp.ones(2)}})
    assert is_harmless(repr(measurement))
    source = source_of({"a": SimpleNamespace(dtype=EVIL, shape=())}, EVIL)
    assert all(text.isprintable() for text in (source.name, *source.paths, *source.dtypes))


def test_the_name_of_a_tree_the_title_of_a_column_and_a_headline_are_harmless(capsys):
    tree = {EVIL: jnp.ones(2), "b": 1}
    labels = Column(EVIL, EVIL, [EVIL] * 3)
    numbers = Column("n", EVIL, np.arange(3.0), format="number")
    for each in (labels, numbers, Column("h", EVIL, np.ones((3, 4)), format="histogram")):
        view = treeviz.render(tree, name=EVIL, columns=[each])
        assert all(map(is_harmless, (repr(view), view.text(), view.text(width=30, color=True), view.title)))
    assert is_harmless(treeviz.render(jnp.ones(2), name=EVIL).text())
    table = table_of_paths(EVIL, [f".{EVIL}", EVIL], [Facts("array", EVIL, True, 1)] * 2).with_headline(EVIL)
    assert is_harmless(treeviz.TreeView(table).text()) and is_harmless(repr(table))


def test_why_a_step_cannot_be_watched_is_harmless():
    def step(x):
        return x

    step.__name__ = EVIL
    with pytest.raises(treeviz.CannotWatch) as error:
        treeviz.GradientInspector().watch(step)
    assert is_harmless(str(error.value))


def test_why_a_history_cannot_be_read_is_harmless(tmp_path):
    path = tmp_path / f"{EVIL}.treeviz"
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match="is not a run") as error:
        treeviz.GradientInspector.load(path)
    assert str(error.value).isprintable()


ARGUMENTS: dict[str, Callable[[Path], list[str]]] = {
    "a file that is broken": lambda folder: [str(folder / f"{EVIL}.npz")],
    "a file that is not there": lambda folder: [str(folder / f"{EVIL}.npy")],
    "an unknown format": lambda folder: [str(folder / f"a.{EVIL}")],
    "a pickle": lambda folder: [str(folder / f"{EVIL}.pkl")],
    "a folder": lambda folder: [str(folder / f"{EVIL}.npy"), "--text", str(folder)],
    "an unknown option": lambda folder: ["x.npz", f"--{EVIL}"],
    "an argument too many": lambda folder: ["x.npz", EVIL],
    "a depth": lambda folder: ["x.npz", "--depth", EVIL],
    "a query": lambda folder: [str(folder / "whole.npz"), "--find", f"bytes:{EVIL}"],
    "where to save": lambda folder: [str(folder / "whole.npz"), "--text", str(folder / f"{EVIL[:-1]}.txt")],
    "a folder to save to that is not there": lambda folder: [str(folder / "whole.npz"), "--text", f"{EVIL}/a.txt"],
    "a column": lambda folder: [str(folder / "whole.npz"), "--sort", EVIL],
    "a summary": lambda folder: [str(folder / "whole.npz"), "--github"],
    "a run": lambda folder: ["grads", str(folder / f"{EVIL}.treeviz"), EVIL],
    "a difference": lambda folder: ["diff", str(folder / "whole.npz"), str(folder / "other.npz"), "--github"],
    "names in a file": lambda folder: [str(folder / "whole.npz"), "--find", "w"],
    "names in a file with its values": lambda folder: [str(folder / "whole.npz"), "--stats"],
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_the_command_prints_nothing_that_a_terminal_obeys(tmp_path, capsys, case):
    (tmp_path / f"{EVIL}.npz").write_bytes(b"PK")
    with zipfile.ZipFile(tmp_path / "whole.npz", "w") as archive:
        file = io.BytesIO()
        np.save(file, np.ones(2))
        archive.writestr(f"w{EVIL[:-1]}.npy", file.getvalue())
    np.savez(tmp_path / "other.npz", w=np.ones(3))
    with contextlib.suppress(SystemExit):
        cli.main(ARGUMENTS[case](tmp_path))
    output = capsys.readouterr()
    assert (output.out or output.err) and is_harmless(output.out) and is_harmless(output.err)


@pytest.mark.parametrize("encoding", ["gbk", "big5", "cp1252", "ascii", "shift_jis", "utf-8"])
def test_a_view_and_an_inspector_can_be_printed_in_the_encoding_of_any_terminal(monkeypatch, encoding):
    tree = {"näme ✓ 漢字 \U0001f600": jnp.ones(2), "b": "é → ≥"}
    shown = ""
    for view in treeviz.render(tree, name="bäum ✓"), recorded("grads ✓ é", "bäum ✓"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        text = str(view)
        shown += text
        monkeypatch.undo()
        print(text, file=stream, flush=True)
        assert ("✓" if encoding == "utf-8" else r"\u2713") in text
    assert ("漢字" in shown) == (encoding in ("gbk", "big5", "utf-8"))
