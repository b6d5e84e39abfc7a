"""Records beside the log, for whoever stores it; what a learner put there stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data import result_storage
from ffdl_batch.controller.data.metric_files import show_growing, show_metrics
from ffdl_batch.controller.data.result_storage import do_each, store_logs, store_results
from ffdl_batch.domain.launch.launch_file import LaunchFile, Stores
from ffdl_batch.domain.metrics.records import Collecting
from tests.unit.controller.rig import launch_file, refusal


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    """Two learners that measured something."""
    made = AttemptDir(str(tmp_path / "attempt-1"))
    Path(made.metrics).mkdir(parents=True)
    for number in (1, 2):
        Path(made.learner_logs(number)).mkdir(parents=True)
        Path(made.learner_metrics(number)).write_text(f"records {number}\n")
    return made


def launched(attempt: AttemptDir, kind: str = "tensorboard") -> LaunchFile:
    job, metrics = str(Path(attempt.path).parent), Collecting(kind) if kind else None
    return launch_file(attempt.path, job_dir=job, learners=2, learners_per_node=2, metrics=metrics)


def show(attempt: AttemptDir, kind: str = "tensorboard", learners: tuple[int, ...] = (1, 2)) -> None:
    for number in learners:
        show_metrics(launched(attempt, kind), number)


def shown(attempt: AttemptDir, number: int) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(Path(attempt.learner_logs(number)).iterdir())}


@pytest.mark.parametrize("error", [None, errno.EPERM, errno.EXDEV])
def test_show_metrics_puts_records_beside_each_learner_log(
    attempt: AttemptDir, error: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is not None:
        monkeypatch.setattr(os, "link", refusal(error))
    for _ in range(2):  # storing is tried again
        show(attempt)
        assert shown(attempt, 1) == {"evaluation-metrics.txt": "records 1\n"}
        assert shown(attempt, 2) == {"evaluation-metrics.txt": "records 2\n"}


def test_show_metrics_keeps_existing_learner_file(attempt: AttemptDir, tmp_path: Path) -> None:
    Path(attempt.learner_logs(1), "evaluation-metrics.txt").write_text("mine\n")
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    Path(attempt.learner_logs(2), "evaluation-metrics.txt").symlink_to(secret)
    show(attempt)
    assert shown(attempt, 1)["evaluation-metrics.txt"] == "mine\n"
    assert Path(attempt.learner_logs(2), "evaluation-metrics.txt").readlink() == secret
    assert secret.read_text() == "secret\n"


def test_show_metrics_adds_no_file_for_own_records_or_without_metrics(attempt: AttemptDir) -> None:
    show(attempt, "emetrics_file")
    show(attempt, "")
    assert shown(attempt, 1) == {} == shown(attempt, 2)


def test_show_metrics_warns_and_continues_if_records_cannot_be_linked(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "link", refusal(errno.ENOSPC))
    show(attempt)
    assert shown(attempt, 1) == {} and "is not stored with the log" in capsys.readouterr().err
    Path(attempt.learner_logs(2)).rmdir()
    show(attempt, learners=(2,))


@pytest.mark.parametrize("error", [None, errno.EPERM])
def test_show_growing_exposes_current_records_in_separate_directory(
    attempt: AttemptDir, error: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is not None:
        monkeypatch.setattr(os, "link", refusal(error))
    place = show_growing(launched(attempt), 1)
    assert Path(place, "evaluation-metrics.txt").read_text() == "records 1\n"
    with Path(attempt.learner_metrics(1)).open("a") as file:
        file.write("more\n")
    assert show_growing(launched(attempt), 1) == place
    assert [path.name for path in Path(place).iterdir()] == ["evaluation-metrics.txt"]
    assert Path(place, "evaluation-metrics.txt").read_text() == "records 1\nmore\n"
    assert shown(attempt, 1) == {}
    Path(attempt.learner_logs(1), "evaluation-metrics.txt").write_text("mine\n")
    assert show_growing(launched(attempt), 1) == ""
    assert show_growing(launched(attempt, "emetrics_file"), 2) == "" == show_growing(launched(attempt, ""), 2)


def test_show_metrics_retries_copy_after_disk_was_full(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refusal(errno.EPERM))
    with monkeypatch.context() as now:
        now.setattr(os, "replace", refusal(errno.ENOSPC))
        show(attempt)
        assert shown(attempt, 1) == {}
    show(attempt)
    assert shown(attempt, 1) == {"evaluation-metrics.txt": "records 1\n"}


def test_store_logs_includes_records_of_earlier_attempt(attempt: AttemptDir, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    later = AttemptDir(str(tmp_path / "attempt-2"))
    Path(later.learner_logs(1)).mkdir(parents=True)
    launch = replace(launched(later), attempt=2, stores=Stores(logs=str(store)))
    store_logs(launch, [1])
    found = {str(path.relative_to(store)) for path in store.rglob("*.txt")}
    assert found == {"learner-1/attempt-1/evaluation-metrics.txt"}


def test_do_each_runs_remaining_stores_after_expected_errors(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def fails(error: Exception) -> None:
        raise error

    works = (lambda: fails(PhaseFailed("S303", "one")), lambda: fails(OSError("two")), lambda: done.append("three"))
    with pytest.raises(PhaseFailed, match="one"):
        do_each(works)
    assert done == ["three"] and "two" in capsys.readouterr().err
    with pytest.raises(KeyError):
        do_each([lambda: fails(KeyError("at once")), lambda: done.append("four")])
    assert done == ["three"]


def test_results_and_logs_are_sent_when_directory_store_fails(
    attempt: AttemptDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(result_storage, "send_results", lambda *_, **__: sent.append("results"))
    monkeypatch.setattr(result_storage, "send_logs", lambda *_, **__: sent.append("logs"))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, where a directory is to be\n")
    launch = replace(launched(attempt), stores=Stores(logs=str(blocked), results=str(blocked)))
    Path(attempt.results).mkdir()
    stores: list[Callable[[], None]] = [lambda: store_results(launch), lambda: store_logs(launch, [1])]
    for store in stores:
        with pytest.raises(OSError, match="blocked"):
            store()
    assert sent == ["results", "logs"]
