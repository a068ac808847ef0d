"""What a campaign of seeds tells while it runs."""

from __future__ import annotations

import time

from penstock.testing.simulation.__main__ import Progress


def test_a_long_campaign_prints_its_speed_and_its_end_every_ten_seconds() -> None:
    progress = Progress(10_000, 100.0)
    assert progress.line(3, 0, 103.0, 0.0) is None
    end = time.strftime("%H:%M:%S", time.localtime(1_000_000.0 + 9_900 / 5))
    reported = progress.line(100, 1, 120.0, 1_000_000.0)
    assert reported == f"100 of 10000 seeds, 1 failed, 20 s: 5.00 seeds/s, 33 min 0 s left, until about {end}"
    assert progress.line(140, 1, 128.0, 0.0) is None
    assert progress.line(150, 1, 130.0, 0.0) is not None


def test_a_short_campaign_prints_it_every_two_seconds() -> None:
    progress = Progress(100, 0.0)
    assert progress.line(2, 0, 1.0, 0.0) is None
    assert progress.line(4, 0, 2.0, 0.0) is not None
    assert progress.line(8, 0, 4.0, 0.0) is not None


def test_long_durations_are_in_hours_and_no_progress_prints_nothing() -> None:
    progress = Progress(1_000, 0.0)
    assert progress.line(0, 0, 50.0, 0.0) is None
    assert "1 min 40 s: 0.10 seeds/s, 2 h 45 min left" in (progress.line(10, 0, 100.0, 0.0) or "")
