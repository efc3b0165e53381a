"""How soon measurements are read."""

from treeviz.steps.recording import recorder as pace
from treeviz.steps.recording.recorder import AHEAD, BATCH, LARGE_BATCH, LARGE_BYTES, SOON, Pace


def test_what_is_wanted_soon_is_read_at_once_and_in_a_long_run_when_its_share_of_the_time_or_of_the_room_is_up(
    monkeypatch,
):
    now = 1.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    of_run = Pace(SOON)
    for _ in range(65):
        assert of_run.is_due(1)
        now += 1e-3
        of_run.has_read()
    now += 0.049  # a reading of 1 ms, which is 2 % of 50 ms
    assert not of_run.is_due(SOON - 1) and of_run.is_due(SOON)
    now += 0.002
    assert of_run.is_due(1) and not Pace(0).is_due(79) and Pace(0).is_due(80)


def test_after_the_first_reading_small_measurements_are_read_in_larger_batches_and_large_ones_are_not():
    small, medium, large, wanted = Pace(0), Pace(0), Pace(0), Pace(SOON)
    small.has_seen(LARGE_BYTES // LARGE_BATCH, kept=False)
    medium.has_seen(LARGE_BYTES // 100, kept=False)
    large.has_seen(LARGE_BYTES // BATCH + 1, kept=False)
    wanted.has_seen(4, kept=False)
    assert [each.batch for each in (small, medium, large)] == [LARGE_BATCH, 100, BATCH]
    assert not small.is_due(LARGE_BATCH + AHEAD - 1) and small.is_due(LARGE_BATCH + AHEAD)
    assert large.is_due(BATCH + AHEAD) and wanted.is_due(1)
    small.has_seen(4, kept=True)  # a crash would lose more
    assert small.is_due(BATCH + AHEAD)
