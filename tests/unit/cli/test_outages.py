"""A scheduler that does not answer is said in one line, whatever a command does; results go on to standard output."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.cli.render.job_messages import describe_outage
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"
CAUSE = "squeue gave no answer (1: Unable to contact slurm controller (connect failure))"


@pytest.fixture
def away(daemon: FakeDaemon) -> FakeDaemon:
    """Slurm has not answered for four minutes."""
    daemon.jobs[JOB] = make_job(JOB)
    since = time.time() - 241
    daemon.outages = (BackendHealth("slurm", since, CAUSE, "26.05.5", time.time() + 9),)
    return daemon


def sentence(daemon: FakeDaemon, meaning: str) -> str:
    since = time.strftime("%H:%M:%S", time.gmtime(daemon.outages[0].unreachable_since))
    return f"ffdl: slurm unreachable since {since} (4 min): {CAUSE}; {meaning}\n"


@pytest.mark.parametrize("verb", [["list"], ["show", JOB]], ids=lambda verb: verb[0])
def test_list_and_show_warn_of_old_states_during_slurm_outage(away: FakeDaemon, verb: list[str]) -> None:
    done = run(FFDL, *verb, daemon=away, env={"TZ": "UTC"})
    assert (done.returncode, done.stderr) == (0, sentence(away, "jobs continue; states are the last known ones"))
    assert "PROCESSING" in done.stdout
    (document,) = json_lines(run(FFDL, *verb, "--json", daemon=away).stdout)
    (outage,) = document["outages"]
    assert (outage["name"], outage["unreachable_since"], outage["detail"]) == (
        "slurm", away.outages[0].unreachable_since, CAUSE)  # fmt: skip
    assert outage["asked_again_at"] == away.outages[0].asked_again_at
    away.outages = ()
    assert run(FFDL, *verb, daemon=away).stderr == ""
    assert json_lines(run(FFDL, *verb, "--json", daemon=away).stdout)[0]["outages"] == []


@pytest.mark.parametrize("verb", ["cancel", "halt"])
def test_cancel_and_halt_note_request_during_slurm_outage(away: FakeDaemon, verb: str) -> None:
    done = run(FFDL, verb, JOB, daemon=away, env={"TZ": "UTC"})
    meaning = "the request is stored: running jobs get it now, the scheduler gets it when it answers"
    assert (done.returncode, done.stderr) == (0, sentence(away, meaning))
    assert done.stdout == f"{JOB} PROCESSING, {verb} requested\n"


def test_submit_accepts_and_holds_job_during_slurm_outage(away: FakeDaemon, manifest: Path, model: Path) -> None:
    done = run(FFDL_SUBMIT, manifest, model, daemon=away, env={"TZ": "UTC"})
    assert done.stdout.startswith("Submitted batch job training-")
    expected = sentence(away, "jobs are stored, and submitted to it when it answers").replace("ffdl:", "ffdl-submit:")
    assert (done.returncode, done.stderr) == (0, expected)
    assert run(FFDL_SUBMIT, "-Q", manifest, model, daemon=away).stderr == ""


@pytest.fixture
def stuck(daemon: FakeDaemon) -> FakeDaemon:
    """For four minutes the daemon could write nothing into its database."""
    daemon.jobs[JOB] = make_job(JOB)
    cause = "the database /home/ada/ffdl.sqlite3 cannot be used: its file system is read-only: have it mounted"
    daemon.trouble = DatabaseOutage(time.time() - 241, cause)
    return daemon


def words(trouble: DatabaseOutage | None) -> str:
    assert trouble is not None
    return f"since {time.strftime('%H:%M:%S', time.gmtime(trouble.since))} (4 min) {trouble.detail}"


@pytest.mark.parametrize("verb", [["list"], ["show", JOB]], ids=lambda verb: verb[0])
def test_list_and_show_warn_of_database_trouble(stuck: FakeDaemon, verb: list[str]) -> None:
    done = run(FFDL, *verb, daemon=stuck, env={"TZ": "UTC"})
    expected = f"ffdl: {words(stuck.trouble)}; jobs continue; states are the last known ones\n"
    assert (done.returncode, done.stderr) == (0, expected)
    assert "PROCESSING" in done.stdout
    (document,) = json_lines(run(FFDL, *verb, "--json", daemon=stuck).stdout)
    assert from_plain(DatabaseOutage, document["database_outage"]) == stuck.trouble
    stuck.trouble = None
    assert run(FFDL, *verb, daemon=stuck).stderr == ""
    assert json_lines(run(FFDL, *verb, "--json", daemon=stuck).stdout)[0]["database_outage"] is None


def test_daemon_status_prints_next_slurm_query_and_database_trouble(away: FakeDaemon, stuck: FakeDaemon) -> None:
    done = run(FFDL, "daemon", "status", daemon=away, env={"TZ": "UTC"})
    assert done.returncode == 0, done.stderr
    told = {label: text.strip() for label, _, text in (line.partition(":") for line in done.stdout.splitlines())}
    assert told["Daemon"].startswith("process 1 on host, since 1970") and told["Version"] == "9.9"
    assert (told["Live jobs"], told["Database"]) == ("not known", f"sqlite; {words(stuck.trouble)}")
    again = time.strftime("%H:%M:%S", time.gmtime(away.outages[0].asked_again_at))
    assert told["Backend"].startswith("slurm 26.05.5, unreachable since ")
    assert told["Backend"].endswith(f": {CAUSE}; asked again at {again}")


def test_commands_omit_outage_of_backend_that_no_job_needs(away: FakeDaemon, manifest: Path, model: Path) -> None:
    ended = "training-000000002"
    away.jobs = {JOB: make_job(JOB, backend="local"), ended: make_job(ended, state="FAILED", ended_at=1_800_000_100.0)}
    for verb in (["list"], ["show", JOB, ended], ["halt", JOB, ended], ["cancel", JOB, ended]):
        done = run(FFDL, *verb, daemon=away)
        assert "unreachable" not in done.stderr, verb
    away.jobs = {}
    away.backend = "local"
    done = run(FFDL_SUBMIT, manifest, model, daemon=away)
    assert (done.returncode, done.stderr) == (0, "")
    (document,) = json_lines(run(FFDL, "list", "--json", daemon=away).stdout)
    assert [outage["name"] for outage in document["outages"]] == ["slurm"]


def test_list_and_show_warn_of_accounting_outage_after_scheduler_outage(away: FakeDaemon) -> None:
    since = time.time() - 241
    refused = BackendHealth("slurm's accounting", since, "connection refused", "", time.time(), accounts_for="slurm")
    away.outages = (*away.outages, refused)
    for verb in (["list"], ["show", JOB]):
        first, second = run(FFDL, *verb, daemon=away, env={"TZ": "UTC"}).stderr.splitlines()
        assert first.startswith("ffdl: slurm unreachable since ")
        began = time.strftime("%H:%M:%S", time.gmtime(since))
        assert second == (
            f"ffdl: slurm's accounting unreachable since {began} (4 min): connection refused; jobs continue; how "
            "jobs ended that the scheduler no longer knows is not known until it answers"
        )
    assert "accounting" not in run(FFDL, "cancel", JOB, daemon=away).stderr


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        *[(-5, "0 s"), (0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min")],
        *[(7200, "2 h"), (86399, "23 h"), (90000, "1 d")],
    ],
)
def test_describe_outage_prints_age_in_one_unit(age_s: float, shown: str) -> None:
    one = BackendHealth("slurm", 1_800_000_000.0, "no")
    assert describe_outage(one, 1_800_000_000.0 + age_s).endswith(f" ({shown}): no")
    assert describe_outage(replace(one, unreachable_since=None), 1_800_000_000.0) == ""


def test_describe_outage_prints_date_of_earlier_day_and_before_if_start_is_uncertain() -> None:
    at = time.mktime((2027, 1, 20, 12, 34, 56, 0, 0, -1))
    one = BackendHealth("slurm", at, "no answer")
    assert describe_outage(one, at + 86400) == "unreachable since 2027-01-20T12:34:56 (1 d): no answer"
    assert describe_outage(one, at + 240) == "unreachable since 12:34:56 (4 min): no answer"
    before = replace(one, maybe_before=True)
    assert describe_outage(before, at + 240) == "unreachable since before 12:34:56 (4 min): no answer"
