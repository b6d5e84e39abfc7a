"""A job's output as a zip, made while its tar is read."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from ffdl_batch.attempt.reader import open_regular
from ffdl_batch.domain.job.views import OutputView
from ffdl_batch.services.queries import job_output
from ffdl_batch.services.queries.job_output import archive_output
from ffdl_batch.services.queries.zip_output import NOTE, file_of, zip_of


def view(directory: Path, name: str = "") -> OutputView:
    return OutputView("j", "results", "COMPLETED", directory=str(directory), name=name)


def test_zip_has_regular_files_with_modes_and_no_links_or_pipes(tmp_path: Path) -> None:
    (tmp_path / "a/empty").mkdir(parents=True)
    data = os.urandom(3 << 20)  # more than one piece
    (tmp_path / "a/large").write_bytes(data)
    (tmp_path / "run.sh").write_text("true\n")
    (tmp_path / "run.sh").chmod(0o755)
    os.utime(tmp_path / "run.sh", (1, 1))  # before the first year of the format
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    pieces = list(zip_of(archive_output(view(tmp_path))))
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["a/large", "run.sh"]
        assert archive.read("a/large") == data
        script = archive.getinfo("run.sh")
        assert (script.external_attr >> 16, script.date_time[0]) == (0o100755, 1980)
    assert max(map(len, pieces)) < 2 << 20


def test_zip_has_names_and_times_that_the_format_cannot_have(tmp_path: Path) -> None:
    name = tmp_path / os.fsdecode(b"m\xff.bin")
    name.write_bytes(b"x")
    os.utime(name, ns=(0, (1 << 34) * 10**9))
    with zipfile.ZipFile(io.BytesIO(b"".join(zip_of(archive_output(view(tmp_path)))))) as archive:
        (entry,) = archive.infolist()
        assert (entry.filename, entry.date_time[0], archive.read(entry)) == ("m\\xff.bin", 1980, b"x")


def test_zip_of_empty_directory_is_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(b"".join(zip_of(archive_output(view(tmp_path)))))) as archive:
        assert archive.namelist() == []


def test_zip_names_files_that_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").touch()
    (tmp_path / "open").write_text("x")
    opened = open_regular

    def refuse(path: str, **options: object) -> object:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        return opened(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(job_output, "open_regular", refuse)
    with zipfile.ZipFile(io.BytesIO(b"".join(zip_of(archive_output(view(tmp_path)))))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "open": b"x", NOTE: b"closed: Permission denied\n"
        }  # fmt: skip


def test_single_file_is_sent_unchanged(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "model.zip").write_bytes(data)
    (tmp_path / "other").touch()
    assert b"".join(file_of(archive_output(view(tmp_path, "model.zip")))) == data
