"""``ffdl scaler``: what it prints about pools, sizes and replayed decisions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from ffdl_batch.cli.commands import scaler
from ffdl_batch.domain.job.pool_views import PoolJobView, PoolView, ReplayedDecision, SizeExplanation, SizeOption

AT = 1_800_000_000.0
RUNS = PoolJobView(
    "training-000000001", "digits", "PROCESSING", 4, 4, 256, 2, "being halted to continue with 2 learners"
)
WAITS = PoolJobView("training-000000002", "faces", "PENDING", 2, 0, 64, 2, "waits for GPUs of pool default")
POOL = PoolView("default", "slurm", "gpu", 4, 4, "completion", None, AT, AT + 60, "", (RUNS, WAITS))
SIZE = SizeExplanation(
    RUNS.id, "default", AT, 4, 256, 2, 128, 3600.4, 42.0, "", 1, 2, 4,
    (SizeOption(2, 128, 7000.0), SizeOption(4, 256, 3600.4)),
)  # fmt: skip
SAME, OTHER = ReplayedDecision("default", 1.0, ()), ReplayedDecision("default", 2.0, ("a got 2 GPUs, and now gets 4",))


def run(monkeypatch: pytest.MonkeyPatch, *words: str, **answers: object) -> Result:
    """Run ``ffdl scaler`` against a daemon that gives these answers."""

    @contextmanager
    def opened() -> Iterator[object]:
        calls = {name: lambda *_, answer=answer: answer for name, answer in answers.items()}
        yield SimpleNamespace(pools=SimpleNamespace(**calls))

    monkeypatch.setattr(scaler, "open_client", opened)
    return CliRunner().invoke(scaler.scaler, list(words), catch_exceptions=False, standalone_mode=False)


def test_status_prints_pools_with_sizes_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, "status", status=[POOL]).output
    assert "4 of 4 in use or requested" in text and "slurm, partition gpu" in text
    (line,) = [line for line in text.splitlines() if RUNS.id in line]
    assert line.split() == [RUNS.id, "digits", "PROCESSING", "4", "4", "256", "2", *RUNS.reason.split()]
    assert WAITS.reason in text and "Paused" not in text and "Problem" not in text
    paused = replace(POOL, paused_at=AT, problem="scipy not installed", jobs=())
    text = run(monkeypatch, "status", status=[paused]).output
    assert "Paused:" in text and "scipy not installed" in text
    assert (
        run(monkeypatch, "status", status=[]).output
        == "no pool is configured; add [elastic.pools.NAME] to the configuration\n"
    )


def test_explain_prints_compared_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, "explain", RUNS.id, explain=SIZE).output
    assert "4 GPUs for 2 jobs" in text and "4 GPUs, batch 256" in text and "2 GPUs, batch 128" in text
    rows = [["2", "128", "01:56:40"], ["4", "256", "(now)", "01:00:00"]]
    assert [line.split() for line in text.splitlines()[-2:]] == rows and "Kept" not in text
    shown = json.loads(run(monkeypatch, "explain", "--json", RUNS.id, explain=SIZE).output)["size"]
    assert (shown["rank"], shown["options"][0]["gpus"]) == (1, 2)


def test_explain_says_why_size_is_kept_and_shows_it_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replace(SIZE, gpus=2, global_batch=48, wanted_gpus=2, wanted_batch=48, remaining_s=9000.0, hold="")
    text = run(monkeypatch, "explain", RUNS.id, explain=kept).output
    assert "Kept" in text and "no other size gains more than a change costs" in text
    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["2", "48", "(now)", "02:30:00"], ["2", "128", "01:56:40"], ["4", "256", "01:00:00"],
    ]  # fmt: skip


def test_replay_fails_only_if_a_decision_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    same = run(monkeypatch, "replay", replay=[SAME, SAME])
    assert (same.return_value, same.output) == (0, "2 decisions replayed, none differs\n")
    other = run(monkeypatch, "replay", "default", replay=[SAME, OTHER])
    assert other.return_value == 1
    assert other.output.endswith(
        "a got 2 GPUs, and now gets 4\n2 decisions replayed, 1 decision with a different result\n"
    )
    assert run(monkeypatch, "replay", "--json", replay=[OTHER]).return_value == 1


def test_pause_prints_how_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = run(monkeypatch, "pause", "default", pause=[POOL]).output
    assert paused == "pool default is paused; to continue: ffdl scaler resume default\n"
    assert run(monkeypatch, "resume", "default", resume=[POOL]).output == "pool default is active\n"
