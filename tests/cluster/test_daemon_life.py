"""The personal daemon on a site: who starts it, from where it is reached, what it outlives, when it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import counted, executions, wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

TRY_AGAIN = 75
BIN = "/opt/ffdl/venv/bin"
BARE = ("env", "-i", f"PATH=/usr/bin:/bin:{BIN}")
"""What cron gives, and less: no HOME, no USER, no SHELL."""


@pytest.fixture
def stopped(bob: Person) -> Person:
    """Bob without a daemon."""
    bob.kill_daemon("TERM")
    wait_until(lambda: bob.daemon() is None, "the daemon's end")
    return bob


@pytest.mark.full
def test_daemon_starts_from_cron_environment_and_runs_submitted_job(stopped: Person) -> None:
    model = stopped.model("empty", {"README": "nothing here\n"})
    manifest = stopped.manifest("from-cron", counted(0))
    submitted = stopped.run(*BARE, "ffdl-submit", "--parsable", manifest, model, cwd="/")
    job_id = submitted.stdout.strip()
    assert job_id in stopped.run(*BARE, "ffdl", "list", cwd="/").stdout
    holder = stopped.daemon()
    assert holder is not None and holder["host"] == "ctl"
    assert (stopped.finish(job_id)["state"], executions(stopped, job_id)) == ("COMPLETED", 1)


@pytest.mark.full
def test_ten_concurrent_commands_start_one_daemon(stopped: Person) -> None:
    before = _starts(stopped)
    commands = 'for n in 1 2 3 4 5 6 7 8 9 10; do ffdl list >/dev/null & pids="$pids $!"; done; '
    stopped.run("sh", "-c", commands + "for pid in $pids; do wait $pid || exit 1; done")
    find = ("pgrep", "-u", "bob", "-fc", "ffdl_batch.daemon.main")
    # Those that gave way may still be about to end.
    wait_until(lambda: stopped.run(*find, check=False).stdout.strip() == "1", "one daemon alone")
    assert _starts(stopped) == before + 1


def test_commands_on_second_login_node_use_daemon_of_first(bob: Person) -> None:
    bob.run("ffdl", "list")
    holder = bob.daemon()
    assert holder is not None and holder["host"] == "ctl"
    model = bob.model("empty", {"README": "nothing here\n"})
    job_id = bob.submit(bob.manifest("from-login2", "echo said on a node"), model, node="login2")
    waited = bob.run("ffdl", "wait", job_id, node="login2", check=False)
    assert waited.returncode == 0, waited
    assert "said on a node" in bob.run("ffdl", "logs", job_id, node="login2").stdout
    assert job_id in bob.run("ffdl", "list", node="login2").stdout
    assert bob.daemon() == holder


@pytest.mark.full
def test_client_names_daemon_host_when_ssh_fails(bob: Person) -> None:
    bob.run("ffdl", "list")
    refused = bob.run("ffdl", "list", node="login2", env={"FFDL_SSH": "/bin/false"}, check=False)
    assert refused.returncode == TRY_AGAIN
    assert "your daemon runs on ctl" in refused.stderr and "run this command on ctl" in refused.stderr


@pytest.mark.full
def test_client_on_other_login_node_restarts_dead_daemon_on_its_host(bob: Person) -> None:
    """From the other node: nobody but ctl can prove that ctl's daemon is dead."""
    bob.run("ffdl", "list")
    dead = bob.daemon()
    bob.kill_daemon()
    bob.run("ffdl", "list", node="login2")
    risen = bob.daemon()
    assert dead is not None and risen is not None
    assert risen["host"] == "ctl" and risen["pid"] != dead["pid"]


@pytest.mark.full
def test_daemon_takes_over_dead_daemon_of_other_host_only_with_force(cluster: Cluster, bob: Person) -> None:
    job_id = bob.start("taken-over", counted(0), "--hold")
    job = bob.until(job_id, {"QUEUED"})
    force = ("ffdl-submitd", "--foreground", "--force-take-over-from", "ctl")
    alive = bob.run(*force, node="login2", check=False)
    assert alive.returncode == TRY_AGAIN, "a daemon that holds its lock lives, whatever the operator says"
    bob.kill_daemon()
    held = bob.run("ffdl-submitd", "--take-over", "--foreground", node="login2", check=False)
    assert held.returncode == TRY_AGAIN, "nobody on login2 can know that the process on ctl is dead"
    assert "runs on ctl" in held.stderr and "--force-take-over-from ctl" in held.stderr
    with _foreground(cluster, bob, "login2", *force):
        wait_until(lambda: _serves_on(bob, "login2"), "the take-over")
        assert bob.show(job_id)["state"] == "QUEUED"  # from ctl, through login2
        more = bob.start("submitted-meanwhile", counted(0))
        bob.until(more, {"QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"})
    bob.run("scontrol", "release", job["native_id"])
    for one in (job_id, more):
        assert (bob.finish(one)["state"], executions(bob, one)) == ("COMPLETED", 1)
    assert (bob.daemon() or {})["host"] == "ctl"


@pytest.mark.full
def test_job_and_daemon_survive_end_of_submitting_session(cluster: Cluster, stopped: Person) -> None:
    model = stopped.model("empty", {"README": "nothing here\n"})
    manifest = stopped.manifest("logged-out", counted(2))
    session = stopped.popen("sh", "-c", f"ffdl-submit --parsable {manifest} {model}; exec sleep 600")
    assert session.stdout is not None
    job_id = session.stdout.readline().strip()
    before = stopped.daemon()
    cluster.kill(session)  # the whole process group, as a terminal that closes
    assert (stopped.finish(job_id)["state"], executions(stopped, job_id)) == ("COMPLETED", 1)
    assert before is not None and stopped.daemon() == before


@pytest.mark.full
def test_daemon_exits_when_idle_after_recording_last_job(bob: Person) -> None:
    brief = bob.at("brief", CONFIG.replace("idle_exit_s = 60", "idle_exit_s = 1"))
    brief.run("sh", "-c", f"rm -f {brief.state}/daemon.log")
    job_id = brief.start("brief", counted(1))
    wait_until(lambda: job_id not in brief.run("squeue", "-h", "-u", "bob", "-o", "%j").stdout, "the job's end")
    wait_until(lambda: brief.daemon() is None, "the daemon's end")
    log = brief.read(f"{brief.state}/daemon.log")
    assert "idle for 1 s with no live job" in log
    assert (brief.show(job_id)["state"], executions(brief, job_id)) == ("COMPLETED", 1)  # it had seen the end
    assert log.count("serving at") == 1
    brief.kill_daemon("TERM")


@pytest.fixture
def on_network(cluster: Cluster, bob: Person) -> Iterator[Person]:
    """Bob with a state directory on a file system that is not known to be local (FUSE), job directories as usual."""
    base = "/run/rig-netfs"
    script = f"""
        mkdir -p {base}/lower {base}/upper {base}/work {base}/mnt && chown bob {base}/upper
        mountpoint -q {base}/mnt || \\
            fuse-overlayfs -o allow_other,lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work {base}/mnt
        chown bob {base}/mnt
    """
    cluster.run("ctl", ["sh", "-euc", script])
    config = bob.write("~/on-network/config.toml", f'jobs_dir = "{bob.home}/on-network/jobs"\n{CONFIG}')
    env = {"FFDL_CONFIG": config, "FFDL_STATE_DIR": f"{base}/mnt/state", "FFDL_SOCKET": f"{bob.home}/on-network/s"}
    person = Person(cluster, "bob", env)
    yield person
    person.kill_daemon("KILL")
    cluster.run("ctl", ["sh", "-c", f"umount -l {base}/mnt && rm -rf {base}"])


@pytest.mark.full
def test_daemon_locks_database_without_wal_when_state_is_on_network_file_system(on_network: Person) -> None:
    """SQLite without shared memory: rollback journal, one process. The whole life, a kill in the middle of it."""
    first = on_network.start("netfs-first", "true")
    second = on_network.start("netfs-second", "until [ -e $JOB_STATE_DIR/go ]; do sleep 0.1; done")
    files = on_network.run("ls", on_network.state).stdout.split()
    assert "ffdl.sqlite3" in files and not {"ffdl.sqlite3-wal", "ffdl.sqlite3-shm"} & set(files)
    job_dir = on_network.until(second, {"PROCESSING"})["job_dir"]
    on_network.kill_daemon()
    on_network.run("touch", f"{job_dir}/attempt-1/state/go")
    for job_id in (first, second):
        assert on_network.finish(job_id)["state"] == "COMPLETED"
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0.1).execute('select count(*) from jobs')"
    locked = on_network.run("python3", "-c", look, f"{on_network.state}/ffdl.sqlite3", check=False)
    assert "database is locked" in locked.stderr, "the daemon does not hold the database for itself alone"


def _serves_on(person: Person, node: str) -> bool:
    holder = person.daemon()
    return holder is not None and holder["host"] == node and bool(holder["socket"])


def _starts(person: Person) -> int:
    return person.read(f"{person.state}/daemon.log").count("serving at")


@contextmanager
def _foreground(cluster: Cluster, person: Person, node: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon that a person started by hand, ended as they would."""
    process = person.popen(*argv, node=node)
    try:
        yield process
    finally:
        holder = person.daemon()
        if holder is not None and holder["host"] == node:
            person.kill_daemon("TERM")
            process.wait(300)
        cluster.kill(process)
