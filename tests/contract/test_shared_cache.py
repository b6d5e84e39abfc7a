"""The shared cache on a real S3 server that checks signatures: who gets what, what is charged, and what kills leave."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging.shared_cache import reader
from ffdl_batch.staging.shared_cache.service import CONNECTIONS_OF_USER, _require_account
from ffdl_batch.staging.shared_cache.store_check import Refused
from ffdl_batch.staging.stores.shared_reads import SharedReads
from ffdl_batch.staging.stores.store import Item
from tests.fakes.fault_proxy import Rule
from tests.fakes.s3_server import S3Server
from tests.staging_rig import MIB, StagingRig, rig

__all__ = ["rig"]
DATA = bytes(range(256)) * 12_000
STEPS = ("part written", "content complete", "content placed", "object linked", "links removed")
SERVICE = """
import os, signal, sys
from ffdl_batch.staging.shared_cache.service import Place, Service
directory, socket, store, limit, window, deadly = sys.argv[1:]
def step(name):
    if name == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
note = lambda line: print(line, flush=True)
service = Service(Place(directory, socket, [store], int(limit), float(window), note, step))
signal.signal(signal.SIGTERM, lambda *_: service.stop())
service.serve()
print(service.report(), flush=True)
"""
MINE = str(os.getuid())


class Running:
    """A service as a process, and readers."""

    def __init__(self, staging: StagingRig, directory: Path) -> None:
        self.staging, self.socket = staging, str(directory / "s")
        self.directory, self.output = directory / "shared", directory / "service.out"
        self.directory.mkdir(mode=0o700)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, limit: int = 100 * MIB, *, window: float = 3600, deadly: str = "", store: str = "") -> None:
        argv = [self.directory, self.socket, store or self.staging.proxy.endpoint, limit, window, deadly]
        Path(self.socket).unlink(missing_ok=True)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVICE, *map(str, argv)], stdout=output, stderr=output
            )
        end = time.monotonic() + 60
        while not Path(self.socket).exists() or not self.answers():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end
            time.sleep(0.02)

    def answers(self) -> bool:
        return "request" in str(self.raw(b"\n"))

    def raw(self, request: bytes) -> bytes:
        """Send bytes; what is answered."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            try:
                connection.connect(self.socket)
                connection.sendall(request)
                return connection.recv(4096)
            except ConnectionError:
                return b""

    def stop(self) -> dict[str, Any]:
        """End the service; its last report."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.output.read_text()
        self.process = None
        found: dict[str, Any] = json.loads(self.output.read_text().splitlines()[-1])
        return found

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def put(self, key: str, data: bytes = DATA) -> Item:
        return Item(key, len(data), self.staging.put(key, data))

    def request(self, item: Item, keys: tuple[str, str], **changes: Any) -> dict[str, Any]:
        address = replace(self.staging.store, endpoint=self.staging.proxy.endpoint)
        reads = SharedReads(address, {"user_name": keys[0], "password": keys[1]})
        url = f"{self.staging.proxy.endpoint}/{self.staging.bucket}/{item.key}"
        plain = {"url": url, "etag": item.etag, "size": item.size, "headers": reads._signature(url)}
        return {**plain, **changes}

    def ask(self, item: Item, keys: tuple[str, str], **changes: Any) -> bytes | str:
        """The content, or why it is not served."""
        found = reader.ask(**self.request(item, keys, **changes), path=self.socket)
        if isinstance(found, str):
            return found
        with os.fdopen(found, "rb") as file:
            return file.read()

    def came(self) -> int:
        """Bytes of objects that the store gave."""
        with self.staging.proxy.lock:
            return sum(size for path, size in self.staging.proxy.given.items() if "/o" in path)

    def blobs(self) -> list[Path]:
        return sorted((self.directory / "blobs").iterdir())


@pytest.fixture
def shared(rig: StagingRig, tmp_path: Path) -> Iterator[Running]:
    running = Running(rig, tmp_path)
    yield running
    running.kill()


@pytest.fixture
def people(s3_server: S3Server, shared: Running) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Keys of two users who may read the bucket; the server checks them."""
    keys = s3_server.make_user(f"ada-{shared.staging.bucket}"), s3_server.make_user(f"bob-{shared.staging.bucket}")
    yield keys
    s3_server.check_keys(False)


ANY = ("anybody", "anything")


def test_second_reader_gets_the_copy_that_the_first_one_filled(
    shared: Running, people: tuple[tuple[str, str], tuple[str, str]], s3_server: S3Server
) -> None:
    item = shared.put("o")
    s3_server.check_keys(True)
    shared.start()
    assert shared.ask(item, people[0]) == DATA
    before = shared.came()
    assert shared.ask(item, people[1]) == DATA
    assert shared.came() - before <= 1
    assert len(shared.blobs()) == 1
    assert shared.stop()["users"][MINE]["hit_bytes"] == len(DATA)


def test_reader_whom_the_store_refuses_gets_nothing_that_is_held(
    shared: Running, people: tuple[tuple[str, str], tuple[str, str]], s3_server: S3Server
) -> None:
    item = shared.put("o")
    s3_server.check_keys(True)
    shared.start()
    assert shared.ask(item, people[0]) == DATA
    assert "the store answered 403" in str(shared.ask(item, (people[1][0], "not-the-secret")))
    assert "the store answered 403" in str(shared.ask(item, ("AKIAUNKNOWN000000000", "secret")))
    assert shared.ask(item, people[1]) == DATA


def test_signature_of_one_object_gives_no_other_object(
    shared: Running, people: tuple[tuple[str, str], tuple[str, str]], s3_server: S3Server
) -> None:
    item, other = shared.put("o"), shared.put("o2", b"secret of another user")
    s3_server.check_keys(True)
    shared.start()
    assert shared.ask(other, people[1]) == b"secret of another user"
    headers = shared.request(item, people[0])["headers"]
    assert "the store answered 403" in str(shared.ask(other, people[0], headers=headers))


def test_changed_object_is_filled_again_and_old_version_is_refused(shared: Running) -> None:
    old = shared.put("o")
    shared.start()
    assert shared.ask(old, ANY) == DATA
    new = shared.put("o", b"new" * 1000)
    assert "the store answered 412" in str(shared.ask(old, ANY))
    assert shared.ask(new, ANY) == b"new" * 1000


def test_wrong_size_is_refused(shared: Running) -> None:
    item = shared.put("o")
    shared.start()
    assert "another size" in str(shared.ask(replace(item, size=item.size + 1), ANY))
    assert not shared.blobs()


def test_store_that_is_not_named_is_never_contacted(shared: Running) -> None:
    item = shared.put("o")
    shared.start(store="http://127.0.0.1:9")
    assert "not one of the cache" in str(shared.ask(item, ANY))
    assert shared.came() == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"{}\n", b"[]\n", b"[" * 5000 + b"\n", b'{"url": 1, "etag": "e", "size": 1, "headers": {}}\n', b"\xff\xfe\n",
        b"x" * 20_000 + b"\n",
    ],
)  # fmt: skip
def test_malformed_request_is_refused_and_others_are_served(shared: Running, request_bytes: bytes) -> None:
    item = shared.put("o")
    shared.start()
    assert b'"served": true' not in shared.raw(request_bytes)
    assert shared.ask(item, ANY) == DATA


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": {"authorization": "x", "host": "elsewhere"}},
        {"headers": {"authorization": "x\r\nhost: elsewhere"}},
        {"headers": {}},
        {"etag": 'e"\r\nx: y'},
        {"size": 0},
        {"size": True},
    ],
)
def test_request_with_other_headers_or_values_is_refused(shared: Running, changes: dict[str, Any]) -> None:
    item = shared.put("o")
    shared.start()
    assert isinstance(shared.ask(item, ANY, **changes), str)
    assert not shared.blobs()


def test_equal_contents_of_two_objects_are_kept_once(shared: Running) -> None:
    one, two = shared.put("o1"), shared.put("o2")
    shared.start()
    assert shared.ask(one, ANY) == shared.ask(two, ANY) == DATA
    assert len(shared.blobs()) == 1
    assert shared.stop()["held_bytes"] == len(DATA)


def test_descriptor_cannot_be_written_and_directory_is_closed_to_others(shared: Running) -> None:
    item = shared.put("o")
    shared.start()
    found = reader.ask(**shared.request(item, ANY), path=shared.socket)
    assert isinstance(found, int)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(found, b"x")
    os.close(found)
    assert shared.directory.stat().st_mode & 0o777 == 0o700
    assert [blob.stat().st_mode & 0o777 for blob in shared.blobs()] == [0o400]


def test_damaged_content_is_not_served_after_a_start(shared: Running) -> None:
    item = shared.put("o")
    shared.start()
    assert shared.ask(item, ANY) == DATA
    shared.stop()
    blob = shared.blobs()[0]
    blob.chmod(0o600)
    blob.write_bytes(bytes(len(DATA)))
    shared.start()
    assert shared.ask(item, ANY) == DATA


def test_unlicensed_contents_make_room_and_too_large_ones_are_refused(shared: Running) -> None:
    one, two, large = shared.put("o1", b"1" * MIB), shared.put("o2", b"2" * MIB), shared.put("o3", b"3" * 2 * MIB)
    shared.start(limit=3 * MIB // 2)
    assert shared.ask(one, ANY) == b"1" * MIB
    assert shared.ask(two, ANY) == b"2" * MIB
    assert len(shared.blobs()) == 1
    assert "no room" in str(shared.ask(large, ANY))
    report = shared.stop()["users"][MINE]
    assert report["miss_bytes"] == 4 * MIB
    assert report["charged_fill_bytes"] == 2 * MIB


def test_window_ends_and_kept_bytes_are_charged(shared: Running) -> None:
    item = shared.put("o")
    shared.start(window=0.2)
    assert shared.ask(item, ANY) == DATA
    end = time.monotonic() + 60
    while '"licensed": 1' not in shared.output.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert shared.stop()["users"][MINE]["charged_kept_bytes"] >= len(DATA)


@pytest.mark.parametrize("step", STEPS)
def test_nothing_incomplete_is_served_after_a_kill(shared: Running, step: str) -> None:
    items = [shared.put("o1", b"1" * MIB), shared.put("o2", b"2" * MIB)]
    shared.start(limit=3 * MIB // 2, deadly=step)
    answers = [shared.ask(item, ANY) for item in items]
    assert shared.process is not None
    assert shared.process.wait(60) == -signal.SIGKILL
    assert all(isinstance(answer, str) or answer in (b"1" * MIB, b"2" * MIB) for answer in answers)
    shared.start(limit=3 * MIB // 2)
    assert not list((shared.directory / "filling").iterdir())
    assert len(shared.blobs()) == len(list((shared.directory / "objects").iterdir())) <= 1
    assert [shared.ask(item, ANY) for item in items] == [b"1" * MIB, b"2" * MIB]


def test_answer_that_breaks_off_leaves_nothing(shared: Running) -> None:
    item = shared.put("o")
    shared.start()
    shared.staging.proxy.rules.append(Rule("GET", "/o", after=1, times=1, cut_at=1000))
    assert '"served": false' in str(shared.ask(item, ANY))
    assert not shared.blobs()
    assert not list((shared.directory / "filling").iterdir())
    assert shared.ask(item, ANY) == DATA


def test_user_without_account_is_refused() -> None:
    known = {entry.pw_uid for entry in pwd.getpwall()}
    with pytest.raises(Refused, match="not in the password database"):
        _require_account(next(uid for uid in range(400_000, 500_000) if uid not in known))


def test_idle_connections_of_a_user_are_bounded(shared: Running) -> None:
    item = shared.put("o")
    shared.start()
    with ExitStack() as idle:
        for _ in range(CONNECTIONS_OF_USER):
            idle.enter_context(socket.socket(socket.AF_UNIX)).connect(shared.socket)
        assert isinstance(shared.ask(item, ANY), str)
    end = time.monotonic() + 60
    while shared.ask(item, ANY) != DATA:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_second_service_on_a_directory_does_not_start(shared: Running) -> None:
    shared.start()
    argv = [
        "cache",
        "serve",
        "--store",
        shared.staging.proxy.endpoint,
        "--size",
        "1GB",
        "--directory",
        shared.directory,
    ]
    command = [sys.executable, "-m", "ffdl_batch.admin.main", *map(str, argv), "--socket", f"{shared.socket}2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 69, done.stderr
    assert "the cache cannot be served" in done.stderr


def test_staging_reads_through_the_shared_cache_and_without_it(
    shared: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared.put("set/o1")
    shared.put("set/o2", DATA * 2)
    shared.start()
    monkeypatch.setattr(reader, "SOCKET", shared.socket)
    for number in range(2):
        shared.staging.local = tmp_path / f"local-{number}"
        task = shared.staging.task(prefix="set", state_dir=str(tmp_path / f"state-{number}"))
        assert shared.staging.run(task).done
        assert shared.staging.files() == {"o1": DATA, "o2": DATA * 2}
    assert shared.came() < 4 * len(DATA)
    shared.stop()
    shared.staging.local = tmp_path / "alone"
    assert shared.staging.run(shared.staging.task(prefix="set", state_dir=str(tmp_path / "state"))).done
    assert shared.staging.files() == {"o1": DATA, "o2": DATA * 2}


def test_reader_goes_to_the_store_if_there_is_no_service(shared: Running) -> None:
    address = StoreAddress(StoreKind.S3, endpoint="http://127.0.0.1:9", container="b")
    reads = SharedReads(address, {"user_name": "k", "password": "s"})
    with reads.read(Item("o", 5, "e"), 0, 5) as found:
        assert found is None
    assert "does not answer" in str(reader.ask("http://127.0.0.1:9/b/o", "e", 5, {}, path=shared.socket))
