"""The table of recovery times."""

from __future__ import annotations

from tests.benchmarks.recovery_table import PUBLISHED, Recovery, recovery_table


def recovery(stands_for: str, part: str, *seconds: float) -> Recovery:
    return Recovery(stands_for, part, "it goes on", "here", seconds)


def test_recovery_table_lists_parts_in_published_order() -> None:
    text = recovery_table([recovery("learner", "learner", 1.0), recovery("API", "daemon", 3.0, 1.0, 2.5)])
    header, first, second = text.splitlines()
    assert header.split()[-4:] == ["min", "median", "max", "unit"]
    assert first.split() == ["API", "3-5", "s", "daemon", "it", "goes", "on", "here", "3", "1", "2.5", "3", "s"]
    assert second.split()[:4] == ["learner", "10-20", "s", "learner"]
    assert list(PUBLISHED) == ["API", "LCM", "Guardian", "helper", "learner"]


def test_recovery_table_keeps_order_of_rows_of_one_part() -> None:
    rows = [
        recovery("LCM", "deployer here", 2.0),
        recovery("API", "daemon", 1.0),
        recovery("LCM", "deployer there", 1.0),
    ]
    assert [line[24:38].strip() for line in recovery_table(rows).splitlines()[1:]] == [
        "daemon",
        "deployer here",
        "deployer there",
    ]


def test_recovery_figure_keeps_samples_and_published_reference() -> None:
    plain = recovery("helper", "node controller", 0.5, 0.7).figure().plain()
    assert (plain["samples"], plain["stands_for"], plain["published"], plain["where"]) == (
        [0.5, 0.7],
        "helper",
        "3-4 s",
        "here",
    )
    assert plain["measure"] == "node controller: it goes on"
