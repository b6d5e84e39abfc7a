"""Networks of jobs on this release of Slurm: its prolog is told the comment, or asks for it."""

from __future__ import annotations

import re

from tests.cluster.people import Person
from tests.cluster.talking import TALK, found_by, talk

EXTRA = "batch: {placement: spread, network: job}"


def test_job_network_connects_learners_and_blocks_slurm_daemons(alice: Person) -> None:
    job = talk(alice, "meet", EXTRA, 2, "--comment=my run")
    assert (job["network"], job["network_by"]) == ("job", "vxlan")
    for own, learner in (("10.200.0.1", 1), ("10.200.1.1", 2)):
        said = found_by(alice, job, learner)
        assert said["tcp"] == [f"tcp {i} to {own}" for i in (0, 1)]
        assert said["udp"] == [f"udp {i} to {own}" for i in (0, 1)]
        assert "unreachable" in said["slurmctld"] and all("unreachable" in text for text in said["slurmd"])


def test_array_tasks_each_have_a_job_network(alice: Person) -> None:
    """The last task of an array that starts keeps the array's number."""
    manifest = alice.manifest("elements", "python3 talk.py", f"{EXTRA[:-1]}, array: '0-1'}}", gpus=0, learners=2)
    submitted = alice.run("ffdl-submit", "--parsable", manifest, alice.model("talk", {"talk.py": TALK})).stdout.split()
    listed = alice.run("ffdl", "list", "--json", "--array", submitted[0]).stdout
    for job in alice.finish_all(sorted(set(re.findall(r"training-[0-9a-z]{9}", listed)))):
        assert (job["state"], job["network_by"]) == ("COMPLETED", "vxlan"), job
        assert found_by(alice, job, 2)["tcp"] == [f"tcp {i} to 10.200.1.1" for i in (0, 1)]
