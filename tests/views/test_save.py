"""A view in a file, in a notebook, in a terminal's IPython, in the browser."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path
from xml.etree import ElementTree

import jax.numpy as jnp
import pytest

import treeviz

SUFFIXES = (".html", ".txt", ".json", ".svg", ".png", ".md", ".mmd")
VIEW = treeviz.render({"w": jnp.ones((3, 4)), "b": [1, None]}, name="model")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_save_writes_the_format_that_the_suffix_names_and_returns_the_path(tmp_path, suffix):
    path = tmp_path / f"model{suffix.upper()}"
    assert VIEW.save(str(path)) == path
    data = path.read_bytes()
    if suffix == ".html":
        assert data.decode() == VIEW.html()
    elif suffix == ".txt":
        assert data.decode() == VIEW.text() + "\n"
    elif suffix == ".json":
        assert [row["keystr"] for row in json.loads(data)["rows"]] == [row.keystr for row in VIEW.table]
    elif suffix == ".svg":
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
    elif suffix == ".png":
        assert data.startswith(b"\x89PNG\r\n")
    else:
        assert data.decode() == {".md": VIEW.markdown, ".mmd": VIEW.mermaid}[suffix]()


@pytest.mark.parametrize("name", ["model.pdf", "model", ".html"])
def test_any_other_suffix_is_an_error_that_names_those_there_are(tmp_path, name):
    with pytest.raises(ValueError, match=r"treeviz writes \.html, \.txt, \.json, \.svg, \.png, \.md, \.mmd"):
        VIEW.save(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_keys_that_utf_8_cannot_write_are_escaped(tmp_path, suffix):
    path = treeviz.render({"a\ud800b": 1, "x\x00": 2}).save(tmp_path / f"tree{suffix}")
    if suffix != ".png":
        assert ("#92;" if suffix == ".mmd" else "\\") + "ud800" in path.read_text("utf-8")


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "model.txt"
    path.write_text("before")

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        VIEW.save(path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["model.txt"]


def test_a_file_that_is_replaced_keeps_its_name_behind_a_link(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("before")
    link.symlink_to(target)
    VIEW.save(link)
    assert link.is_symlink()
    assert target.read_text("utf-8") == VIEW.text() + "\n"


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    mode = VIEW.save(tmp_path / "model.txt").stat().st_mode
    assert stat.S_IMODE(mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


@pytest.fixture
def desktop(monkeypatch, tmp_path) -> list[str]:
    """A desktop's environment; the addresses that the browser was asked for."""
    opened: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    monkeypatch.setenv("DISPLAY", ":0")
    for name in ("SSH_CONNECTION", "BROWSER", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return opened


def test_show_opens_the_page_from_a_script_in_a_folder_of_its_own(desktop, capsys):
    path = VIEW.show()
    assert path.name == "model.html"
    assert path.read_text("utf-8") == VIEW.html()
    assert os.listdir(path.parent) == ["model.html"]
    assert desktop == [path.as_uri()]
    assert capsys.readouterr().out == ""


def over_ssh(monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")


def without_a_display(monkeypatch):
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setattr(sys, "platform", "linux")


def without_a_browser(monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)


@pytest.mark.parametrize("where", [over_ssh, without_a_display, without_a_browser])
def test_show_prints_the_path_where_no_browser_can_open(desktop, capsys, monkeypatch, where):
    where(monkeypatch)
    path = VIEW.show()
    assert capsys.readouterr().out == f"{path}\n"
    assert desktop == []


def test_the_name_of_a_page_is_made_of_words_whatever_the_tree_is_called(desktop):
    assert treeviz.render([1], name="../../etc/x").show().name == "etc-x.html"
    assert treeviz.render([1], name="</>").show().name == "tree.html"


def test_a_mimebundle_holds_what_is_asked_for():
    assert VIEW._repr_mimebundle_() == {"text/plain": repr(VIEW), "text/html": VIEW._repr_html_()}
    assert list(VIEW._repr_mimebundle_(include=["text/html"])) == ["text/html"]
    assert list(VIEW._repr_mimebundle_(exclude=["text/html"])) == ["text/plain"]


IPYTHON_SESSION = r"""
import jax, treeviz
built = []
repr_html = treeviz.TreeView._repr_html_
treeviz.TreeView._repr_html_ = lambda view: (built.append(1), repr_html(view))[1]
tree = {"a": [1, 2]}
treeviz.render(tree, name="shown")
print("pages built:", built)
%load_ext treeviz
%load_ext treeviz
%reload_ext treeviz
before = set(get_ipython().magics_manager.magics["line"])
{"w": jax.numpy.ones(3)}
%tree tree["a"]
%tree tree["a"][0] + 1
%tree
%unload_ext treeviz
print("gone:", before - set(get_ipython().magics_manager.magics["line"]))
"""


def test_a_terminals_ipython_shows_text_without_building_a_page_and_has_a_magic(tmp_path):
    environment = {
        **os.environ,
        "IPYTHONDIR": str(tmp_path),
        "NO_COLOR": "1",
        "PYTHONPATH": str(Path(treeviz.__file__).parents[1]),
    }
    environment.pop("FORCE_COLOR", None)
    command = [
        sys.executable,
        "-m",
        "IPython",
        "--no-banner",
        "--simple-prompt",
        "--colors=NoColor",
        "--HistoryManager.enabled=False",
    ]
    run = subprocess.run(command, input=IPYTHON_SESSION, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "shown · 2 leaves" in run.stdout
    assert "pages built: []" in run.stdout
    assert "tree · 1 leaf" in run.stdout
    assert 'tree["a"] · 2 leaves' in run.stdout
    assert '(tree["a"][0] + 1) · 1 leaf' in run.stdout
    assert "%tree shows the pytree that an expression evaluates to" in run.stdout
    assert "gone: {'tree'}" in run.stdout


def test_a_view_prints_its_first_rows_in_the_width_and_the_colours_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = repr(treeviz.render({f"a long name {i}": float(i) for i in range(500)}))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).split("\n")
    assert plain != shown.split("\n") and max(map(len, plain)) <= 50 and 50 < len(plain) <= 65
