"""Tests that replaced files are opened without following links, waiting, or reading to the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.attempt.reader import (
    DamagedFile,
    DeniedFile,
    find_object,
    find_text,
    list_names,
    open_regular,
    read_head,
    read_object,
    read_whole,
    size_of,
)
from tests.file_modes import modes_count
from tests.planted_files import NO_FILES, NO_JSON


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("below", [False, True])
def test_reader_refuses_file_that_is_not_regular(kind: str, below: bool, tmp_path: Path) -> None:
    path = tmp_path / "final.json"
    NO_FILES[kind](path)
    expected = "symbolic link" if kind.startswith("link") else kind
    with pytest.raises(DamagedFile, match=rf"final\.json is damaged: .* a {expected}"):
        open_regular(str(path), below=str(tmp_path) if below else "")


@pytest.mark.parametrize("kind", NO_JSON)
def test_reader_refuses_file_that_is_not_json_object(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "final.json"
    NO_JSON[kind](path)
    with pytest.raises(DamagedFile, match=r"final\.json is damaged: it (is not|has more than)"):
        read_object(str(path))


def test_reader_returns_content_within_limit(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    path.write_text('{"at": 1.5}', encoding="utf-8")
    assert read_object(str(path), 11, below=str(tmp_path)) == {"at": 1.5}
    assert read_whole(str(path), 11) == b'{"at": 1.5}'
    assert read_head(str(path), 5) == b'{"at"'
    with pytest.raises(DamagedFile, match="more than 10 bytes"):
        read_whole(str(path), 10)


@pytest.mark.parametrize("name", ["missing", "missing/final.json"])
def test_reader_reports_missing_file_with_its_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as found:
        open_regular(str(tmp_path / name), below=str(tmp_path))
    assert found.value.filename == str(tmp_path / name)


def _link(directory: Path, elsewhere: Path) -> None:
    directory.symlink_to(elsewhere)


def _file(directory: Path, _elsewhere: Path) -> None:
    directory.touch()


@pytest.mark.parametrize(("plant", "why"), [(_link, "symbolic link"), (_file, "regular file")])
def test_reader_enters_no_directory_that_was_replaced(
    plant: Callable[[Path, Path], None], why: str, tmp_path: Path
) -> None:
    elsewhere, attempt = tmp_path / "elsewhere", tmp_path / "attempt"
    elsewhere.mkdir()
    attempt.mkdir()
    (elsewhere / "head.jsonl").write_text("{}\n", encoding="utf-8")
    plant(attempt / "events", elsewhere)
    with pytest.raises(DamagedFile, match=f"'events' is a {why}"):
        open_regular(str(attempt / "events" / "head.jsonl"), below=str(attempt))


def test_reader_follows_links_above_the_directory_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "cell.json").write_text("{}", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    assert read_object(str(tmp_path / "link" / "cell.json"), below=str(tmp_path / "link")) == {}


def test_reader_refuses_path_outside_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/etc/passwd is not in"):
        open_regular("/etc/passwd", below=str(tmp_path))


def test_reader_refuses_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, status = tmp_path / "final.json", os.fstat
    path.write_text("{}", encoding="utf-8")
    monkeypatch.setattr(
        os, "fstat", lambda descriptor: os.stat_result((*(found := status(descriptor))[:4], 12345, *found[5:10]))
    )
    with pytest.raises(DamagedFile, match="belongs to uid 12345"):
        read_object(str(path), below=str(tmp_path))


def test_reader_reopens_file_blocking_if_it_has_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("x", encoding="utf-8")
    real, asked = os.open, []

    def refuse(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        asked.append(bool(flags & os.O_NONBLOCK))
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(11, "leased", path)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    assert find_text(str(tmp_path / "log")) == "x"
    assert asked == [True, False]


@pytest.mark.parametrize("kind", [*NO_FILES, *NO_JSON])
def test_finders_treat_damaged_file_as_missing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    {**NO_FILES, **NO_JSON}[kind](path)
    assert find_object(str(path)) == {}
    if kind in NO_FILES:
        assert (find_text(str(path)), size_of(str(path))) == ("", 0)


def test_finders_return_content_and_nothing_if_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    path.write_bytes(b'{"a":1}\xff')
    assert (find_text(str(path), 8), find_text(str(path), 3), size_of(str(path))) == ('{"a":1}\ufffd', '{"a', 8)
    for missing in (tmp_path / "none", path / "below"):
        assert (find_object(str(missing)), find_text(str(missing)), size_of(str(missing))) == ({}, "", 0)


@pytest.mark.parametrize("closed", ["attempt/events/node-0.jsonl", "attempt/events", "attempt", "."])
@pytest.mark.parametrize("below", [False, True])
def test_reader_counts_file_that_its_owner_closed_as_damaged(closed: str, below: bool, tmp_path: Path) -> None:
    events = tmp_path / "job" / "attempt" / "events"
    events.mkdir(parents=True)
    path = events / "node-0.jsonl"
    path.write_text("{}")
    place = tmp_path / "job" / closed
    mode = place.stat().st_mode
    place.chmod(0)
    base = str(events.parent) if below else ""
    try:
        with modes_count():
            with pytest.raises(DeniedFile, match=rf"its owner may not read it, because '{place.name}' has mode 0000"):
                read_head(str(path), 10, below=base)
            with pytest.raises(PermissionError):
                open_regular(str(path), below=base)
            assert find_object(str(path), below=base) == {}
            assert size_of(str(path)) == (2 if closed.endswith("jsonl") else 0)
            if not closed.endswith("jsonl"):
                with pytest.raises(DamagedFile):
                    list_names(str(events), below=str(events.parent))
    finally:
        place.chmod(mode)


def test_reader_does_not_blame_the_owner_for_what_a_file_server_denies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "final.json"
    path.write_text("{}")

    def denies(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denies)
    with pytest.raises(PermissionError) as denied:
        read_head(str(path), 10)
    assert not isinstance(denied.value, DamagedFile)
