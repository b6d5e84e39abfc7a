"""The time limit that the head keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.head.time_limit import TimeLimit, deadline, limit_now_s
from ffdl_batch.domain.launch.launch_file import LaunchFile, Succession
from ffdl_batch.domain.launch.limits import Limits
from tests.unit.controller.rig import launch_file


def launch(directory: str, limits: Limits) -> LaunchFile:
    return launch_file(directory, limits=limits)


def told(tmp_path: Path) -> tuple[str, str] | None:
    path = tmp_path / "stop.json"
    cell = json.loads(path.read_text()) if path.exists() else None
    return (cell["what"], cell["reason"]) if cell else None


@pytest.mark.parametrize(("lead_s", "warned_at"), [(30, 70.0), (None, 80.0), (90, 50.0)])
def test_time_limit_requests_halt_before_limit_and_stop_at_limit(
    tmp_path: Path, lead_s: int | None, warned_at: float
) -> None:
    now = [1000.0]
    limit = TimeLimit(launch(str(tmp_path), Limits(grace_s=20, time_s=100, lead_s=lead_s)), lambda: now[0])
    now[0] = 1000.0 + warned_at - 1
    limit.look()
    assert told(tmp_path) is None
    now[0] += 1
    limit.look()
    assert told(tmp_path) == ("halt", "time")
    now[0] = 1100.0
    limit.look()
    assert (told(tmp_path), limit.used_s) == (("stop", "time"), 100.0)


@pytest.mark.parametrize(("time_s", "before"), [(10, ("stop", "failure")), (None, None)])
def test_time_limit_leaves_stop_request_unchanged_if_one_exists_or_scheduler_keeps_limit(
    tmp_path: Path, time_s: int | None, before: tuple[str, str] | None
) -> None:
    if before is not None:
        (tmp_path / "stop.json").write_text(json.dumps({"what": before[0], "reason": before[1]}))
    now = [0.0]
    limit = TimeLimit(launch(str(tmp_path), Limits(time_s=time_s)), lambda: now[0])
    now[0] = 1e6
    limit.look()
    assert (told(tmp_path), limit.used_s) == (before, 1e6)


def test_deadline_prefers_scheduler_value_over_own_limit() -> None:
    own = launch("/a", Limits(time_s=100))
    named = replace(own, succession=Succession("/t", deadline_variables=("FIRST", "SLURM_JOB_END_TIME")))
    assert deadline(named, {"FIRST": "", "SLURM_JOB_END_TIME": "5000"}, 1.0) == 5000.0
    assert deadline(named, {}, 1.0) == 101.0
    assert deadline(launch("/a", Limits()), {}, 1.0) is None
    asked = replace(launch("/a", Limits()), succession=Succession("/t", deadline_variables=("FIRST",), limit_s=60))
    assert (deadline(asked, {"FIRST": "5000"}, 1.0), deadline(asked, {}, 1.0)) == (5000.0, 61.0)


@pytest.mark.parametrize(
    ("argv", "seconds"),
    [
        (("echo", "5:00"), 300),
        (("echo", "1:02:03"), 3723),
        (("echo", "2-00:00:01"), 172801),
        (("printf", "welcome at 9:00\\n7:30\\n"), 450),
        (("echo", "UNLIMITED"), None),
        (("echo",), None),
        (("sh", "-c", "echo 5:00; exit 1"), None),
        (("sleep", "60"), None),
        (("/nowhere",), None),
        (("echo", "{unknown}"), None),
        ((), None),
    ],
)
def test_limit_now_parses_command_output_or_warns_on_failure(
    argv: tuple[str, ...], seconds: int | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ffdl_batch.controller.head.time_limit.ASKING_S", 0.3 if argv[:1] == ("sleep",) else 120.0)
    asking = Succession("/t", keep_env=("PATH",), limit_now=argv)
    assert limit_now_s(replace(launch("/a", Limits()), succession=asking), "7") == seconds
    failed = argv[:1] in (("sh",), ("sleep",), ("/nowhere",)) or "{unknown}" in argv
    assert ("is unknown" in capfd.readouterr().err) is failed
