"""The pod that reads a claim, the program in it, and what its first line means."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import validate

from ffdl_batch.domain.job.views import LEFT_OUT, UNREADABLE
from ffdl_batch.domain.launch.attach_protocol import AGAIN, REFUSED, encode_frame
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow
from ffdl_batch.ports.capabilities import ReadsClaims
from ffdl_kubernetes.adapter import KubernetesScheduler
from ffdl_kubernetes.attach.claim_files import ABSENT, FOUND, PROGRAM, _await_begin, reader_job
from tests.fakes.kubernetes.pod_security import violations
from tests.file_modes import AS_OTHERS
from tests.unit.kubernetes.request_rig import settled


def test_kubernetes_scheduler_implements_reads_claims_port() -> None:
    assert issubclass(KubernetesScheduler, ReadsClaims)


@pytest.mark.parametrize("version", ["1.29", "1.36"])
def test_reader_pod_sees_only_its_directory_of_claim_and_is_restricted(version: str) -> None:
    job: Any = reader_job("a-read", "work", "jobs/training-a", settled({"tolerations": ["a=b:NoSchedule"]}))
    validate(job, version, strict=True)
    pod = job["spec"]["template"]["spec"]
    assert violations("restricted", job["spec"]["template"]) == ""
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert (mount["subPath"], mount["readOnly"]) == ("jobs/training-a", True)


def read(directory: Path, *under: str) -> bytes:
    argv = [*under, sys.executable, "-I", "-c", PROGRAM, str(directory)]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def test_reader_program_writes_each_name_of_a_file_whole_and_links_as_links(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/one").write_bytes(b"1" * 70000)
    (tmp_path / "two").hardlink_to(tmp_path / "deep/one")
    (tmp_path / "link").symlink_to("/etc/passwd")
    said = read(tmp_path)
    assert said.startswith(FOUND)
    with tarfile.open(fileobj=io.BytesIO(said.removeprefix(FOUND))) as archive:
        sizes = {one.name: one.size for one in archive if one.isreg()}
        assert (sizes, archive.getmember("link").linkname) == ({"deep/one": 70000, "two": 70000}, "/etc/passwd")
    assert read(tmp_path / "absent") == ABSENT


def test_reader_program_names_what_it_cannot_read_and_writes_all_others(tmp_path: Path) -> None:
    for name in ("a", "shut/in", "z/shut", "z/z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for name in ("shut", "z/shut"):
        (tmp_path / name).chmod(0)
    said = read(tmp_path, *AS_OTHERS)
    (tmp_path / "shut").chmod(0o700)
    with tarfile.open(fileobj=io.BytesIO(said.removeprefix(FOUND))) as archive:
        found = {one.name: one.pax_headers.get(UNREADABLE) for one in archive}
    denied = "Permission denied"
    assert found == {"a": None, "shut": denied, "z": None, "z/shut": denied, "z/z": None}


def test_reader_program_names_pipes_and_sockets_without_opening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "deep/pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("talk")
        said = read(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(said.removeprefix(FOUND))) as archive:
        found = {one.name: one.pax_headers.get(LEFT_OUT) for one in archive}
    assert found == {"deep": None, "deep/pipe": "a named pipe", "file": None, "talk": "a socket"}


@pytest.mark.parametrize(("line", "status", "kind"), [
    (ABSENT, 0, FileNotFoundError),
    (encode_frame(REFUSED, b"commands in pods are not permitted"), 69, InvalidRequest),
    (encode_frame(REFUSED, b"the API server cannot be reached"), AGAIN, NotNow),
    (b"", 1, NotNow),
    (b"no frame\n", 1, NotNow),
])  # fmt: skip
def test_claim_reader_raises_by_first_line_and_status(line: bytes, status: int, kind: type[Exception]) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"]) as process,
        pytest.raises(kind, match=r"directory|not permitted|cannot be reached|ended before it began"),
    ):
        _await_begin(process, io.BytesIO(line), "the directory")
