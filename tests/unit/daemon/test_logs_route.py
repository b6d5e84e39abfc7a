"""The query string of the log stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.daemon import log_routes
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.job import Change
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.log_text import TEXTS, LogText
from ffdl_batch.domain.views import LogLine
from ffdl_batch.services.deploy import Deployer
from tests.unit.daemon.conftest import Desk
from tests.unit.daemon.test_routes import problem, submit


@pytest.fixture
def job_id(desk: Desk) -> str:
    """A job with two attempts, of which the first has a log."""
    found = str(submit(desk)["id"])
    Deployer(desk.platform).step()
    job = desk.platform.store.get(found)
    assert job is not None
    log = Path(desk.platform.root.job(found).attempt(1).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    change = Change(((JobState.DEPLOYING, desk.platform.clock.now()),), Cause.REQUEUED, succeeded=True)
    assert desk.platform.store.apply(job, change) is not None
    return found


def test_logs_route_selects_attempt_and_tail_from_query(desk: Desk, job_id: str) -> None:
    def lines(query: str) -> list[LogLine]:
        answer = desk.ask("GET", f"/api/v1/jobs/{job_id}/logs{query}")
        assert answer.status == 200
        return [from_plain(LogLine, json.loads(line)) for line in answer.body.splitlines() if line]

    one, two = LogLine(1, 1, "one", None, 1, 0, 4), LogLine(1, 2, "two", None, 1, 4, 8)
    assert lines("") == lines("?attempt=all") == lines("?attempt=1") == [one, two]
    assert lines("?attempt=2") == []
    assert lines("?attempt=1&tail=1") == [two]


def test_logs_route_sends_bulk_text_if_client_accepts_it(desk: Desk, job_id: str) -> None:
    answer = desk.ask("GET", f"/api/v1/jobs/{job_id}/logs", headers={"accept": f"{TEXTS}, application/x-ndjson"})
    assert answer.status == 200
    (text,) = [from_plain(LogText, json.loads(line)) for line in answer.body.splitlines() if line]
    assert text == LogText(1, 1, "one\ntwo", None, 1, 0, 8)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("3", "has attempts 1 to 2; there is no attempt 3"),
        ("0", "has attempts 1 to 2; there is no attempt 0"),
        ("every", "the request does not fit the interface: query.attempt"),
    ],
)
def test_logs_route_rejects_unknown_and_invalid_attempts(desk: Desk, job_id: str, word: str, sentence: str) -> None:
    answer = desk.ask("GET", f"/api/v1/jobs/{job_id}/logs?attempt={word}")
    assert (answer.status, problem(answer).exit_code) == (400, 2)
    assert sentence in problem(answer).message


def test_logs_route_rejects_unknown_learner_and_job(desk: Desk, job_id: str) -> None:
    answer = desk.ask("GET", f"/api/v1/jobs/{job_id}/logs?learner=9")
    assert answer.status == 400 and "learner 9" in problem(answer).message
    assert desk.ask("GET", "/api/v1/jobs/training-000000000/logs").status == 404


def test_log_encoder_flushes_pending_text_before_pause_or_failure() -> None:
    texts = [LogText(1, n, str(n)) for n in range(1, 5)]
    came: list[LogText | None] = [None, *texts[:3], None, None, texts[3]]
    sent = list(log_routes._encoded(iter(came), lambda text: text.text.encode()))
    assert sent == [None, b"123", None, b"4"]
    large = list(log_routes._encoded(iter(texts), lambda _: bytes(40_000)))
    assert [len(piece or b"") for piece in large] == [80_000, 80_000]

    def fail() -> Iterator[LogText]:
        yield LogText(1, 1, "a")
        raise OSError("gone")

    pieces = log_routes._encoded(fail(), lambda text: text.text.encode())
    assert next(pieces) == b"a"
    with pytest.raises(OSError, match="gone"):
        next(pieces)
