"""The first answer of a daemon that has just started, as a process: it knows what happened while none ran."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, encode_event
from tests.contract.daemon_rig import Site, site_in, until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as made:
        yield made


PATIENT = """\
import sys
from ffdl_batch.daemon import request_context as context
from ffdl_batch.daemon.main import main
from tests.fakes.daemon_with_fake_scheduler import opener
context.CATCH_UP_S = 100.0
sys.exit(main(opener=opener))
"""
"""A daemon whose first round may take as long as it does on a machine that does much else."""


def left_alone(site: Site) -> str:
    """A queued job whose learner started while no daemon ran, and whose bell was taken down with the last daemon."""
    first = site.start()
    job_id = str(site.submit("k1")["id"])
    until(lambda: site.state_of(job_id) == "QUEUED", "the job to be deployed")
    first.send_signal(signal.SIGTERM)
    until(lambda: first.poll() is not None, "the daemon to end")
    event = Event(1, 1_700_000_000.0, "node-0", EventKind.LEARNER_STARTED, {"learner_id": 1})
    Path(Root(str(site.state)).job(job_id).attempt(1).event_file("node-0")).write_text(encode_event(event))
    return job_id


def test_daemon_answers_first_request_after_first_watch_round(site: Site) -> None:
    job_id = left_alone(site)
    site.more_environment = {"TEST_OBSERVE_S": "1"}
    site.start(program=("-c", PATIENT))
    (listed,) = site.ask("GET", "/api/v1/jobs")[1]["jobs"]
    assert (listed["id"], listed["state"]) == (job_id, "PROCESSING")


def test_daemon_answers_and_deploys_jobs_while_scheduler_query_hangs(site: Site) -> None:
    job_id = left_alone(site)
    site.more_environment = {"TEST_OBSERVE_S": "3600"}
    site.start()
    later = str(site.submit("k2")["id"])
    assert site.state_of(job_id) == "QUEUED"
    until(lambda: site.state_of(later) == "QUEUED", "the job that was submitted meanwhile to be deployed")
