"""A node whose Apptainer has no setuid starter: learners run in user namespaces, and images are mounted with FUSE."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.test_doctor import CONF, doctor

pytestmark = pytest.mark.full
LOOK = "readlink /proc/self/ns/user; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; echo $CUDA_VISIBLE_DEVICES"
STEPS = 'trap "echo asked; exit 0" USR2; echo begun; while sleep 0.1; do :; done'
HELPERS = ("/usr/bin/squashfuse", "/usr/bin/squashfuse_ll")


@pytest.fixture
def rootless(cluster: Cluster) -> Iterator[str]:
    """The node n3, where Apptainer may not use the setuid starter."""
    cluster.run("n3", ["sed", "-i.suid", "s/^allow setuid = yes/allow setuid = no/", CONF])
    try:
        yield "n3"
    finally:
        cluster.run("n3", ["mv", f"{CONF}.suid", CONF])


def test_job_runs_in_user_namespace_with_level_none_and_a_gpu(cluster: Cluster, alice: Person, rootless: str) -> None:
    extra = "batch: {network: none}"
    job = alice.finish(alice.start("rootless", LOOK, f"--nodelist={rootless}", extra=extra, gpus=1))
    assert job["state"] == "COMPLETED", (job, alice.logs(job["id"]))
    namespace, interface, gpus = alice.logs(job["id"]).splitlines()[-3:]
    assert namespace != cluster.run(rootless, ["readlink", "/proc/self/ns/user"]).stdout.strip()
    assert (interface, gpus) == ("lo", "0")


def test_learner_gets_checkpoint_signal_in_user_namespace(alice: Person, rootless: str) -> None:
    job_id = alice.start("halted", STEPS, f"--nodelist={rootless}", gpus=0)
    wait_until(lambda: "begun" in alice.logs(job_id), "the learner's start")
    alice.run("ffdl", "halt", job_id)
    assert alice.finish(job_id)["state"] == "HALTED"
    assert alice.logs(job_id).splitlines()[-1] == "asked"


def test_doctor_notes_rootless_node_without_squashfuse(cluster: Cluster, alice: Person, rootless: str) -> None:
    """It also reports that level egress, whose feature the node has, needs the setuid starter."""
    about = f"node {rootless}: "
    lines = [line for line in doctor(alice, f"--nodes={rootless}")[1] if about in line]
    assert [line for line in lines if line.startswith("wrong ") and line.endswith("'allow setuid' must be yes")], lines
    assert not [line for line in lines if "SIF images" in line]
    for path in HELPERS:
        cluster.run(rootless, ["mv", path, f"{path}.away"])
    try:
        [line] = [line for line in doctor(alice, f"--nodes={rootless}")[1] if "SIF images" in line]
        assert line.startswith(f"note   {about}apptainer has no setuid starter there, and cannot mount SIF images")
        options = f"--nodelist={rootless}", "--mem=2G"  # of the job, in which the image is unpacked
        job = alice.finish(alice.start("unpacked", "echo ran", *options, gpus=0))
        assert (job["state"], alice.logs(job["id"])) == ("COMPLETED", "ran\n"), job
    finally:
        for path in HELPERS:
            cluster.run(rootless, ["mv", f"{path}.away", path])
