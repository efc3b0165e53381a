"""How far a run is and how fast it goes, by a clock that a test sets."""

from __future__ import annotations

import numpy as np
import pytest
from live_runs import Clock

import treeviz as tv
from treeviz.inspector.panel import Progress
from treeviz.steps.recording.history import Track


class Loop:
    """A loop that counts its steps, and what is said of it."""

    def __init__(self, total: int | None = None, first: int = 0) -> None:
        self.clock = Clock()
        self.progress = Progress(total, clock=self.clock)
        self.steps = Track((2,), np.float64, 100_000)
        self.next = first

    def run(self, n: int, every_s: float) -> None:
        for _ in range(n):
            self.clock.now += every_s
            self.progress.arrive()
            self.steps.extend([self.next], np.ones((1, 2)))
            if self.steps.n_steps == 1:
                self.progress.begin(self.steps)
            self.progress.count(self.next)
            self.next += 1


def test_before_the_first_step_nothing_is_said_but_how_many_there_will_be():
    progress = Loop(total=10).progress
    assert progress.numbers(is_running=True) == {"total": 10, "elapsed": 0}
    assert progress.is_finished


def test_the_time_of_a_run_begins_with_its_first_step_and_not_with_the_view():
    loop = Loop()
    loop.clock.now += 100
    loop.run(11, every_s=0.5)
    assert loop.progress.numbers(is_running=True)["elapsed"] == 5
    loop.clock.now += 2
    assert loop.progress.quiet_s == 2
    assert loop.progress.numbers(is_running=True)["elapsed"] == 7, "it runs: the clock goes on"
    assert loop.progress.numbers(is_running=False)["elapsed"] == 5, "it has ended with its last step"


@pytest.mark.parametrize("every_s", [0.01, 0.5, 20])
@pytest.mark.parametrize("first", [0, 1000])
def test_the_speed_is_that_of_the_clock_whatever_number_the_first_step_has(every_s, first):
    loop = Loop(first=first)
    loop.run(200, every_s)
    numbers = loop.progress.numbers(is_running=True)
    assert numbers["step"] == first + 199 and numbers["done"] == 200
    assert numbers["rate"] == pytest.approx(1 / every_s)


def test_while_it_runs_the_speed_is_that_of_the_last_ten_seconds_and_then_that_of_the_whole():
    loop = Loop()
    loop.run(101, every_s=1)
    loop.run(2000, every_s=0.01)
    assert loop.progress.numbers(is_running=True)["rate"] == pytest.approx(100)
    assert loop.progress.numbers(is_running=False)["rate"] == pytest.approx(2101 / (100 + 20))


@pytest.mark.parametrize("total", [float("nan"), float("inf"), -1, 10.5, "10", np.ones(2), [10]])
def test_a_total_that_is_no_number_of_steps_is_refused_by_every_door(total):
    inspector = tv.GradientInspector()
    for door in (inspector.live, inspector.explore, Progress):
        with pytest.raises(ValueError, match=r"^total=.*: pass the number of steps of the run, such as total=1000"):
            door(total=total)


def test_a_total_may_be_any_whole_number():
    for total in (1000, 1e3, np.int64(1000), np.float32(1000)):
        assert repr(Progress(total).numbers(is_running=True)["total"]) == "1000"
    assert Progress(0).numbers(is_running=True)["total"] == 0


def test_a_single_step_has_no_speed():
    loop = Loop()
    loop.run(1, every_s=1)
    assert "rate" not in loop.progress.numbers(is_running=True)


def test_the_next_run_counts_its_own_steps():
    loop = Loop()
    loop.run(50, every_s=1)
    loop.progress.end(loop.steps)
    assert loop.progress.is_finished and not loop.progress.n_new(loop.steps)
    loop.clock.now += 1000
    loop.progress.arrive()
    assert not loop.progress.is_finished
    loop.steps.extend([50], np.ones((1, 2)))
    assert loop.progress.n_new(loop.steps) > 0
    loop.progress.begin(loop.steps)
    loop.progress.count(50)
    numbers = loop.progress.numbers(is_running=True)
    assert (numbers["step"], numbers["done"], numbers["elapsed"]) == (50, 1, 0)


def test_what_arrives_while_the_end_is_read_belongs_to_the_next_run():
    loop = Loop()
    loop.run(3, every_s=1)
    n_arrived = loop.progress.n_arrived
    loop.progress.arrive()
    loop.progress.end(loop.steps, n_arrived)
    assert not loop.progress.is_finished
