"""A run in a file, and back."""

from __future__ import annotations

import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.recording.history import History


def run(max_bytes: int) -> tv.GradientInspector:
    """Two trees over 60 steps, all statistics, NaN and infinities, a run that counts from 0 again, and scalars."""
    grads = {"layers": [{"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}], "n": np.zeros(2, np.int32)}
    inspector = tv.GradientInspector(name="net", run="lr 3e-4", max_bytes=max_bytes)
    for step in [*range(60), 0, 1]:
        factor = np.float32(np.nan if step == 30 else np.inf if step == 31 else step)
        measured = {"w": factor * grads["layers"][0]["w"]}
        sources = {"grads": {**grads, "layers": [measured]}, **({"updates": measured} if step % 2 else {})}
        inspector.record(tv.measure(**sources, statistics=tv.HISTOGRAM), step=step)
        loss = [1.0, np.nan, np.inf, -np.inf][max(step - 56, 0)]
        inspector.record_scalars(step, loss=loss, batch=[step, 7])
    inspector.record_scalars(60, batch="a.png", lr=0.1)
    return inspector


def same(a: History, b: History) -> bool:
    """Whether all that both keep is the same, bit for bit."""
    assert (a.run, a.name, len(a), a.n_records) == (b.run, b.name, len(b), b.n_records)
    assert a.sources == b.sources and a.tracks.keys() == b.tracks.keys()
    both = [(a.tracks[name], b.tracks[name]) for name in a.tracks]
    both += [(a.scalars.tracks[name], b.scalars.tracks[name]) for name in a.scalars.tracks]
    for mine, theirs in both:
        assert mine.bucket_width == theirs.bucket_width
        for x, y in zip(mine.arrays(), theirs.arrays(), strict=True):
            np.testing.assert_array_equal(x, y)
    batches = [{step: (str(x.ids), x.n) for step, x in of.scalars.batches.items()} for of in (a, b)]
    return batches[0] == batches[1]


@pytest.mark.parametrize("max_bytes", [1, 64_000_000])
def test_a_run_is_read_as_it_was_written(max_bytes, tmp_path):
    inspector = run(max_bytes)
    loaded = tv.GradientInspector.load(inspector.save(tmp_path / "run.treeviz"))
    assert same(inspector.history, loaded.history)
    assert str(loaded) == str(inspector) and loaded.findings == inspector.findings
    assert (
        loaded.name == "net"
        and tv.GradientInspector.load(tmp_path / "run.treeviz", name="b").render().table.name == "b"
    )
    loaded.record(tv.measure(grads={"w": np.ones(1)}), step=60)
    assert loaded.history.last("grads since step 60")[0] == 60, "it is continued"
    loaded.reset()
    assert loaded.name == "net"
