"""`treeviz grads RUN --follow`: a run while another process writes it, in a terminal and piped."""

from __future__ import annotations

import argparse
import asyncio
import os
from itertools import count

import numpy as np
import pytest
from own_thread import in_a_thread
from runs_in_files import Training

from treeviz.cli import main
from treeviz.cli.follow import RunScreen, new_findings
from treeviz.cli.output import TROUBLE
from treeviz.steps.recording.history_file import STOPPED_S, Followed, journal_of, load, save


def same(followed: Followed, training: Training) -> bool:
    assert followed.history is not None
    for a, b in zip(followed.history.values("grads"), training.history.values("grads"), strict=True):
        np.testing.assert_array_equal(a, b)
    return True


def test_what_is_written_is_read_once(tmp_path, monkeypatch):
    followed = Followed(tmp_path / "run.treeviz")
    with pytest.raises(FileNotFoundError):
        followed.read()
    training = Training(tmp_path / "run.treeviz")
    training.go_on(3)
    assert followed.read() and same(followed, training) and not followed.read()
    records = []
    monkeypatch.setattr(
        "treeviz.steps.recording.history_file._add",
        lambda *a, add=load.__globals__["_add"]: (records.append(1), add(*a)),
    )
    training.go_on(2)
    assert followed.read() and same(followed, training) and len(records) == 2


def test_a_step_that_is_half_written_is_waited_for(tmp_path):
    training = Training(tmp_path / "run.treeviz")
    training.go_on(2)
    followed, journal = Followed(training.path), journal_of(training.path)
    assert followed.read()
    n_before = journal.stat().st_size
    training.go_on(1)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: n_before + 20])  # the same file, as a full disk leaves it
    assert not followed.read() and followed.n_unread == 20
    journal.write_bytes(whole)
    assert followed.read() and same(followed, training) and followed.n_unread == 0


def test_a_journal_that_is_merged_into_its_file_is_read_from_there(tmp_path):
    training = Training(tmp_path / "run.treeviz")
    training.go_on(2)
    followed = Followed(training.path)
    assert followed.read()
    training.go_on(1)
    save(training.history, training.path)  # merges the journal, and begins a new one
    training.go_on(1)
    assert followed.read() and same(followed, training)
    training.path.write_bytes(b"")  # truncated: what was read stays
    with pytest.raises(ValueError, match="is not a run"):
        followed.read()
    assert same(followed, training)


def test_a_run_that_is_started_again_is_followed_to_its_new_file(tmp_path):
    Training(tmp_path / "run.treeviz").go_on(1)
    Training(tmp_path / "run.treeviz").go_on(1)  # an older one, in run-2.treeviz
    followed = Followed(tmp_path / "run.treeviz")
    assert followed.read() and not followed.move_on()
    again = Training(tmp_path / "run.treeviz")
    again.go_on(2)
    assert again.path.name == "run-3.treeviz"
    for path, age in ((followed.path, 0), (journal_of(followed.path), 0), (journal_of(again.path), STOPPED_S)):
        os.utime(path, (1000 + age, 1000 + age))
    assert not followed.move_on()  # the first one may still run
    os.utime(journal_of(again.path), (1001 + STOPPED_S,) * 2)
    assert followed.move_on() and followed.read() and same(followed, again)


def test_each_new_finding_is_a_line(tmp_path, capsys):
    path = tmp_path / "run.treeviz"
    steps, trained = iter([40, 20, 40]), []

    def sleep(_):
        trained[:] = trained or [Training(path)]
        trained[0].go_on(next(steps))

    lines = new_findings(Followed(path), 100, clock=count().__next__, sleep=sleep)
    (line,) = [line for line in lines if "NaN" in line]
    assert line.startswith("error: 6 of 6 leaves of grads were NaN or infinite at step 50.")
    assert capsys.readouterr().err == f"waiting for {path}\n"


def test_a_piped_command_ends_with_the_run(tmp_path, capsys):
    path = Training(tmp_path / "run.treeviz")
    path.go_on(60)
    assert main(["grads", str(path.path), "--follow", "--total", "60"]) == 0
    assert "NaN or infinite at step 50" in capsys.readouterr().out
    assert main(["grads", str(path.path), "other.treeviz", "--follow"]) == TROUBLE
    assert main(["grads", str(path.path), "--follow", "--html", "a.html"]) == TROUBLE
    assert "--follow" in capsys.readouterr().err


def screen_of(path, now=lambda: 0.0) -> RunScreen:
    options = argparse.Namespace(total=100, tree=None, columns=None, depth=None)
    return RunScreen(Followed(path), options, clock=count(0.0, 0.5).__next__, now=now)


def test_the_status_says_how_far_the_run_is(tmp_path):
    training = Training(tmp_path / "run.treeviz")
    now = [0.0]
    screen = screen_of(training.path, lambda: now[0])
    assert not screen.update() and screen.drawn(80)[0] == ["waiting for the first step"] and screen.status() == ""
    training.go_on(10)
    assert screen.update()
    training.go_on(20)
    assert screen.update()
    assert screen.status().startswith("step 29 of 100 · ") and screen.status().endswith(" left")
    now[0] = journal_of(training.path).stat().st_mtime + 600
    assert screen.status().endswith("nothing was written for 10 min")
    training.path.unlink()
    assert not screen.update() and screen.status().endswith(f"{training.path} is gone")


@in_a_thread  # that of another test may have an event loop
def test_the_keys_of_the_terminal(tmp_path):
    textual = pytest.importorskip("treeviz.integrations.textual", reason="textual is not installed")
    training = Training(tmp_path / "run.treeviz")
    training.go_on(10)
    screen = screen_of(training.path)
    app = textual.Follower(screen, 3600.0, 1.0)  # the test draws, not a clock

    def shown() -> str:
        return "\n".join(
            "".join(segment.text for segment in app._rows.render_line(y)).rstrip() for y in range(app._rows.size.height)
        )

    async def drive() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            assert "layers" in shown() and "[2]" in shown()
            await pilot.press("down", "left")  # closes `layers`, the second row
            assert "[2]" not in shown() and "3 inside" in shown()
            await pilot.press("left", "right", "right", "right", "right")  # to the root, and down again
            assert "[2]" in shown() and app._rows.selected == 3
            await pilot.press("slash", *"w", "enter")
            assert "w" in shown() and " b " not in shown()
            await pilot.press(
                "slash", *"bytes", "colon", "greater_than_sign"
            )  # no query yet: all rows stay, and the line below says why
            assert " b " in shown() and screen.status() and "step" not in screen.status()
            await pilot.press("escape")
            assert " b " in shown() and "step 9" in screen.status()
            training.go_on(50)
            app._follow()
            await pilot.press("f", "n")
            assert "NaN/Inf" in shown() and app._findings.display
            assert "NaN or infinite at step 50" in str(app._findings.render())
            await pilot.resize_terminal(120, 30)
            assert "max |x|" not in shown() and app._head.size.width == 120
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(drive())
