"""Controllers that are killed while they store: real ones, and the local backend with a real daemon."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome, decode_events, node_source
from tests import preloaded
from tests.contract import daemon_rig
from tests.contract.controller_rig import Rig, job_id, rig
from tests.contract.daemon_rig import Site, site_in, until
from tests.faultfs import Fault, fault_fs

MANY = 50
STANDS = """
if "node" in sys.orig_argv:
    import os, signal
    from ffdl_batch.controller.data import tree_copy as trees
    place = trees._place
    def first(name, is_link, pair):
        place(name, is_link, pair)
        os.kill(os.getpid(), signal.SIGSTOP if os.path.join(*pair.target_path).startswith({store!r}) else 0)
    trees._place = first
"""
"""A node controller stands still when it has stored its first file, so that it is killed before it has stored all."""
WRITE = f"import os; [open(os.path.join(os.environ['RESULT_DIR'], str(n)), 'w').close() for n in range({MANY})]"
WORK = f'echo ran >> "{{log}}"; {sys.executable} -c "{WRITE}"; echo over; exit {{status}}'


@pytest.fixture(name="run")
def made(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as one:
        yield one


def kill_storing(run: Rig, status: int) -> None:
    """Run a learner that ends with `status`; kill both controllers when its results are being stored."""
    run.write(WORK.format(log=run.base / "n", status=status))
    run.have_controllers_do(STANDS.format(store=str(run.store)))
    head = run.start()
    run.wait(lambda: any(run.store.glob("[0-9]*")), "the first result in the store")
    run.have_controllers_do()
    head.kill()
    os.kill(run.node_pid(), signal.SIGKILL)
    head.wait(timeout=180)
    run.kill_all()
    assert not any(event.kind is EventKind.STORED for event in run.events()), "they were stored before the kill"
    assert not Path(run.attempt.final).exists()


def runs(run: Rig) -> int:
    return len((run.base / "n").read_text().splitlines())


def test_pending_upload_writes_final_result_and_removes_temporary_files_of_vanished_node(run: Rig) -> None:
    kill_storing(run, 3)
    journal = Path(run.attempt.event_file(node_source(0)))
    journal.write_text(journal.read_text().replace(os.uname().nodename, "n7.site"))
    left = run.store / f".n7.site-{run.node_pid()}.ffdl-tmp"
    left.write_text("half")
    assert run.run("upload", "--final-record", "when-stored") == 0, run.errors
    final = run.final()
    assert (final.outcome, final.stored, final.exit_code, final.native_id) == (Outcome.FAILED, True, 3, "7")
    assert (final.error_code, final.log_tail) == ("C201", ("over",))
    assert not left.exists()
    assert len(list(run.store.glob("[0-9]*"))) == MANY
    assert run.run() == 3, "a run that the scheduler starts again has nothing left to do"
    assert runs(run) == 1


def test_pending_upload_without_final_result_removes_what_dead_processes_left(run: Rig) -> None:
    """Their temporary files in the store, and the scratch directory of the attempt."""
    kill_storing(run, 0)
    (run.store / "deep").mkdir()
    here, gone = os.uname().nodename, preloaded.Popen(["true"])
    gone.wait()
    left = [f".{here}-{run.node_pid()}.ffdl-tmp", f"deep/.{here}-{gone.pid}.ffdl-tmp"]
    others = [f".{here}-{os.getpid()}.ffdl-tmp", ".elsewhere-7.ffdl-tmp", f".{here}.ffdl-tmp"]
    for name in (*left, *others):
        (run.store / name).write_text("half")
    own, other = run.base / f"ffdl-{job_id()}-1-0", run.base / f"ffdl-{job_id()}-10-0"
    other.mkdir()
    assert own.is_dir()
    assert run.run("upload") == 0, run.errors
    assert {name for name in (*left, *others) if (run.store / name).exists()} == set(others)
    assert len(list(run.store.glob("[0-9]*"))) == MANY
    assert (own.exists(), other.exists()) == (False, True)
    assert not Path(run.attempt.final).exists()


def test_requeued_attempt_uploads_results_without_rerunning_learner(run: Rig) -> None:
    kill_storing(run, 0)
    assert run.run() == 0, run.errors
    assert (run.final().outcome, run.final().restart, runs(run)) == (Outcome.COMPLETED, 1, 1)
    assert len(list(run.store.glob("[0-9]*"))) == MANY


def test_pending_upload_fails_when_store_refuses_results(run: Rig) -> None:
    kill_storing(run, 0)
    run.store.rename(run.base / "moved")
    run.store.write_text("in the way")
    for write_record, said in (("when-stored", False), ("always", True)):
        assert run.run("upload", "--final-record", write_record) == 74
        assert Path(run.attempt.final).exists() == said
        assert not Path(run.attempt.uploaded).exists()
    final = run.final()
    assert (final.outcome, final.stored, final.error_code) == (Outcome.FAILED, False, "S303")
    assert "cannot be stored" in final.message


def test_pending_upload_ends_learner_that_outlived_its_controllers(run: Rig) -> None:
    run.write(f"echo up; while :; do echo x >> '{run.base}/alive'; sleep 0.05; done")
    head = run.start()
    run.wait_for_log("up")
    head.kill()
    os.kill(run.node_pid(), signal.SIGKILL)
    head.wait(timeout=180)
    assert run.run("upload") == 0, run.errors
    run.wait(lambda: run.processes() == [], "the end of what was killed")


# -------------------------------------------------------------------------------------- the whole platform


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, more_environment={"FFDL_BACKEND": "local"}) as made:
        made.start(program=daemon_rig.PATIENT)
        yield made


def submitted(site: Site, first: str = "", retry: str = "", store: Path | None = None) -> tuple[str, AttemptDir]:
    """Submit a job of the local backend, whose results go to `store`; its learner does `first` before all."""
    manifest = f"""\
name: uploading
gpus: 0
framework:
  name: custom
  version: python-numpy
  command: {json.dumps(first + WORK.format(log=site.directory / "n", status=0))}
data_stores:
  - id: here
    type: directory
    training_results: {{container: out}}
    connection: {{path: {store or site.directory}}}
batch: {{retry: {{{retry}}}}}
"""
    archive = daemon_rig.model_zip()
    digest = hashlib.sha256(archive).hexdigest()
    assert site.ask("PUT", f"/api/v1/archives/{digest}", archive)[0] == 200
    submission = {**daemon_rig.submission("k1", digest), "manifest": manifest, "backend": "local"}
    (result,) = site.ask("POST", "/api/v1/jobs", {"submissions": [submission]})[1]["results"]
    assert result["problem"] is None, result
    return result["id"], Root(str(site.state)).job(result["id"]).attempt(1)


def show(site: Site, job_id: str) -> dict[str, Any]:
    return dict(site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"])


def await_storing(attempt: AttemptDir) -> None:
    """Until the node controller has begun to store."""
    path = Path(attempt.event_file("node-0"))
    until(lambda: path.exists() and "store-results" in path.read_text(), "the store phase")


def pid_of(attempt: AttemptDir, source: str) -> int:
    events = decode_events(Path(attempt.event_file(source)).read_text())
    return int([event for event in events if event.kind is EventKind.STARTED][-1].fields["pid"] or 0)


def ended(site: Site, job_id: str) -> dict[str, Any]:
    return dict(until(lambda: (job := show(site, job_id))["ended_at"] and job, f"the end of {show(site, job_id)}"))


def test_daemon_completes_pending_upload_after_head_controller_is_killed(site: Site) -> None:
    """The local backend ends whatever a killed head leaves behind. It is known at once that all of it is gone: this
    daemon would wait for a day for what may still be at work."""
    (site.directory / "fs").mkdir()
    with fault_fs(site.directory / "fs") as fs:
        job_id, attempt = submitted(site, store=fs.point)
        fs.befall(Fault(("create",), delay_s=2.0))
        await_storing(attempt)
        os.kill(pid_of(attempt, "head"), signal.SIGKILL)
        until(lambda: show(site, job_id)["attempts"][0]["upload_pending"], "the pending upload")
        assert show(site, job_id)["state"] == "STORING"
        fs.clear()
        job = ended(site, job_id)
        assert len(list(Path(job["results"]).glob("[0-9]*"))) == MANY
    assert (job["state"], job["error_code"], job["exit_code"], job["attempt"]) == ("COMPLETED", "000", 0, 1), job
    assert not job["attempts"][0]["upload_pending"]
    assert job["attempts"][0]["ended_at"] <= job["ended_at"]
    assert (site.directory / "n").read_text() == "ran\n"


def test_daemon_starts_next_attempt_after_controllers_and_learner_are_killed(site: Site) -> None:
    """Supervisor, controllers and learner at once: the next attempt may have this machine, and time is counted up to
    the last sign of life."""
    job_id, attempt = submitted(site, '[ "$FFDL_ATTEMPT" = 2 ] || sleep 600; ', "node_failures: 1")
    record = Path(attempt.path) / "local" / "started.json"
    until(lambda: show(site, job_id)["state"] == "PROCESSING", "the learner")
    pids = [json.loads(record.read_text())["pid"], *(pid_of(attempt, source) for source in ("head", "node-0"))]
    events = decode_events(Path(attempt.event_file("node-0")).read_text())
    pids += [int(event.fields["pid"] or 0) for event in events if event.kind is EventKind.LEARNER_STARTED]
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, sign)
    job = ended(site, job_id)
    assert (job["state"], job["attempt"], job["overrides"]) == ("COMPLETED", 2, {}), job
    first = job["attempts"][0]
    assert first["interruption"] == "node_failure"
    assert first["submitted_at"] < first["ended_at"] < job["attempts"][1]["submitted_at"]
