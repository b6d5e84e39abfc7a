"""Secrets on Slurm and in Apptainer: looked for in all that the cluster wrote, in each process and in each answer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.written import written
from tests.secret_search import Search, environment_of

TAG = os.urandom(4).hex()
VALUES = {
    "hub": f"pl\u00e4nted-hub \"x\" 'y' \\ $HOME %+/?&\r\nsecond line-6c1f{TAG}",
    "from-env": f"planted-variable-51dd{TAG}",
    "from-file": f"planted-file-first\nplanted-file-e07c{TAG}",
    "in-clear": f"planted-in-clear-2b44{TAG}",
}
TRAIN = """
import hashlib, os, time
for name in ("HUB", "VARIABLE", "FROM_FILE", "LITERAL"):
    print(name, hashlib.sha256(os.environ[name].encode()).hexdigest(), flush=True)
print("up", flush=True)
while not os.path.exists(os.environ["JOB_STATE_DIR"] + "/release"):
    time.sleep(0.05)
"""
SECRETS = f"""\
batch:
  secrets: {{HUB: "${{secret:hub}}", VARIABLE: "${{env:LICENCE_KEY}}", FROM_FILE: "${{file:licence.txt}}",
            LITERAL: {VALUES["in-clear"]}}}
"""


@dataclass
class Running:
    """The job, and all that commands have said."""

    job_id: str
    native_id: str
    node: str
    said: str


@pytest.fixture(scope="module")
def running(alice: Person) -> Iterator[Running]:
    given = alice.write("~/hub.txt", VALUES["hub"])
    said = alice.run("ffdl", "secret", "set", "hub", "--from-file", given).stdout
    alice.run("rm", given)
    alice.write("~/manifests/licence.txt", VALUES["from-file"] + "\n")
    manifest = alice.manifest("secret", "python3 train.py", SECRETS)
    model = alice.model("secret", {"train.py": TRAIN})
    done = alice.run("ffdl-submit", "-v", "--parsable", manifest, model, env={"LICENCE_KEY": VALUES["from-env"]})
    alice.run("rm", manifest, f"{alice.home}/manifests/licence.txt")  # what the user wrote is not the system's
    job_id = done.stdout.strip()
    job = alice.until(job_id, {"PROCESSING"})
    yield Running(job_id, job["native_id"], job["nodes"], said + done.stdout + done.stderr)
    alice.run("ffdl", "cancel", job_id, check=False)
    alice.run("ffdl", "secret", "rm", "--force", "hub", check=False)


def _await_up(alice: Person, job_id: str) -> str:
    deadline = time.monotonic() + 600
    while "up\n" not in (said := alice.logs(job_id)):
        assert time.monotonic() < deadline, said
        time.sleep(0.3)
    return said


def _state(*names: str) -> set[str]:
    return {f"~/.local/state/ffdl/{name}" for name in names}


def test_secrets_reach_only_learner_and_private_files_and_are_removed(
    cluster: Cluster, alice: Person, bob: Person, running: Running
) -> None:
    values = {"HUB": "hub", "VARIABLE": "from-env", "FROM_FILE": "from-file", "LITERAL": "in-clear"}
    digests = [f"{name} {hashlib.sha256(VALUES[of].encode()).hexdigest()}" for name, of in values.items()]
    assert _await_up(alice, running.job_id).splitlines() == [*digests, "up"], "learners have them, byte for byte"
    search, job = Search(VALUES), f"jobs/{running.job_id}"
    own, attempt, template = (f"{job}/{name}secrets.json" for name in ("", "attempt-1/", "attempt-next/"))
    found = written(cluster, search, alice.home)
    assert found.keys() == _state("secrets/hub", own, attempt, template)
    modes = alice.run("stat", "-c", "%a", *(f"{alice.state}/{name}" for name in ("secrets/hub", own, attempt))).stdout
    assert modes.split() == ["600"] * 3
    for place in ("secrets", attempt):
        denied = bob.run("cat", f"{alice.state}/{place}", check=False)
        assert denied.returncode != 0 and "Permission denied" in denied.stderr

    having = search.in_processes("environ")
    assert having, "the learner has them"
    learners = 0
    for pid, names in having.items():
        inside = environment_of(pid)
        if "ENGINE_CONFIG1" in inside:  # Apptainer's own process for the learner
            continue
        assert names == set(VALUES) and inside.get("TRAINING_ID") == running.job_id, (pid, names, inside.keys())
        learners += 1
    assert learners
    assert search.in_processes("cmdline") == {}

    asked: list[subprocess.CompletedProcess[str]] = [
        alice.run(*argv, check=False)  # not every release has all of these
        for argv in (
            ("scontrol", "-o", "show", "job", running.native_id),
            ("scontrol", "write", "batch_script", running.native_id, "-"),
            ("sacct", "-P", "-j", running.native_id, "-o", "ALL"),
            ("sacct", "-B", "-j", running.native_id),
            ("sacct", "--env-vars", "-j", running.native_id),
            ("ffdl", "show", "--json", running.job_id),
            ("ffdl", "show", running.job_id),
            ("ffdl", "events", "--json", running.job_id),
            ("ffdl", "secret", "list"),
        )
    ]
    told = running.said + "".join(done.stdout + done.stderr for done in asked)
    assert "hub" in told and search.within(told.encode()) == set()

    alice.run("touch", f"{alice.state}/{job}/attempt-1/state/release")
    assert alice.finish(running.job_id)["state"] == "COMPLETED"
    deadline = time.monotonic() + 600
    while (left := written(cluster, search, alice.home)).keys() != _state("secrets/hub"):
        assert time.monotonic() < deadline, left
        time.sleep(1)
    assert search.in_processes("environ") == {}
