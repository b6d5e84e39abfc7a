"""The daemon on a real PostgreSQL: the same jobs, also after a kill, and a database that goes away and comes back."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.daemon_rig import Site, site_in, until
from tests.postgres import PostgresServer, running_postgres

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer) -> Iterator[Site]:
    database = postgres.create_database()
    with site_in(tmp_path) as made:
        made.more_environment = {"FFDL_DATABASE_URL": postgres.url(database)}
        yield made
    postgres.drop_database(database)


def test_daemon_keeps_jobs_in_postgres_after_sigkill(site: Site) -> None:
    daemon = site.start()
    assert site.ask("GET", "/api/v1/health")[1]["database"] == "postgresql"
    job = site.submit("a")["id"]
    until(lambda: site.state_of(job) == "QUEUED", "the job to reach the scheduler")
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    site.start()
    assert site.state_of(job) == "QUEUED"
    assert site.submit("a")["id"] == job


def test_daemon_answers_503_while_postgres_is_down_and_keeps_jobs(site: Site, postgres: PostgresServer) -> None:
    site.start()
    job = site.submit("a")["id"]
    postgres.stop()
    try:
        status, reply = site.ask("GET", f"/api/v1/jobs/{job}")
        assert (status, reply["problem"]["exit_code"]) == (503, 75), json.dumps(reply)
    finally:
        postgres.start()
    until(lambda: site.ask("GET", f"/api/v1/jobs/{job}")[0] == 200, "the database to be used again")
    assert site.submit("b")["id"] != job
    assert site.submit("a")["id"] == job
