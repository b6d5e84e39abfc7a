"""The streams of metrics, usage and logs: who may read what, whole lines alone, until the job has ended."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.daemon import request_context
from ffdl_batch.daemon.log_pump import BUFFER_BYTES, LogPump, SharedTurns
from ffdl_batch.daemon.routes import logs as log_routes
from ffdl_batch.domain.job.job import Change
from ffdl_batch.domain.job.log_text import LogText, decode_text
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.metrics.records import Measure, MetricRecord, encode_record
from ffdl_batch.domain.metrics.usage import UsageSample, Use, encode_sample
from ffdl_batch.services.logs import log_reader, log_stream
from ffdl_batch.services.queries import measurement_stream
from ffdl_batch.services.queries.followed_jobs import Pause
from ffdl_batch.services.queries.measurement_stream import MeasuredQuery, read_metrics
from ffdl_batch.services.refusals import stop_if
from tests.unit.daemon.conftest import Desk
from tests.unit.daemon.test_routes import problem, submit


def line(number: int) -> str:
    return encode_record(MetricRecord("t", 5, number, "", "g", {}, {"loss": Measure("INT", str(number))}))


@pytest.fixture
def job_id(desk: Desk) -> str:
    """A job with two attempts, and records in both; the first has a log."""
    found = str(submit(desk)["id"])
    desk.platform.deployer().step()
    job = desk.platform.storage.store.get(found)
    assert job is not None
    change = Change(((JobState.DEPLOYING, desk.platform.storage.clock.now()),), Cause.REQUEUED, succeeded=True)
    assert desk.platform.storage.store.apply(job, change) is not None
    for number in (1, 2):
        attempt = place(desk, found, number)
        Path(attempt.metrics).mkdir(parents=True)
        Path(attempt.learner_metrics(1)).write_text(line(number) + line(number + 10))
        Path(attempt.usage(number)).write_text(encode_sample(UsageSample(number, "n", Use(1.0))))
    log = Path(place(desk, found, 1).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    return found


def place(desk: Desk, job_id: str, number: int) -> AttemptDir:
    return desk.platform.storage.root.job(job_id).attempt(number)


def lines(desk: Desk, path: str) -> list[dict[str, Any]]:
    answer = desk.ask("GET", f"/api/v1/jobs/{path}")
    assert answer.status == 200
    return [json.loads(text) for text in answer.body.splitlines() if text]


def test_metrics_route_returns_records_of_all_attempts(desk: Desk, job_id: str) -> None:
    found = lines(desk, f"{job_id}/metrics")
    assert [(one["attempt"], one["learner"], one["record"]["meta"]["rindex"]) for one in found] == [
        (1, 1, 1), (1, 1, 11), (2, 1, 2), (2, 1, 12),
    ]  # fmt: skip
    assert found[0]["record"]["values"] == {"loss": {"type": "INT", "value": "1"}}
    assert [one["attempt"] for one in lines(desk, f"{job_id}/metrics?attempt=2&learner=1")] == [2, 2]


def test_usage_route_returns_samples_with_node(desk: Desk, job_id: str) -> None:
    Path(place(desk, job_id, 1).metrics, "usage-x.jsonl").write_text("{}\n")
    found = lines(desk, f"{job_id}/usage")
    assert [(one["attempt"], one["node"], one["sample"]["node"]["cpu_s"]) for one in found] == [
        (1, 1, 1.0),
        (2, 2, 1.0),
    ]
    assert [one["attempt"] for one in lines(desk, f"{job_id}/usage?attempt=1")] == [1]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("metrics?attempt=3", "has 2 attempts so far; there is no attempt 3"),
        ("metrics?learner=2", "has one learner; there is no learner 2"),
        ("logs?attempt=3", "has attempts 1 to 2; there is no attempt 3"),
        ("logs?attempt=every", "the request does not match the interface: query.attempt"),
        ("logs?learner=9", "learner 9"),
    ],
)
def test_stream_routes_reject_unknown_attempt_learner_and_job(
    desk: Desk, job_id: str, query: str, sentence: str
) -> None:
    answer = desk.ask("GET", f"/api/v1/jobs/{job_id}/{query}")
    assert (answer.status, problem(answer).exit_code) == (400, 2)
    assert sentence in problem(answer).message
    for stream in ("usage", "logs"):
        assert desk.ask("GET", f"/api/v1/jobs/training-zzzzzzzzz/{stream}").status == 404


def test_metrics_route_skips_torn_and_invalid_lines_and_links(
    desk: Desk, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_stream, "CHUNK", 64)
    path = Path(place(desk, job_id, 1).learner_metrics(1))
    path.write_bytes(line(1).encode() + b"\xff\n[1]\nnonsense\n" + line(2).encode() + line(3).encode()[:-9])
    found = lines(desk, f"{job_id}/metrics?attempt=1")
    assert [one["record"]["meta"]["rindex"] for one in found] == [1, 2]
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert lines(desk, f"{job_id}/metrics?attempt=1") == []


@pytest.mark.parametrize(("keep_alive_s", "is_kept_alive"), [(0.0, True), (3600.0, False)])
def test_read_metrics_follows_records_until_job_ends(
    desk: Desk, job_id: str, monkeypatch: pytest.MonkeyPatch, keep_alive_s: float, is_kept_alive: bool
) -> None:
    path = Path(place(desk, job_id, 2).learner_metrics(1))
    rounds = iter(range(10))

    def later(_: float) -> None:
        number = next(rounds)
        if number < 2:
            with path.open("a") as file:
                file.write(line(20 + number))
        else:
            job = desk.platform.storage.store.get(job_id)
            assert job is not None
            now = desk.platform.storage.clock.now()
            desk.platform.storage.store.apply(job, Change(((JobState.CANCELLED, now),), Cause.PROGRESS))

    monkeypatch.setattr("ffdl_batch.services.queries.measurement_stream.time.sleep", later)
    monkeypatch.setattr(measurement_stream, "KEEP_ALIVE_S", keep_alive_s)
    job = desk.platform.storage.store.get(job_id)
    assert job is not None
    caller = Caller(job.uid)
    found = list(read_metrics(desk.platform.storage, caller, job_id, MeasuredQuery(follow=True)))
    assert [json.loads(one)["record"]["meta"]["rindex"] for one in found if one] == [1, 11, 2, 12, 20, 21]
    assert (None in found) is is_kept_alive


def test_logs_route_selects_attempt_and_tail_from_query(desk: Desk, job_id: str) -> None:
    def logged(query: str) -> list[LogText]:
        return [decode_text(plain) for plain in lines(desk, f"{job_id}/logs{query}")]

    both = LogText(1, 1, "one\ntwo", None, 1, 0, 8)
    assert logged("") == logged("?attempt=all") == logged("?attempt=1") == [both]
    assert logged("?attempt=2") == []
    assert logged("?attempt=1&tail=1") == [both.last(1)]


def test_logs_route_accepts_read_position_behind_largest_file(
    desk: Desk, job_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(desk, f"{job_id}/logs?attempt=1&read=1.1:{10**18 - 1}") == []
    assert caplog.text == ""


@pytest.mark.parametrize(
    "stream", ["logs?grep=nothing", "logs?since=1e11", "logs?tail=5&grep=x", "logs?tail=5", "metrics", "usage"]
)
def test_stream_of_busy_reader_ends_with_its_client_and_counts_until_its_thread_ends(
    desk: Desk, job_id: str, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """The reader has nothing to send. It is held until the client has disconnected and the reply has ended."""
    begun, released, looked = threading.Event(), threading.Event(), []

    def hold(is_stopped: Callable[[], bool]) -> None:
        begun.set()
        assert released.wait(120)
        looked.append(is_stopped())
        stop_if(is_stopped)

    for reader in (measurement_stream, log_stream, log_reader):
        monkeypatch.setattr(reader, "stop_if", hold)

    async def read() -> list[int]:
        sent, gone = 0, asyncio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            nonlocal sent
            sent += 1

        task = asyncio.ensure_future(desk.app(desk.scope("GET", f"/api/v1/jobs/{job_id}/{stream}"), receive, send))
        await asyncio.to_thread(begun.wait, 120)
        counted = [desk.context.streams]
        gone.set()
        await task
        counted.append(desk.context.streams)
        released.set()
        while desk.context.streams:
            await asyncio.sleep(0.01)
        return counted

    assert asyncio.run(read()) == [1, 1]
    assert looked == [True]


@pytest.mark.parametrize("path", ["events?after=9&wait_s=30", "wait?wait_s=30"])
def test_waiting_request_ends_with_its_client(
    desk: Desk, job_id: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def read() -> None:
        waiting = asyncio.Event()

        async def wait_for_ever(*_: object) -> None:
            waiting.set()
            await asyncio.Future()

        async def receive() -> Message:
            await waiting.wait()
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None: ...

        monkeypatch.setattr(desk.context.changes, "wait", wait_for_ever)
        await desk.app(desk.scope("GET", f"/api/v1/jobs/{job_id}/{path}"), receive, send)

    asyncio.run(read())


@pytest.mark.parametrize("path", ["logs", "metrics", "usage", "output/model/files"])
def test_stream_routes_refuse_more_than_their_limit_and_count_none_twice(
    desk: Desk, job_id: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(request_context, "MAX_STREAMS", 1)
    target = f"/api/v1/jobs/{job_id}/{path}"
    assert desk.ask("GET", f"{target}?attempt=9").status == 400
    assert desk.ask("GET", target).status == 200
    desk.context.streams = 1
    refused = desk.ask("GET", target)
    assert (refused.status, problem(refused).exit_code, desk.context.streams) == (503, 75, 1)


def test_log_encoder_flushes_pending_text_before_pause_or_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_routes, "encode_text", lambda text: text.text.encode())
    texts = [LogText(1, n, str(n)) for n in range(1, 5)]
    pause = Pause(0.25)
    came: list[LogText | Pause] = [pause, *texts[:3], pause, pause, texts[3]]
    sent = list(log_routes._encoded(iter(came)))
    assert sent == [pause, b"123", pause, pause, b"4"]
    large = [LogText(1, n, "x" * 40_000) for n in range(1, 5)]
    pieces = [piece for piece in log_routes._encoded(iter(large)) if isinstance(piece, bytes)]
    assert [len(piece) for piece in pieces] == [80_000, 80_000]

    def fail() -> Iterator[LogText]:
        yield LogText(1, 1, "a")
        raise OSError("gone")

    failing = log_routes._encoded(fail())
    assert next(failing) == b"a"
    with pytest.raises(OSError, match="gone"):
        next(failing)


def test_log_streams_share_one_thread_until_one_falls_behind() -> None:
    """The streams have caught up after their first line. Then one of them has more than the buffer holds, and no
    reader."""
    threads: dict[str, list[str]] = {"quiet": [], "loud": []}
    released = threading.Event()

    def lines(name: str, piece: bytes) -> Iterator[bytes | Pause]:
        for _ in range(3):
            threads[name].append(threading.current_thread().name)
            yield piece
            yield Pause(0.01)
        while not released.is_set():
            yield Pause(0.01)
        for _ in range(4):
            threads[name].append(threading.current_thread().name)
            yield piece

    async def read() -> dict[str, bytes]:
        turns, stopped = SharedTurns(), threading.Event()
        sizes = {"quiet": 1, "loud": BUFFER_BYTES}
        pumps = {name: LogPump(lines(name, b"x" * size), stopped, lambda _: b"", turns) for name, size in sizes.items()}
        ends = {name: asyncio.Event() for name in pumps}
        for name, pump in pumps.items():
            pump.start(ends[name].set)
        found = dict.fromkeys(pumps, b"")
        while len(found["quiet"]) < 3:  # the loud one has no reader
            found["quiet"] += await pumps["quiet"].take(120)
        released.set()
        for name, pump in pumps.items():
            while not pump.ended:
                found[name] += await pump.take(120)
            found[name] += await pump.take(0)
            await ends[name].wait()
        return found

    found = asyncio.run(read())
    assert {name: len(text) for name, text in found.items()} == {"quiet": 7, "loud": 7 * BUFFER_BYTES}
    assert threads["quiet"] == ["logs", *["followed-logs"] * 6]
    assert threads["loud"][1] == "followed-logs" and threads["loud"][-1] == "logs"


def test_shared_log_turns_survive_failing_stream() -> None:
    """One stream fails in the shared thread, another one continues in it, and a third one begins when it is empty."""

    def lines(fails: bool) -> Iterator[bytes | Pause]:
        yield b"1"
        yield Pause(0.01)
        if fails:
            raise OSError("gone")
        yield b"2"

    async def read_all(pump: LogPump) -> bytes:
        found = b""
        while not pump.ended:
            found += await pump.take(120)
        return found + await pump.take(0)

    async def read() -> list[bytes]:
        turns = SharedTurns()
        found = []
        for group in ((True, False), (False,)):
            pumps = [LogPump(lines(fails), threading.Event(), lambda error: b"!", turns) for fails in group]
            for pump in pumps:
                pump.start()
            found += [await read_all(pump) for pump in pumps]
            assert not any(pump.failed for pump in pumps)
        return found

    assert asyncio.run(read()) == [b"1!", b"12", b"12"]
