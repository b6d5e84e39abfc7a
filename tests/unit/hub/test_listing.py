"""The listing of all users' jobs: what each daemon gets, how often the scheduler is asked, and what failures do."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services import hub as services_hub
from ffdl_batch.services.hub import Hub, HubListing, HubRefused
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub import listing
from ffdl_batch.site.hub.listing import JobListing
from ffdl_batch.site.hub.main import main
from ffdl_batch.site.hub.settings import HubSettings
from tests.fakes.clock import FakeClock
from tests.unit.hub.conftest import OWN, Site

T = TypeVar("T")
StartHub = Callable[..., Site]
INTERVAL_S = 5.0


@dataclass
class Source:
    """A scheduler that lists `rows`, or fails with `why`."""

    rows: dict[int, list[str]] = field(default_factory=dict)
    why: str = ""
    blind: str = ""
    asked: int = 0
    go_on: threading.Event | None = None
    has_shared_listing: bool = False

    def list_all_users(self) -> Mapping[int, Sequence[str]]:
        self.asked += 1
        if self.go_on is not None:
            assert self.go_on.wait(60)
        if self.why:
            raise SchedulerUnreachable(self.why)
        return dict(self.rows)

    def explain_blindness(self) -> str:
        return self.blind

    def observe_shared(self, ids: object) -> None:
        raise NotImplementedError


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


@pytest.mark.parametrize("daemons", [1, 5, 20])
def test_scheduler_is_asked_once_per_interval_for_any_number_of_users(daemons: int) -> None:
    clock = FakeClock()
    source = Source({1000 + number: [f"row {number}"] for number in range(daemons)})

    async def minute() -> None:
        shared = JobListing(source, INTERVAL_S, clock.monotonic)
        for _ in range(60):
            found = await asyncio.gather(*(shared.read(1000 + number) for number in range(daemons)))
            assert [one.body for one in found] == [f"row {number}".encode() for number in range(daemons)]
            clock.tick(1.0)

    run(minute())
    assert source.asked == 60 / INTERVAL_S


def test_scheduler_is_not_asked_while_no_daemon_asks() -> None:
    clock, source = FakeClock(), Source()

    async def ask() -> None:
        shared = JobListing(source, INTERVAL_S, clock.monotonic)
        clock.tick(600)
        assert source.asked == 0
        assert (await shared.read(1)).age_s == 0
        clock.tick(600)
        await asyncio.sleep(0.01)
        assert source.asked == 1
        assert (await shared.read(1)).age_s == 0  # it is never given an old listing

    run(ask())
    assert source.asked == 2


def test_user_gets_own_rows_and_a_digest_that_changes_with_them() -> None:
    clock, source = FakeClock(), Source({1: ["a", "b"], 2: ["c"]})

    async def ask() -> None:
        shared = JobListing(source, INTERVAL_S, clock.monotonic)
        first = await shared.read(1)
        assert (first.body, (await shared.read(2)).body, (await shared.read(3)).body) == (b"a\nb", b"c", b"")
        source.rows[2] = ["d"]
        clock.tick(INTERVAL_S)
        assert (await shared.read(1)).digest == first.digest
        source.rows[1] = ["a"]
        clock.tick(INTERVAL_S)
        assert (await shared.read(1)).digest != first.digest

    run(ask())


def test_slow_scheduler_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, source = FakeClock(), Source()
    list_all = source.list_all_users

    def slow() -> Mapping[int, Sequence[str]]:
        clock.tick(2.0)
        return list_all()

    monkeypatch.setattr(source, "list_all_users", slow)

    async def ask() -> None:
        shared = JobListing(source, INTERVAL_S, clock.monotonic)
        for _ in range(100):
            await shared.read(1)
            clock.tick(1.0)

    run(ask())
    assert source.asked == 3


def test_failing_scheduler_is_asked_less_and_less_and_the_last_listing_is_used_for_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, source = FakeClock(), Source({1: ["a"]})

    async def ask() -> list[bool]:
        shared = JobListing(source, INTERVAL_S, clock.monotonic)
        found = [bool((await shared.read(1)).body)]
        source.why = "slurmctld does not answer"
        for _ in range(300):
            clock.tick(1.0)
            try:
                found.append((await shared.read(1)).body == b"a")
            except Refused as error:
                assert (error.status, error.problem.message) == (503, "slurmctld does not answer")
                found.append(False)
        return found

    found = run(ask())
    assert found == [True] * 61 + [False] * 240
    assert source.asked <= 10
    assert len([text for text in caplog.messages if "slurmctld does not answer" in text]) == 1


def test_daemons_do_not_wait_long_for_a_scheduler_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PATIENCE_S", 0.05)
    clock, source = FakeClock(), Source({1: ["a"]}, go_on=threading.Event())

    async def ask() -> None:
        shared = JobListing(source, INTERVAL_S, clock.monotonic)
        with pytest.raises(Refused):
            await shared.read(1)
        assert source.go_on is not None
        source.go_on.set()
        while not (await shared.read(1)).body:
            pass
        assert source.asked == 1

    run(ask())


def test_account_that_does_not_see_all_jobs_lists_none() -> None:
    source = Source({1: ["a"]}, blind="PrivateData hides them")

    async def ask() -> None:
        with pytest.raises(Refused) as raised:
            await JobListing(source, INTERVAL_S).read(1)
        assert raised.value.problem.message == "PrivateData hides them"

    run(ask())
    assert source.asked == 0


def test_daemons_read_their_rows_through_the_socket(start_hub: StartHub) -> None:
    source = Source({OWN: ["12|RUNNING", "13|PENDING"], OWN + 1: ["14|RUNNING"]})
    site = start_hub(source)
    hub = Hub(OWN, str(site.place / "hub.sock"))
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: HubListing(hub).read(), range(20)))
    assert [one.rows for one in found if one is not None] == [["12|RUNNING", "13|PENDING"]] * 20
    assert source.asked == 1
    own = HubListing(hub)
    first, again = own.read(), own.read()
    assert first is not None and again is not None and first.rows is again.rows
    assert not (site.place / "audit").exists()


def test_listing_is_for_callers_that_the_kernel_names(start_hub: StartHub) -> None:
    site = start_hub(Source({OWN: ["a"]}))
    assert site.ask("/api/site/v1/listing").status == 404
    reply = site.ask("/api/site/v1/listing", local=True, token="", FfDL_Actor=str(OWN + 1))
    assert (reply.status, reply.body) == (200, b"a")


def test_too_many_jobs_of_a_user_are_refused(start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LISTING_BYTES", 5)
    site = start_hub(Source({OWN: ["a" * 6]}))
    with pytest.raises(HubRefused, match="too many jobs"):
        Hub(OWN, str(site.place / "hub.sock")).listing("")


def test_hub_without_scheduler_lists_nothing(start_hub: StartHub) -> None:
    site = start_hub()
    assert HubListing(Hub(OWN, str(site.place / "hub.sock"))).read() is None


def test_daemon_asks_an_absent_hub_after_growing_pauses_and_logs_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start_hub: StartHub
) -> None:
    clock, tries = FakeClock(), []
    hub = Hub(OWN, str(tmp_path / "hub.sock"))
    own = HubListing(hub, clock.monotonic)
    for second in range(300):
        failures = own._failures
        assert own.read() is None
        tries += [second] if own._failures > failures else []
        clock.tick(1.0)
    assert len(tries) <= 10
    assert len([text for text in caplog.messages if "queries the scheduler itself" in text]) == 1
    start_hub(Source({OWN: ["a"]}))
    clock.tick(services_hub.LONGEST_PAUSE_S * 2)
    found = own.read()
    assert found is not None and found.rows == ["a"]


def test_daemon_reads_no_listing_of_another_user(start_hub: StartHub) -> None:
    site = start_hub(Source({OWN: ["a"]}))
    assert HubListing(Hub(OWN + 1, str(site.place / "hub.sock"))).read() is None
    found = HubListing(Hub(OWN, str(site.place / "hub.sock"))).read()
    assert found is not None and found.rows == ["a"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nFfDL-Listing: x\r\nFfDL-Age-Ms: soon\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.1 304 No\r\nFfDL-Listing: x\r\nFfDL-Age-Ms: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nFfDL-Listing: x\r\nFfDL-Age-Ms: 1\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\nFfDL-Listing: x\r\nFfDL-Age-Ms: 1\r\n\r\n" + b"x" * 300,
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_odd_answers_are_no_listing(tmp_path: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_hub, "MAX_LISTING_BYTES", 256)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    assert HubListing(Hub(os.getuid(), str(tmp_path / "s"))).read() is None
    thread.join(60)


def test_rows_that_the_daemon_has_are_not_sent_again(start_hub: StartHub) -> None:
    site = start_hub(Source({OWN: ["x" * 1000] * 1000}))
    path = "/api/site/v1/listing"
    first = site.ask(path, local=True, token="")
    assert len(first.body) > 1_000_000
    again = site.ask(path, local=True, token="", FfDL_Listing=first.headers["ffdl-listing"])
    assert (again.status, again.body) == (304, b"")


def test_hub_that_sends_byte_by_byte_does_not_keep_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_hub, "LONGEST_ANSWER_S", 0.2)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    is_cut = threading.Event()

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            try:
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2400:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.05)
            except OSError:
                is_cut.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert HubListing(Hub(os.getuid(), str(tmp_path / "s"))).read() is None
    thread.join(180)
    assert is_cut.is_set()


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (Source({1: ["a"], 2: ["b", "c"]}), 0, "this account sees the jobs of all users, 3 now"),
        (Source(blind="PrivateData hides them"), 1, "PrivateData hides them"),
        (Source(why="slurmctld does not answer"), 1, "slurmctld does not answer"),
        (None, 69, "the backend slurm is not installed"),
    ],
)
def test_check_of_hub_prints_whether_its_account_sees_all_jobs(
    source: Source | None, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("ffdl_batch.site.hub.main.open_source", lambda: source)
    monkeypatch.setattr("ffdl_batch.site.hub.main.load", lambda _: HubSettings())
    monkeypatch.setattr("ffdl_batch.site.hub.main.hide_memory", lambda: None)
    monkeypatch.setattr("ffdl_batch.site.hub.main.log_to", lambda *_, **__: None)
    monkeypatch.setattr(os, "geteuid", lambda: 7000)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    assert main(["--check", "--site-file", str(tmp_path / "site.toml")]) == status
    assert said in capsys.readouterr().err
