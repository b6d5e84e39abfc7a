"""The table of recovery times."""

from __future__ import annotations

from tests.benchmarks.recovery_table import Recovery, recovery_table


def recovery(stands_for: str, part: str, *seconds: float) -> Recovery:
    return Recovery(stands_for, part, "it continues", "here", seconds)


def test_recovery_table_lists_parts_in_measured_order() -> None:
    text = recovery_table([recovery("learner", "learner", 1.0), recovery("API", "daemon", 3.0, 1.0, 2.5)])
    header, first, second = text.splitlines()
    assert header.split()[-4:] == ["min", "median", "max", "unit"]
    assert first.split()[:2] == ["learner", "learner"]
    assert second.split() == ["API", "daemon", "it", "continues", "here", "3", "1", "2.5", "3", "s"]


def test_recovery_table_and_figure_have_no_published_times() -> None:
    one = recovery("API", "daemon", 1.0)
    assert "published" not in recovery_table([one])
    assert "published" not in one.figure().plain()


def test_recovery_figure_keeps_samples() -> None:
    plain = recovery("helper", "node controller", 0.5, 0.7).figure().plain()
    assert (plain["samples"], plain["stands_for"], plain["where"]) == ([0.5, 0.7], "helper", "here")
    assert plain["measure"] == "node controller: it continues"
