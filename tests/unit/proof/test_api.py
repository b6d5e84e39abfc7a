"""Tests that `make fuzz-api` counts each kind of server error once."""

from __future__ import annotations

import pytest

from tests.proof.api import BROKEN_OFF, Tally

REFUSAL = b'{"problem":{},"schema":1}'


@pytest.mark.parametrize(
    ("status", "body", "errors"),
    [
        (200, b"x", 0),
        (404, b"", 0),  # of HEAD
        (400, REFUSAL, 0),
        (400, b"Invalid HTTP request", 1),
        (413, b'{"detail":"x"}', 1),
        (500, REFUSAL, 1),
        (503, REFUSAL, 1),
        (BROKEN_OFF, b"", 1),
    ],
)
def test_fuzz_tally_counts_server_errors_and_other_error_forms(status: int, body: bytes, errors: int) -> None:
    tally = Tally()
    for _ in range(2):
        tally.add("GET /x", status, body, "GET /x")
    assert (tally.cases, len(tally.errors), sum(tally.counts.values())) == (2, errors, 2 * errors)


def test_fuzz_tally_counts_traceback_in_log() -> None:
    tally = Tally()
    tally.check_log("serving at /x")
    assert not tally.errors
    tally.check_log("serving at /x\nTraceback (most recent call last):\n")
    assert sum(tally.counts.values()) == 1
