"""Staging from a web server and a directory, and results into a directory."""

from __future__ import annotations

import base64
import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, Note, Retry
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from tests.fakes.fault_proxy import FaultProxy, Rule
from tests.fakes.serving import serving, serving_files
from tests.staging_rig import MIB, Outcome, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(10).randbytes(3 * MIB + 9)


@dataclass
class Web:
    """A server of files that gives ranges and ETags, as common ones do."""

    files: dict[str, bytes]
    headers: dict[str, str] = field(default_factory=dict)
    password: str = ""
    has_ranges: bool = True
    has_lengths: bool = True
    head_status: int = 0
    port: int = 0

    def etag(self, path: str) -> str:
        """As of a file's content."""
        return f'"{hashlib.sha1(self.files[path]).hexdigest()[:20]}"'


class _Serving(BaseHTTPRequestHandler):
    web: Web
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        if self.web.head_status:
            self._end(self.web.head_status)
        else:
            self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path, web = self.path, self.web
        if web.password and self.headers.get("Authorization") != web.password:
            self._end(401)
        elif path not in web.files:
            self._end(404)
        elif self.headers.get("If-Match", web.etag(path)) != web.etag(path):
            self._end(412)
        else:
            self._give(path, with_body)

    def _give(self, path: str, with_body: bool) -> None:
        data, asked = self.web.files[path], self.headers.get("Range")
        if asked and self.web.has_ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            data = data[int(first) : int(last) + 1]
        self.send_response_only(206 if asked and self.web.has_ranges else 200)
        self.send_header("ETag", self.web.etag(path))
        if self.web.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        for name, value in self.web.headers.items():
            self.send_header(name, value)
        if self.web.has_lengths:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def _end(self, status: int) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server of the test's own, with one large file and one small one."""
    made = Web({"/set/big": NOISE, "/set/sp%20ace.txt": b"1"})

    class Handler(_Serving):
        web = made

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    with serving(server):
        yield made


@pytest.fixture
def front(web: Web) -> Iterator[FaultProxy]:
    """In front of it."""
    made = FaultProxy(web.port)
    yield made
    made.stop()


def at(front: FaultProxy) -> StoreAddress:
    return StoreAddress(StoreKind.HTTP, f"{front.endpoint}/set", options={"timeout_s": "60"})


def test_http_store_downloads_file_in_ranges_and_keeps_unchanged_file(rig: StagingRig, front: FaultProxy) -> None:
    task = rig.task(store=at(front), prefix="big")
    assert rig.run(task).done.files == 1
    assert rig.files() == {"big": NOISE}
    assert sum(bool(asked) for _, _, asked in front.requests) == 4
    assert rig.run(task).done.kept == 1
    assert rig.run(rig.task(store=at(front), prefix="sp ace.txt")).done.files == 1
    assert rig.files()["sp ace.txt"] == b"1"


@pytest.mark.parametrize("cut_at", [-1, 500_000])
def test_http_store_downloads_whole_file_without_ranges_and_lengths(rig: StagingRig, web: Web, cut_at: int) -> None:
    web.has_ranges = web.has_lengths = False
    front = FaultProxy(web.port)
    front.rules = [Rule("GET", "/big", times=1, cut_at=cut_at)] if cut_at > 0 else []
    store = at(front) if cut_at > 0 else replace(at(front), endpoint=f"http://127.0.0.1:{web.port}/set")
    outcome = rig.run(rig.task(store=store, prefix="big"))
    front.stop()
    assert outcome.done.files == 1
    assert len(outcome.of(Retry)) == (1 if cut_at > 0 else 0)
    assert rig.files() == {"big": NOISE}


@pytest.mark.parametrize("has_lengths", [True, False])
def test_download_of_file_above_limit_ends_before_it_is_written_whole(
    rig: StagingRig, web: Web, has_lengths: bool
) -> None:
    """A server may not tell the size before."""
    web.has_ranges = web.has_lengths = has_lengths
    store = replace(StoreAddress(StoreKind.HTTP, f"http://127.0.0.1:{web.port}/set"), options={"timeout_s": "60"})
    status = rig.start(rig.task(store=store, prefix="big", most_file_bytes=MIB)).wait(120)
    outcome = Outcome(status, rig.said())
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (72, FaultClass.TOO_LARGE, "S302")
    assert f"the maximum is {MIB}" in outcome.failed.message
    assert "big" not in rig.files()
    assert sum(map(len, rig.files().values())) <= MIB
    assert rig.run(rig.task(store=store, prefix="big", most_file_bytes=len(NOISE))).done.files == 1


def test_download_of_file_of_directory_above_limit_copies_nothing(rig: StagingRig, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "small").write_bytes(b"1")
    with (tmp_path / "there" / "sparse").open("wb") as file:
        file.truncate(64 << 20)
    store = StoreAddress(StoreKind.FILE, container=str(tmp_path / "there"))
    outcome = rig.run(rig.task(store=store, only=("sparse",), most_file_bytes=MIB))
    assert (outcome.failed.class_, f"it has {64 << 20} bytes" in outcome.failed.message) == (FaultClass.TOO_LARGE, True)
    assert rig.files() == {}
    assert rig.run(rig.task(store=store, only=("small",), most_file_bytes=MIB)).done.files == 1


@pytest.mark.parametrize(
    ("name", "kind", "told"), [("d.npz", "Text/HTML; charset=utf-8", 1), ("d.html", "text/html", 0)]
)
def test_http_store_notes_html_response_for_non_html_name(
    rig: StagingRig, web: Web, front: FaultProxy, name: str, kind: str, told: int
) -> None:
    web.files[f"/set/{name}"] = b"<html>Please log in</html>"
    web.headers["Content-Type"] = kind
    outcome = rig.run(rig.task(store=at(front), prefix=name))
    assert outcome.done.files == 1
    assert [note.why for note in outcome.of(Note)] == [
        f"{name} comes as text/html: a page for people, of a login for one, and maybe not the data"
    ] * told


@pytest.mark.parametrize("status", [405, 501])
def test_http_store_downloads_file_if_server_rejects_head(
    rig: StagingRig, web: Web, front: FaultProxy, status: int
) -> None:
    web.head_status = status
    task = rig.task(store=at(front), prefix="big")
    assert rig.run(task, check=True).status == 0
    assert rig.run(task).done.files == 1
    assert rig.files() == {"big": NOISE}
    assert rig.run(task).done.kept == 1
    outcome = rig.run(rig.task(store=at(front), prefix="none"))
    assert (outcome.status, outcome.failed.class_) == (66, FaultClass.MISSING)


def test_http_store_retries_file_that_changes_during_download(rig: StagingRig, web: Web, front: FaultProxy) -> None:
    seen: list[str] = []

    def change(method: str, _path: str) -> None:
        seen.append(method)
        if seen.count("GET") == 2:
            web.files["/set/big"] = NOISE[::-1]

    front.before = change
    outcome = rig.run(rig.task(store=at(front), prefix="big", parallel=1))
    assert rig.files() == {"big": NOISE[::-1]}
    assert any("changed while it was read" in retry.why for retry in outcome.of(Retry))


def test_http_store_rejects_content_that_does_not_match_repr_digest(
    rig: StagingRig, web: Web, front: FaultProxy
) -> None:
    good = base64.b64encode(hashlib.sha256(NOISE).digest()).decode()
    web.headers["Repr-Digest"] = f"sha-256=:{good}:"
    assert rig.run(rig.task(store=at(front), prefix="big")).done.files == 1
    (rig.local / "big").unlink()
    web.headers["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"
    outcome = rig.run(rig.task(store=at(front), prefix="big"))
    assert (outcome.status, outcome.failed.class_) == (65, FaultClass.CORRUPT)
    assert rig.files().keys() != {"big"}


def test_http_store_sends_basic_auth_and_fails_without_retry_if_rejected(
    rig: StagingRig, web: Web, front: FaultProxy
) -> None:
    pair = '{"u": "somebody", "p": "planted-password"}'
    rig.secrets.write_text(pair)
    web.password = "Basic " + base64.b64encode(b"somebody:planted-password").decode()
    store = replace(at(front), credentials={"user_name": "u", "password": "p"})
    assert rig.run(rig.task(store=store, prefix="big")).done.files == 1
    rig.secrets.write_text(pair.replace("planted", "wrong"))
    for check in (True, False):
        outcome = rig.run(rig.task(store=store, prefix="big"), check=check)
        assert (outcome.status, outcome.failed.class_) == (77, FaultClass.CREDENTIALS)
        assert outcome.of(Retry) == []


@pytest.mark.parametrize("check", [True, False])
def test_http_store_reports_missing_file(rig: StagingRig, front: FaultProxy, check: bool) -> None:
    outcome = rig.run(rig.task(store=at(front), prefix="none"), check=check)
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (66, FaultClass.MISSING, "C103")
    assert "file none: there is no such file; check the path" in outcome.failed.message


@pytest.mark.parametrize("check", [True, False])
def test_http_store_rejects_task_without_file_name(rig: StagingRig, front: FaultProxy, check: bool) -> None:
    outcome = rig.run(rig.task(store=at(front)), check=check)
    assert (outcome.status, outcome.failed.class_) == (78, FaultClass.TASK)


def test_s3_store_stages_in_nothing_from_empty_bucket(rig: StagingRig) -> None:
    assert rig.run(rig.task(), check=True).done.files == 0
    assert rig.run(rig.task()).done.files == 0


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[tuple[StoreAddress, Path]]:
    """Python's own server, and the directory that it serves."""
    (tmp_path / "www").mkdir()
    with serving_files(tmp_path / "www") as endpoint:
        yield StoreAddress(StoreKind.HTTP, endpoint), tmp_path / "www"


@pytest.mark.parametrize("replaces", [True, False])
def test_http_store_compares_size_and_mtime_without_etags(
    rig: StagingRig, plain: tuple[StoreAddress, Path], replaces: bool
) -> None:
    store, directory = plain
    (directory / "file").write_bytes(NOISE)
    task = rig.task(store=store, prefix="file", replaces=replaces)
    assert rig.run(task).done.bytes == len(NOISE)
    assert rig.files() == {"file": NOISE}
    again = rig.run(task).done
    assert (again.files, again.kept, again.bytes) == (1, 1, 0)
    (directory / "file").write_bytes(NOISE[::-1])
    os.utime(directory / "file", (1_000_000, 1_000_000))
    assert rig.run(task).done.bytes == len(NOISE)
    assert rig.files() == {"file": NOISE[::-1]}


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("prefix", ["sets", "sets/"])
def test_http_store_rejects_directory_listing_page(
    rig: StagingRig, plain: tuple[StoreAddress, Path], prefix: str, check: bool
) -> None:
    """Servers lead on from a directory's name to the page that lists it, which a training would read as its data."""
    store, directory = plain
    (directory / "sets").mkdir()
    (directory / "sets" / "file").write_bytes(NOISE)
    outcome = rig.run(rig.task(store=store, prefix=prefix), check=check)
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (66, FaultClass.MISSING, "C103")
    assert "file sets: it is a directory of the web server" in outcome.failed.message
    assert rig.files() == {}


def test_file_store_stages_in_and_out_and_keeps_unchanged_files(rig: StagingRig, tmp_path: Path) -> None:
    source = tmp_path / "nfs" / "sets" / "mnist"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "b").write_bytes(NOISE)
    (source / "a").write_bytes(b"1")
    (source / "link").symlink_to("/etc/passwd")
    store = StoreAddress(StoreKind.FILE, str(tmp_path / "nfs"), container="sets")
    assert rig.run(rig.task(store=store, prefix="mnist")).done.files == 2
    assert rig.files() == {"a": b"1", "deep/b": NOISE}
    assert rig.run(rig.task(store=store, prefix="mnist")).done.kept == 2

    out = rig.task(Direction.OUT, "job/1", store=store, state_dir=str(tmp_path / "out"))
    assert rig.run(out).done.files == 2
    assert (tmp_path / "nfs/sets/job/1/deep/b").read_bytes() == NOISE
    assert rig.run(out).done.kept == 2


@pytest.mark.parametrize("check", [True, False])
def test_file_store_reports_missing_directory(rig: StagingRig, tmp_path: Path, check: bool) -> None:
    store = StoreAddress(StoreKind.FILE, str(tmp_path / "none"))
    outcome = rig.run(rig.task(store=store), check=check)
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (66, FaultClass.MISSING, "C103")
    assert str(tmp_path / "none") in outcome.failed.message
