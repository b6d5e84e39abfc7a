"""How jobs fail: each fault has its own code, and what there is of results and logs is kept."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster

SMALL_NODE = "n2"
SMALL = "/mnt/small"
"""A file system of 1 MiB that only that node has."""
FAILING = (
    "for i in $(seq 60); do echo line $i; done; echo half > $RESULT_DIR/partial.txt; "
    "echo saved > $CHECKPOINT_DIR/model.ckpt; echo the last words >&2; exit 3"
)
HUNGRY = "python3 -c 'print(\"growing\", flush=True); held = bytearray(600 << 20); print(len(held))'"
SECOND_FAILS = (
    "if [ $LEARNER_ID = 2 ]; then sleep 1; echo giving up; exit 5; fi; "
    "trap 'echo told to stop; exit 0' TERM; echo waiting; while :; do sleep 0.2; done"
)
WITHOUT_BASH = """
set -e
rm -rf nobash && mkdir -p nobash/bin nobash/etc nobash/tmp nobash/proc nobash/sys nobash/dev nobash/job nobash/mnt
cp -L /bin/dash nobash/bin/sh
for library in $(ldd /bin/dash | grep -o '/[^ ]*'); do mkdir -p nobash/$(dirname $library); cp -L $library nobash/$library; done
touch nobash/etc/passwd nobash/etc/group nobash/etc/hosts nobash/etc/resolv.conf
apptainer -q build --force nobash.sif nobash
"""  # noqa: E501 - a shell script
STORE = """\
data_stores:
  - id: here
    type: mount_volume
    training_data: {{container: in}}
    training_results: {{container: out}}
    connection: {{type: host_mount, path: "{path}"}}
"""


@pytest.fixture(scope="module")
def small(cluster: Cluster) -> Iterator[str]:
    """A results store that is soon full."""
    cluster.run(SMALL_NODE, ["sh", "-c", f"mkdir -p {SMALL} && mount -t tmpfs -o size=1m,mode=1777 small {SMALL}"])
    cluster.run(SMALL_NODE, ["sh", "-c", f"mkdir -m 1777 {SMALL}/in {SMALL}/out"])
    yield SMALL
    cluster.run(SMALL_NODE, ["umount", "-l", SMALL])


@pytest.fixture(scope="module")
def failed(alice: Person) -> dict[str, dict[str, Any]]:
    """Failing jobs of `make test`, started together."""
    alice.write("~/not-an-image.sif", "this is a text\n")
    alice.run("sh", "-c", "mkdir -p failures/in failures/out")
    manifests = {
        "exit": alice.manifest("exit", FAILING, STORE.format(path="../failures")),
        "memory": alice.manifest("memory", HUNGRY, memory="128MiB"),
        "second": alice.manifest("second", SECOND_FAILS, learners=2),
        "no-image": with_image(alice, f"{alice.home}/not-an-image.sif"),
    }
    return ended(alice, submitted(alice, manifests))


@pytest.fixture(scope="module")
def failed_in_full(alice: Person, small: str) -> dict[str, dict[str, Any]]:
    """The others, started together."""
    alice.run("bash", "-c", WITHOUT_BASH)
    manifests = {
        "killed": alice.manifest("killed", "echo here; kill -SEGV $$"),
        "command": alice.manifest("command", "no-such-program --at-all"),
        "no-bash": with_image(alice, f"{alice.home}/nobash.sif"),
    }
    full = {"full": alice.manifest("full", "head -c 3000000 /dev/zero > $RESULT_DIR/big", STORE.format(path=small))}
    return ended(alice, submitted(alice, manifests) | submitted(alice, full, f"--nodelist={SMALL_NODE}"))


def with_image(alice: Person, path: str) -> str:
    """A manifest for that image."""
    fields = {"framework": f"{{name: custom, version: {path}, command: 'true'}}"}
    text = "\n".join([f"name: {path}", "cpus: 1", "memory: 64MiB", *(f"{k}: {v}" for k, v in fields.items())])
    return alice.write(f"~/manifests/image-{path.rpartition('/')[2]}.yml", text + "\n")


def submitted(alice: Person, manifests: dict[str, str], *options: str) -> dict[str, str]:
    """The ids of the jobs by the names of their manifests."""
    model = alice.model("empty", {"README": "nothing here\n"})
    return dict(zip(manifests, alice.submit_all(list(manifests.values()), model, *options), strict=True))


def ended(alice: Person, ids: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The jobs, which have failed."""
    jobs = dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))
    for name, job in jobs.items():
        assert job["state"] == "FAILED", (name, job)
    return jobs


def kept(alice: Person, job: dict[str, Any], name: str) -> str:
    """A file in the directory of results."""
    return alice.read(f"{job['results']}/{name}")


def test_failed_job_reports_exit_status_error_code_and_log_tail(
    alice: Person, failed: dict[str, dict[str, Any]]
) -> None:
    job = failed["exit"]
    assert (job["error_code"], job["exit_code"], job["exit_signal"]) == ("C201", 3, None)
    assert job["message"] == "learner 1 ended with exit code 3"
    shown = alice.run("ffdl", "show", job["id"]).stdout
    assert "Error code:          C201\n" in shown and "Exit code:           3\n" in shown
    assert shown.rstrip().endswith("line 60\n  the last words")
    assert alice.accounted(job["native_id"], "State", "ExitCode") == ["FAILED", "3:0"]


def test_failed_job_stores_results_logs_and_checkpoint(alice: Person, failed: dict[str, dict[str, Any]]) -> None:
    job = failed["exit"]
    assert job["results"] == f"{alice.home}/failures/out/{job['id']}"
    assert kept(alice, job, "partial.txt") == "half\n"
    log = kept(alice, job, "learner-1/training-log.txt")
    assert len(log.splitlines()) == 61 and log == alice.logs(job["id"])
    assert alice.read(f"{job['job_dir']}/checkpoints/model.ckpt") == "saved\n"
    assert list(job["timestamps"])[-2:] == ["STORING", "FAILED"]


@pytest.mark.full
def test_job_reports_signal_that_killed_its_learner(failed_in_full: dict[str, dict[str, Any]]) -> None:
    """The shell in the container dies of it; Apptainer hands it on as the exit code that a shell would give."""
    job = failed_in_full["killed"]
    assert job["error_code"] == "C201"
    assert (job["exit_signal"] or job["exit_code"] - 128) == 11
    assert "SIGSEGV" in job["message"]


def test_job_reports_out_of_memory_when_learner_exceeds_memory(
    alice: Person, failed: dict[str, dict[str, Any]]
) -> None:
    job = failed["memory"]
    assert job["error_code"] == "C202", job
    assert "memory" in job["message"] and "ask for more memory" in job["cure"]
    assert alice.logs(job["id"]).splitlines()[0] == "growing"


def test_learner_failure_terminates_the_other_learner(alice: Person, failed: dict[str, dict[str, Any]]) -> None:
    job = failed["second"]
    assert (job["error_code"], job["exit_code"]) == ("C201", 5)
    assert re.fullmatch(r"learner 2 \(on \S+\) ended with exit code 5", job["message"]), job["message"]
    assert job["log_tail"] == ["giving up"]
    assert alice.logs(job["id"], "--learner=1").splitlines() == ["waiting", "told to stop"]
    assert job["native_id"] not in alice.queue()


@pytest.mark.full
def test_job_fails_with_status_127_when_command_is_missing(failed_in_full: dict[str, dict[str, Any]]) -> None:
    job = failed_in_full["command"]
    assert (job["error_code"], job["exit_code"]) == ("C201", 127)
    assert "no-such-program: command not found" in job["log_tail"][-1]


@pytest.mark.full
def test_job_fails_with_container_error_when_image_has_no_bash(failed_in_full: dict[str, dict[str, Any]]) -> None:
    job = failed_in_full["no-bash"]
    assert job["error_code"] in ("S103", "S105"), job
    assert "bash" in job["message"] and job["nodes"] in job["message"]


def test_job_fails_with_s103_when_image_is_not_a_sif_file(alice: Person, failed: dict[str, dict[str, Any]]) -> None:
    job = failed["no-image"]
    assert job["error_code"] == "S103", job
    assert f"{alice.home}/not-an-image.sif" in job["message"] and job["nodes"] in job["message"]


@pytest.mark.full
def test_submit_rejects_results_store_that_is_not_writable(alice: Person) -> None:
    alice.run("sh", "-c", "mkdir -p locked/in locked/out && chmod a-w locked/out")
    manifest = alice.manifest("locked", "echo x > $RESULT_DIR/x", STORE.format(path="../locked"))
    done = alice.run("ffdl-submit", manifest, alice.model("empty", {"README": "nothing here\n"}), check=False)
    assert (done.returncode, f"you may not write in {alice.home}/locked/out" in done.stderr) == (78, True), done


@pytest.mark.full
def test_job_fails_with_s303_and_keeps_results_when_store_is_full(
    alice: Person, failed_in_full: dict[str, dict[str, Any]], small: str
) -> None:
    job = failed_in_full["full"]
    assert job["error_code"] == "S303", job
    assert f"{small}/out/{job['id']}" in job["message"] and "No space left on device" in job["message"]
    # What the learner wrote is still where it wrote it.
    size = alice.run("stat", "-c", "%s", f"{job['job_dir']}/attempt-1/results/big").stdout
    assert size == "3000000\n"


@pytest.mark.full
def test_job_fails_with_s105_when_node_has_no_apptainer(alice: Person) -> None:
    other = alice.at(
        "no-apptainer",
        textwrap.dedent("""\
        [backend.slurm]
        apptainer = "/nonexistent/apptainer"
        """),
    )
    model = other.model("empty", {"README": "nothing here\n"})
    manifest = other.manifest("no-apptainer", "true")
    try:
        done = other.run("ffdl-submit", "--parsable", manifest, model)
        assert done.stderr == ""  # the daemon's host is not asked: apptainer is the nodes'
        job = other.finish(done.stdout.strip())
    finally:
        other.kill_daemon("TERM")
    assert (job["state"], job["error_code"]) == ("FAILED", "S105"), job
    assert "/nonexistent/apptainer" in job["message"] and job["nodes"] in job["message"]


@pytest.mark.full
def test_failed_job_has_one_incident_with_cause_and_evidence(
    alice: Person, failed: dict[str, dict[str, Any]], failed_in_full: dict[str, dict[str, Any]]
) -> None:
    jobs = failed | failed_in_full
    kinds = {
        "exit": "user.exit",
        "killed": "user.signal",
        "memory": "user.memory",
        "second": "user.exit",
        "command": "user.exit",
        "no-image": "container.image_missing",
        "full": "data.disk_full",
    }
    found = {name: alice.show(jobs[name]["id"])["incidents"] for name in kinds}
    assert {name: [one["kind"] for one in told] for name, told in found.items()} == {
        name: [kind] for name, kind in kinds.items()
    }
    assert (found["second"][0]["learner"], found["second"][0]["nodes"]) != (0, [])
    assert all(one["evidence"] for told in found.values() for one in told)
