"""A release of JAX, Equinox, Flax or ipywidgets that has moved a private name: everything else still works."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import pythons
from compiling import quick_environment
from moved_names import TABLES, cases, table

from treeviz.explainer import explain as answers
from treeviz.steps.tracing.jax_private import TO_EXPLAIN
from treeviz.tree.runtime import PrivateName, missing_names

PROGRAM = Path(__file__).parents[2] / "moved_names.py"


@functools.cache
def found(library: str) -> dict[str, dict]:
    """One process tries all that a library may move."""
    command = [*pythons.command("jax"), str(PROGRAM), library]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, env=quick_environment())
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


def is_lost(name: PrivateName, case: str) -> bool:
    """Whether all places where this release has the name are hidden."""
    if case == "everything":
        return True
    places = [place for place in name.where.split(" or ") if not PrivateName(place, "").is_missing()]
    return all(any(is_within(place, hidden) for hidden in case.split(" or ")) for place in places)


def is_within(place: str, hidden: str) -> bool:
    return place == hidden or place.startswith((f"{hidden}.", f"{hidden}:"))


@pytest.mark.oldest_jax
@pytest.mark.parametrize(("library", "case"), [(library, case) for library in TABLES for case in cases(library)])
def test_where_a_private_name_is_gone_the_rest_works_and_one_warning_says_what_is_lost(library, case):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    result = found(library)[case]
    assert result["failed"] == {}
    to_watch, to_see = (getattr(sys.modules[TABLES[library]], of, ()) for of in ("TO_WATCH", "TO_SEE_CALLS"))
    lost = [name for name in table(library) if is_lost(name, case)]
    assert result["is_watched"] == (not set(lost) & set(to_watch))
    assert result["is_seen"] == (library != "jax" or not set(lost) & {*to_watch, *to_see})
    warned = [text for text in result["warned"] if not text.startswith("watching:")]
    of_block = [text for text in result["warned"] if text not in warned]
    assert len(of_block) == (not result["is_seen"]) and all(n.lost in of_block[0] for n in lost if n in to_see)
    in_a_view = getattr(sys.modules[TABLES[library]], "TO_READ_PROGRAMS", ())  # which says so itself
    lost = [name for name in lost if name not in (*to_see, *in_a_view)]
    if case == "everything":
        assert 1 <= len(warned) <= 2  # of the description of a tree, and of its step
    else:
        assert len(warned) == (1 if lost else 0)
        assert all(name.lost in warned[0] for name in lost)


@pytest.mark.oldest_jax
@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="some of the functions are newer")
def test_the_functions_of_jax_whose_errors_are_explained_are_where_they_were():
    places = [place for name in TO_EXPLAIN for place in name.where.split(" or ")]
    assert {re.split("[.:]", place)[-1] for place in places} == {*answers.ANSWERS, *answers.OUTER_ANSWERS}
    assert [name.where for name in missing_names(TO_EXPLAIN)] == []
