"""Two people at once: each sees, reads and ends their own jobs only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.people import Person

SECRET = "alices-secret-7d1f"
READING = (["show"], ["logs"], ["events"], ["wait", "--timeout=1"])
"""Commands that change nothing."""


@pytest.fixture(scope="module")
def running(alice: Person, bob: Person) -> Iterator[tuple[str, str]]:
    """A job of each, both running."""
    extra = f"batch:\n  env:\n    TOKEN: {SECRET}"
    ids = (
        alice.start("alices", "echo of alice; sleep 3000", extra=extra),
        bob.start("bobs", "echo of bob; sleep 3000"),
    )
    alice.until(ids[0], {"PROCESSING"})
    bob.until(ids[1], {"PROCESSING"})
    yield ids
    for person, job_id in zip((alice, bob), ids, strict=True):
        person.run("ffdl", "cancel", job_id, check=False)


def test_jobs_run_under_their_owner_in_slurm(alice: Person, bob: Person, running: tuple[str, str]) -> None:
    jobs = [person.show(job_id) for person, job_id in zip((alice, bob), running, strict=True)]
    assert [job["user"] for job in jobs] == ["alice", "bob"]
    users = [alice.run("squeue", "-h", "-j", job["native_id"], "-o", "%u").stdout for job in jobs]
    assert users == ["alice\n", "bob\n"]


@pytest.mark.parametrize("verb", [["cancel"], *(pytest.param(verb, marks=pytest.mark.full) for verb in READING)])
def test_job_commands_report_unknown_job_for_job_of_another_user(
    alice: Person, bob: Person, running: tuple[str, str], verb: list[str]
) -> None:
    for person, other in ((alice, running[1]), (bob, running[0])):
        done = person.run("ffdl", *verb, other, check=False)
        assert done.returncode == 1, done
        assert done.stdout == ""
        assert f"there is no job {other}" in done.stderr
    assert alice.show(running[0])["state"] == bob.show(running[1])["state"] == "PROCESSING"


def test_list_shows_only_own_jobs(alice: Person, bob: Person, running: tuple[str, str]) -> None:
    for person, own, other in ((alice, running[0], running[1]), (bob, running[1], running[0])):
        listed = person.run("ffdl", "list", "--json").stdout
        assert own in listed and other not in listed


def test_daemon_socket_rejects_another_user(alice: Person, bob: Person, running: tuple[str, str]) -> None:
    holder = alice.daemon()
    assert holder is not None
    done = bob.run("ffdl", "list", env={"FFDL_SOCKET": str(holder["socket"])}, node=str(holder["host"]), check=False)
    assert done.returncode in (69, 75, 77), done
    assert running[0] not in done.stdout + done.stderr


def test_state_and_job_directories_are_private_to_owner(alice: Person, bob: Person, running: tuple[str, str]) -> None:
    for person, job_id in zip((alice, bob), running, strict=True):
        job_dir = person.show(job_id)["job_dir"]
        directories = person.run("find", job_dir, "-type", "d", "-perm", "/077").stdout.split()
        # Below directories of mode 0700 nobody comes; the top ones are what counts.
        tops = person.run("stat", "-c", "%a %U", person.state, f"{person.state}/jobs", job_dir).stdout.splitlines()
        assert tops == [f"700 {person.name}"] * 3
        assert job_dir not in directories
        modes = person.run("stat", "-c", "%a", f"{job_dir}/attempt-1", f"{job_dir}/attempt-1/environment.json").stdout
        assert modes.split() == ["700", "600"]
    denied = bob.run("ls", f"{alice.state}/jobs", check=False)
    assert denied.returncode != 0 and "Permission denied" in denied.stderr


def test_environment_value_appears_in_no_command_line_or_batch_script(
    alice: Person, bob: Person, running: tuple[str, str]
) -> None:
    job = alice.show(running[0])
    script = alice.run("scontrol", "write", "batch_script", job["native_id"], "-").stdout
    assert script.startswith("#!/bin/sh") and SECRET not in script
    seen = bob.run("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", node=job["nodes"]).stdout
    assert job["id"] in seen and SECRET not in seen
    assert SECRET not in bob.run("scontrol", "-o", "show", "job", job["native_id"]).stdout


def test_cancel_ends_own_job_of_each_user(alice: Person, bob: Person, running: tuple[str, str]) -> None:
    for person, job_id in zip((alice, bob), running, strict=True):
        person.run("ffdl", "cancel", job_id)
    for person, job_id in zip((alice, bob), running, strict=True):
        job = person.finish(job_id)
        assert (job["state"], job["message"]) == ("CANCELLED", "cancelled by its owner")
        assert person.logs(job_id) == f"of {person.name}\n"
