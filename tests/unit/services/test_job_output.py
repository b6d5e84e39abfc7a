"""Where the output of a job is."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from ffdl_batch.client.api_calls.job_output import FileLimits, OutputIncomplete, _Pieces, _unpack
from ffdl_batch.client.errors import FileTooLarge
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.job.job import AttemptEnd, Job
from ffdl_batch.domain.job.views import LEFT_OUT, OutputView, Resume
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import Pod, Stores, decode, encode
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.queries.job_output import OutputKind, archive_output, find_output
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import Site

BUCKET = StoreAddress(StoreKind.S3, "https://store", container="b", credentials={"user_name": "k", "password": "s"})


@pytest.fixture
def job(site: Site) -> Job:
    """One that has run, and whose results go to a store."""
    made = site.deployed()
    attempt = site.attempt(made)
    path = Path(attempt.launch)
    transfers = (
        Transfer(BUCKET, "odd{{}}/_wml", literal(site.platform.storage.root.job(made.id).checkpoints)),
        Transfer(BUCKET, f"odd{{{{}}}}/{made.id}", literal(attempt.results)),
    )
    path.write_text(encode(replace(decode(path.read_text()), uploads=transfers)))
    Path(attempt.results).mkdir(parents=True, exist_ok=True)
    return made


def goes_to(site: Site, job: Job, *states: JobState, upload_pending: bool | None = None) -> None:
    """Through these states; the last is the attempt's end where `upload_pending` is said."""
    for state in states:
        end = AttemptEnd(upload_pending=upload_pending) if upload_pending is not None and state is states[-1] else None
        site.clock.tick(1)
        site.move(site.job(job.id), state, attempt_end=end)


def find(site: Site, job: Job, kind: str = "results", attempt: int | None = None) -> OutputView:
    return find_output(site.platform.storage, site.platform.adapters, site.caller, job.id, OutputKind(kind), attempt)


def test_find_output_returns_results_in_store_once_job_has_stored_them(site: Site, job: Job) -> None:
    with pytest.raises(Refused, match="none of its attempts got as far as its learners"):
        find(site, job)
    goes_to(site, job, JobState.PROCESSING)
    running = find(site, job)
    assert (running.directory, running.is_partial, running.store) == (site.attempt(job).results, True, None)
    assert running.note == f"{job.id} is PROCESSING: its output is not complete"
    goes_to(site, job, JobState.STORING, JobState.COMPLETED, upload_pending=False)
    stored = find(site, job)
    assert (stored.store, stored.prefix, stored.directory, stored.is_partial) == (
        BUCKET,
        f"odd{{}}/{job.id}",
        site.attempt(job).results,
        False,
    )
    assert stored.secrets == site.platform.storage.root.job(job.id).secrets
    named = find(site, job, attempt=1)
    assert (named.store, named.directory) == (None, site.attempt(job).results)
    with pytest.raises(Refused, match="there is no attempt 2"):
        find(site, job, attempt=2)


def test_find_output_returns_attempt_directory_while_upload_is_pending(site: Site, job: Job) -> None:
    goes_to(site, job, JobState.PROCESSING, JobState.FAILED, upload_pending=True)
    found = find(site, job)
    assert (found.directory, found.store) == (site.attempt(job).results, None)
    assert "could not be stored yet" in found.note


def test_find_output_returns_model_archive_before_job_runs(site: Site, job: Job) -> None:
    found = find(site, job, "model")
    assert (found.directory, found.name) == (site.platform.storage.root.job(job.id).path, "model.zip")
    Path(found.directory, found.name).unlink()
    with pytest.raises(Refused, match="has no model"):
        find(site, job, "model")


def test_find_output_returns_log_and_checkpoint_directories(site: Site, job: Job) -> None:
    goes_to(site, job, JobState.PROCESSING)
    Path(site.attempt(job).logs).mkdir(parents=True, exist_ok=True)
    assert find(site, job, "logs").directory == site.attempt(job).logs
    Path(site.platform.storage.root.job(job.id).checkpoints).mkdir(parents=True, exist_ok=True)
    assert find(site, job, "checkpoint").directory == site.platform.storage.root.job(job.id).checkpoints
    path = Path(site.attempt(job).launch)
    shared = Path(site.platform.storage.root.path, "shared")
    shared.mkdir()
    path.write_text(encode(replace(decode(path.read_text()), checkpoints=str(shared))))
    assert find(site, job, "checkpoint").directory == str(shared)


def test_find_output_notes_removed_logs_of_ended_job(site: Site, job: Job) -> None:
    logs = Path(site.attempt(job).logs)
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True, exist_ok=True)
    goes_to(site, job, JobState.PROCESSING)
    assert find(site, job, "logs").note == f"{job.id} is PROCESSING: its output is not complete"
    goes_to(site, job, JobState.STORING, JobState.COMPLETED, upload_pending=False)
    assert find(site, job, "logs").note == f"{job.id} has no logs any more: no log file of a learner is in {logs}"
    log.touch()
    assert find(site, job, "logs").note == ""
    log.unlink()
    in_pods(site, job, stored=True)
    assert find(site, job, "logs").note == ""
    shutil.rmtree(logs)
    with pytest.raises(Refused, match="has no logs"):
        find(site, job, "logs")


def in_pods(site: Site, job: Job, *, stored: bool, apart: bool = True) -> None:
    """As if it had run in pods, whose tree is another one."""
    path, tree = Path(site.attempt(job).launch), f"/ffdl/jobs/{job.id}"
    launch = decode(path.read_text())
    uploads = (Transfer(BUCKET, "_wml", f"{tree}/checkpoints"), Transfer(BUCKET, "mine", f"{tree}/attempt-1/results"))
    changed = replace(
        launch, pod=Pod("/ffdl-pod", apart=apart), attempt_dir=f"{tree}/attempt-1", checkpoints=f"{tree}/checkpoints",
        uploads=uploads if stored else (),
    )  # fmt: skip
    path.write_text(encode(changed))


def test_find_output_returns_store_for_uploads_of_pods(site: Site, job: Job) -> None:
    in_pods(site, job, stored=True)
    goes_to(site, job, JobState.PROCESSING, JobState.STORING, JobState.COMPLETED, upload_pending=False)
    assert (find(site, job).store, find(site, job).prefix) == (BUCKET, "mine")
    assert (find(site, job, "checkpoint").store, find(site, job, "checkpoint").prefix) == (BUCKET, "_wml")
    Path(site.attempt(job).logs).mkdir(parents=True, exist_ok=True)
    assert find(site, job, "logs").directory == site.attempt(job).logs


def stores_apart(site: Site) -> None:
    """The backend stores what pods leave."""
    site.scheduler.begin_storing = site.scheduler.how_storing_goes = Mock()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("apart", "note"),
    [
        (True, "they go with its pods; name a data store for training_results, and they are kept there"),
        (False, "they are in the cluster's claim (claim of [backend.kubernetes]), at jobs/{}/attempt-1/results;"),
    ],
)
def test_job_view_and_find_output_name_no_directory_for_files_that_exist_only_in_pods_or_cluster_claim(
    site: Site, job: Job, apart: bool, note: str
) -> None:
    goes_to(site, job, JobState.PROCESSING)
    stores_apart(site)
    before = site.view(job)
    assert (before.results, before.results_note) == (site.attempt(job).results, "")
    in_pods(site, job, stored=False, apart=apart)
    shown = site.view(job)
    assert (shown.results, [one.results for one in shown.attempts]) == ("", [""])
    assert shown.results_note.startswith(note.format(job.id)) and shown.logs == site.attempt(job).logs
    for kind in ("results", "checkpoint"):
        with pytest.raises(Refused, match="go with its pods" if apart else "are in the cluster's claim"):
            find(site, job, kind)


def test_job_view_and_find_output_name_cluster_claim_of_results_written_by_pods(
    site: Site, job: Job, tmp_path: Path
) -> None:
    goes_to(site, job, JobState.PROCESSING)
    stores_apart(site)
    in_pods(site, job, stored=False, apart=False)
    path, out = Path(site.attempt(job).launch), str(tmp_path / "data/out/mine")
    launch = decode(path.read_text())
    assert launch.pod is not None
    pod = replace(launch.pod, claims={str(tmp_path): "other", str(tmp_path / "data"): "shared/base"})
    path.write_text(encode(replace(launch, pod=pod, stores=Stores(results=out))))
    site.move(site.job(job.id), columns={"results": out})
    where = "are in the cluster's claim shared, at base/out/mine"
    shown = site.view(job)
    assert (shown.results, shown.results_note.split("; ")) == (
        "", [f"{out} of the pods: they {where}", "ffdl download fetches them"],
    )  # fmt: skip
    goes_to(site, job, JobState.STORING, JobState.COMPLETED, upload_pending=False)
    with pytest.raises(Refused, match=where):
        find(site, job)
    Path(out).mkdir(parents=True)  # this machine has the same directory
    assert find(site, job).directory == out


def test_job_view_has_no_results_directory_when_learners_in_pods_never_started(site: Site, job: Job) -> None:
    stores_apart(site)
    in_pods(site, job, stored=False)
    for states in ((), (JobState.DOWNLOADING,), (JobState.FAILED,)):
        goes_to(site, job, *states)
        shown = site.view(job)
        assert shown.results == "" and shown.results_note.startswith("they go with its pods"), shown.state


def test_archive_output_contains_files_links_directories_and_modes_and_follows_no_link(tmp_path: Path) -> None:
    names = {"empty": b"", "deep/ü [1]": b"1" * 513, "block": b"2" * 512, "x" * 200 + "/" + "y" * 200: b"3"}
    for name, data in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "block").chmod(0o5755)
    (tmp_path / "deep").chmod(0o3750)
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "round").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    data = b"".join(archive_output(OutputView("j", "results", "COMPLETED", directory=str(tmp_path))))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entries = [one for one in archive if LEFT_OUT not in one.pax_headers]
        assert {one.name: one.pax_headers[LEFT_OUT] for one in archive.getmembers() if one not in entries} == {
            "pipe": "a named pipe"
        }
        assert {one.name: archive.extractfile(one).read() for one in entries if one.isreg()} == names  # type: ignore[union-attr]
        assert {one.name: one.linkname for one in entries if one.issym()} == {
            "link": "/etc/passwd",
            "round": str(tmp_path),
        }
        assert {one.name: one.mode for one in entries if one.name in ("block", "deep")} == {
            "block": 0o755,
            "deep": 0o1750,
        }
        assert len(entries) == len(names) + 4
    one = b"".join(archive_output(OutputView("j", "model", "COMPLETED", directory=str(tmp_path), name="block")))
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert archive.getnames() == ["block"]


def test_unpacked_archive_has_only_wanted_files_within_the_limit(tmp_path: Path) -> None:
    source = tmp_path / "s"
    (source / "deep").mkdir(parents=True)
    for name, size in (("function.result", 100), ("large", 5000), ("deep/function.result", 5000)):
        (source / name).write_bytes(b"x" * size)

    def unpack(limits: FileLimits) -> list[str]:
        target = tmp_path / "t"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        pieces = archive_output(OutputView("j", "results", "COMPLETED", directory=str(source)))
        _unpack(_Pieces(pieces, lambda size: None), target, (), list[str]().append, limits)
        return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())

    assert unpack(FileLimits(("function.result",), 100)) == ["function.result"]
    assert unpack(FileLimits(("*result",))) == ["deep/function.result", "function.result"]
    for limits in (FileLimits(most_bytes=4999), FileLimits(("function.result",), 99)):
        with pytest.raises(FileTooLarge, match=f"the maximum is {limits.most_bytes}"):
            unpack(limits)


@pytest.mark.usefixtures("bound_by_modes")
def test_unpacked_archive_has_the_links_modes_and_holes_of_the_directory(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    (source / "closed" / "empty").mkdir(parents=True)
    for name in ("shared", "usual"):
        (source / name).mkdir()
    (source / "closed" / "tool").write_text("x")
    (source / "closed" / "latest").symlink_to("tool")
    with (source / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.write(b"start")
    modes = {
        "closed/tool": 0o555,
        "closed/empty": 0o700,
        "closed": 0o555,
        "sparse": 0o640,
        "shared": 0o1777,
        "usual": 0o1755,
    }
    for name, mode in modes.items():
        (source / name).chmod(mode)
    target.mkdir()
    pieces = archive_output(OutputView("j", "results", "COMPLETED", directory=str(source)))
    assert _unpack(_Pieces(pieces, lambda size: None), target, (), list[str]().append) == 2
    assert {name: (target / name).stat().st_mode & 0o7777 for name in modes} == modes
    assert str((target / "closed" / "latest").readlink()) == "tool"
    assert (target / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (target / "sparse").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    "name",
    [
        b"m\xfcller",
        b"m\xfcller/caf\xe9.pt",
        b"\xff\xfe",
        b"line\nbreak",
        b"tab\t",
        b"\xe2\x80\xae",
        b" ",
        b"-r",
        b"n" * 255,
    ],
)
def test_unpacked_archive_has_files_whatever_the_bytes_of_their_names(tmp_path: Path, name: bytes) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    path = source / os.fsdecode(name)
    path.parent.mkdir(parents=True)
    path.write_text("x")
    (path.parent / "link").symlink_to(path.name)
    target.mkdir()
    noted: list[str] = []
    pieces = archive_output(OutputView("j", "results", "COMPLETED", directory=str(source)))
    assert (_unpack(_Pieces(pieces, lambda size: None), target, (), noted.append), noted) == (1, [])
    brought = target / os.fsdecode(name)
    assert brought.read_text() == (brought.parent / "link").read_text() == "x"


@pytest.mark.parametrize("above", ["", "deep/", "a/b c/"])
def test_unpacked_archive_leaves_out_and_names_pipes_and_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    (source / above).mkdir(parents=True)
    (source / above / "file").write_text("x")
    os.mkfifo(source / above / "pipe")
    monkeypatch.chdir(source / above)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    target.mkdir()
    noted: list[str] = []
    pieces = archive_output(OutputView("j", "results", "COMPLETED", directory=str(source)))
    assert _unpack(_Pieces(pieces, lambda size: None), target, (), noted.append) == 1
    assert sorted(noted) == [
        f"{above}pipe is left out: it is a named pipe",
        f"{above}socket is left out: it is a socket",
    ]
    assert [path.name for path in target.rglob("*") if not path.is_dir()] == ["file"]


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize(("shut", "named"), [
    ({"d0": 0}, ["d0"]), ({"f": 0}, ["f"]), ({"d0": 0o444}, ["d0/in"]),
    ({"d0": 0, "f": 0, "d1/in": 0}, ["f", "d0", "d1/in"]),
])  # fmt: skip
def test_unpacked_archive_has_all_files_but_unreadable_ones_and_names_them(
    tmp_path: Path, shut: dict[str, int], named: list[str]
) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    for name in ("a", "d0/in", "d1/in", "f", "z"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    for name, mode in shut.items():
        (source / name).chmod(mode)
    target.mkdir()
    noted: list[str] = []
    pieces = archive_output(OutputView("j", "results", "COMPLETED", directory=str(source)))
    with pytest.raises(OutputIncomplete) as caught:
        _unpack(_Pieces(pieces, lambda size: None), target, (), noted.append)
    (source / "d0").chmod(0o755)
    assert noted == [f"{name} cannot be read: Permission denied" for name in named]
    assert "; ".join(f"{name}: Permission denied" for name in named) in str(caught.value)
    assert caught.value.problem.exit_code == 1
    left_out = {*named, "d0/in"} if "d0" in shut else {*named}
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"a", "d0/in", "d1/in", "f", "z"} - left_out


def put_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def put_pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def put_file(path: Path, outside: Path) -> None:
    path.write_text("x")


def put_dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "nothing")


PUT = pytest.mark.parametrize(
    ("put", "words"),
    [
        (put_link, "is a symbolic link"),
        (put_dangling_link, "is a symbolic link"),
        (put_pipe, "is a named pipe"),
        (put_file, "is a regular file"),
    ],
)


@PUT
@pytest.mark.parametrize("kind", ["checkpoint", "results", "logs"])
def test_find_output_refuses_directory_that_a_learner_replaced(
    site: Site, job: Job, tmp_path: Path, put: Callable[[Path, Path], None], words: str, kind: str
) -> None:
    goes_to(site, job, JobState.PROCESSING)
    place = Path(find(site, job, kind).directory)
    place.rename(f"{place}-moved")
    put(place, tmp_path)
    with pytest.raises(Refused, match=f"{place}: '{place.name}' {words}"):
        find(site, job, kind)


def test_archive_output_refuses_directory_that_was_replaced_after_it_was_found(
    site: Site, job: Job, tmp_path: Path
) -> None:
    goes_to(site, job, JobState.PROCESSING)
    output = find(site, job, "checkpoint")
    Path(output.directory).rename(tmp_path / "moved")
    Path(output.directory).symlink_to(Path(site.platform.storage.root.path))
    with pytest.raises(OSError, match="the directory was replaced"):
        list(archive_output(output))


@PUT
def test_resume_refuses_replaced_checkpoint_directory(
    site: Site, job: Job, tmp_path: Path, put: Callable[[Path, Path], None], words: str
) -> None:
    goes_to(site, job, JobState.PROCESSING, JobState.FAILED)
    place = Path(site.platform.storage.root.job(job.id).checkpoints)
    place.rmdir()
    put(place, tmp_path)
    with pytest.raises(Refused, match=words):
        resume_job(
            site.platform.storage, site.platform.adapters, site.platform.store_checks, site.caller, job.id, Resume()
        )
