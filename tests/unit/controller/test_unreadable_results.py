"""Results to which a learner, or the user's umask, denies the access: the user is named, and the rest is stored."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ffdl_batch.attempt.conclusion import EXIT_UNREADABLE
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed, PhaseFiles
from ffdl_batch.controller.data.input_loading import load_model
from ffdl_batch.controller.data.result_storage import store_results
from ffdl_batch.controller.data.tree_copy import NAMED, UnreadableSource, copy_tree
from ffdl_batch.controller.head.final_record import read_final
from ffdl_batch.controller.head.pending_uploads import upload
from ffdl_batch.controller.node.health_findings import HealthFindings
from ffdl_batch.controller.node.phase_runner import PhaseRunner
from ffdl_batch.domain.launch.launch_file import LaunchFile, Stores
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, Outcome, Phase, node_source
from tests.unit.controller.rig import launch_file, refusal

pytestmark = pytest.mark.usefixtures("bound_by_modes")


@pytest.fixture
def launch(tmp_path: Path) -> LaunchFile:
    """An attempt with results in three directories and a file."""
    job = tmp_path / "jobs/training-7"
    attempt = AttemptDir(str(job / "attempt-1"))
    for name in ("d0/a", "d1/b", "d2/c", "file"):
        (Path(attempt.results) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(attempt.results) / name).write_text(name)
    Path(attempt.learner_logs(1)).mkdir(parents=True)
    Path(attempt.state).mkdir(parents=True)
    Path(attempt.event_file(HEAD)).parent.mkdir(parents=True, exist_ok=True)
    stores = Stores(results=str(tmp_path / "store"), logs=str(tmp_path / "logs"))
    return launch_file(attempt.path, job_dir=str(job), stores=stores, umask=0o022, doorbell=str(tmp_path))


def results_of(launch: LaunchFile) -> Path:
    return Path(AttemptDir(launch.attempt_dir).results)


def stored(launch: LaunchFile) -> set[str]:
    store = Path(launch.stores.results)
    return {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("closed", "mode", "blamed", "left"),
    [
        (("d0",), 0, "d0", {"d1/b", "d2/c", "file"}),
        (("d1/b",), 0, "d1/b", {"d0/a", "d2/c", "file"}),
        (("d2",), 0o400, "d2", {"d0/a", "d1/b", "file"}),
        ((".",), 0, ".", set()),
        (("d0", "d2", "file"), 0, "file", {"d1/b"}),
    ],
)
def test_storing_names_entries_that_deny_access_and_stores_others(
    launch: LaunchFile,
    monkeypatch: pytest.MonkeyPatch,
    closed: tuple[str, ...],
    mode: int,
    blamed: str,
    left: set[str],
) -> None:
    monkeypatch.setattr(os, "link", refusal(errno.EPERM))
    for name in closed:
        (results_of(launch) / name).chmod(mode)
    attempt = AttemptDir(launch.attempt_dir)
    journal = Journal(attempt.event_file(node_source(0)), node_source(0))
    runner = PhaseRunner(launch, PhaseFiles(attempt.state), journal, HealthFindings("", journal))
    with pytest.raises(PhaseFailed) as caught:
        runner.run(Phase.STORE_RESULTS, lambda: store_results(launch), "S303")
    for name in closed:
        (results_of(launch) / name).chmod(0o700)
    place = results_of(launch) / blamed
    assert (caught.value.code, caught.value.fault_class) == ("C205", "unreadable")
    assert str(caught.value).endswith(f"you own {place}, and it has mode {mode:04o}; {_chmod(place)}")
    assert all(name in str(caught.value) for name in closed if name != ".")
    assert stored(launch) == left


def _chmod(place: Path) -> str:
    return f"chmod u+{'rwx' if place.is_dir() else 'r'} {place}"


@pytest.mark.parametrize("count", [1, 2, 1 + NAMED, 9])
def test_copy_tree_names_bounded_number_of_unreadable_entries(tmp_path: Path, count: int) -> None:
    source = tmp_path / "s"
    source.mkdir()
    for number in range(count):
        (source / f"f{number}").touch(0)
    with pytest.raises(UnreadableSource) as caught:
        copy_tree(str(source), str(tmp_path / "t"))
    said = str(caught.value)
    assert [f"f{number}" in said for number in range(count)] == [number <= NAMED for number in range(count)]
    assert ("all others were" in said) == (count > 1)
    assert (f"and {count - 1 - NAMED} more" in said) == (count > 1 + NAMED)


def test_copy_tree_blames_target_that_cannot_be_written_on_platform(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/file").write_text("x")
    (tmp_path / "t").mkdir(0o555)
    with pytest.raises(PermissionError) as caught:
        copy_tree(str(tmp_path / "s"), str(tmp_path / "t"))
    assert not isinstance(caught.value, UnreadableSource)


@pytest.mark.parametrize("write_record", ["", "when-stored", "always"])
def test_pending_upload_reports_unreadable_results_and_ends_attempt_at_once(
    launch: LaunchFile, write_record: str
) -> None:
    attempt = AttemptDir(launch.attempt_dir)
    head = Journal(attempt.event_file(HEAD), HEAD)
    head.append(EventKind.CLAIMED, native_id="7")
    node = Journal(attempt.event_file(node_source(0)), node_source(0))
    node.append(EventKind.LEARNER_STARTED, learner_id=1)
    node.append(EventKind.LEARNER_ENDED, learner_id=1, exit_code=0)
    assert head.flush() and node.flush()
    (results_of(launch) / "d0").chmod(0)
    assert upload(launch, write_record) == EXIT_UNREADABLE
    final = read_final(attempt)
    assert (final is not None) == bool(write_record)
    if final is not None:
        assert (final.outcome, final.stored, final.error_code) == (Outcome.FAILED, False, "C205")
        assert final.message.endswith(f"chmod u+rwx {results_of(launch)}/d0")
    assert stored(launch) == {"d1/b", "d2/c", "file"}
    (results_of(launch) / "d0").chmod(0o700)
    assert upload(launch) == 0
    assert "d0/a" in stored(launch)


def test_next_attempt_blames_user_if_earlier_results_deny_access(launch: LaunchFile, tmp_path: Path) -> None:
    earlier = tmp_path / "jobs/training-7/attempt-0"
    (earlier / "d0").mkdir(parents=True)
    (earlier / "d0").chmod(0)
    carrying = launch_file(launch.attempt_dir, job_dir=launch.job_dir, carry=str(earlier))
    with pytest.raises(PhaseFailed, match=f"cannot be copied from .*; chmod u.rwx {earlier}/d0$") as caught:
        load_model(carrying, lambda: None)
    assert caught.value.code == "C205"
    (earlier / "d0").chmod(0o700)
