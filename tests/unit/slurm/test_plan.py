"""From a request to the script; and requests that this cluster can never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.job import JobId, attempt_token
from ffdl_batch.domain.jobdir import Root
from ffdl_batch.domain.spec import (
    BatchOptions,
    Checkpoint,
    Framework,
    JobSpec,
    NetworkLevel,
    Notify,
    Resources,
)
from ffdl_batch.ports.scheduler import BackendFacts, InvalidRequest, LaunchRequest, NodeShape, NotYet, PartitionShape
from ffdl_slurm.plan import make_plan
from ffdl_slurm.script import parse_options
from ffdl_slurm.settings import SlurmSettings, read_settings

FACTS = BackendFacts(
    nodes=(
        NodeShape("n[1-2]", 8, 4000 * 1024**2, {"a100": 4}, ("main",)),
        NodeShape("m1", 16, 8000 * 1024**2, {"mi250": 2}, ("amd",)),
        NodeShape("c1", 64, 64000 * 1024**2, {}, ("main", "cpu")),
    ),
    partitions=(
        PartitionShape("main", True, 3600),
        PartitionShape("cpu", False, None),
        PartitionShape("amd", False, 60),
    ),
    network_levels=frozenset({NetworkLevel.HOST, NetworkLevel.NONE}),
    version="26.05.5",
    python="/usr/bin/python3",
    controller=("-I", "-S", "/shared/controller.pyz"),
)
JOB = JobId("training-0a1b2c3d4")


def request(resources: Resources | None = None, batch: BatchOptions | None = None, **changes: Any) -> LaunchRequest:
    spec = JobSpec(
        "digits",
        Framework("custom", "img", "python3 train.py"),
        resources=resources or Resources(cpus=1, memory_bytes=10**9),
        batch=batch or BatchOptions(),
        base_dir="/home/alice",
    )
    job = Root("/shared/alice").job(JOB)
    plain = LaunchRequest(
        JOB, 1, attempt_token(JOB, 1), spec, job, job.attempt(1), "/shared/alice/doorbell", FACTS, "/images/x.sif"
    )
    return replace(plain, **changes)


def options(made: LaunchRequest, settings: SlurmSettings | None = None) -> dict[str, str | None]:
    return {option.name: option.value for option in parse_options(make_plan(made, settings or SlurmSettings()).script)}


def test_the_plain_job() -> None:
    found = options(request(Resources(learners=2, cpus=2.5, gpus=1, gpu_type="a100", memory_bytes=10**9)))
    assert found == {
        "job-name": f"{JOB}-1",
        "chdir": f"/shared/alice/jobs/{JOB}/attempt-1",
        "output": f"/shared/alice/jobs/{JOB}/attempt-1/batch.log",
        "open-mode": "append",
        "nodes": "2",
        "ntasks": "2",
        "ntasks-per-node": "1",
        "cpus-per-task": "3",
        "mem": "954M",
        "gres": "gpu:a100:1",
        "propagate": "NONE",
        "export": "ALL",
    }


def test_every_option_is_said_to_sbatch() -> None:
    batch = BatchOptions(
        time_s=90, partition="cpu", account="a", qos="q", constraint="x&y", reservation="r", priority="TOP",
        nodelist="n1", exclude="n2", dependency="afterok:training-00000000a,afterany:7", begin="now+1hour", hold=True,
        requeue=False, signal="B:USR1@60", comment="it's $(id)", output="out-%j.txt",
        notify=Notify("me@example.org", ("END", "FAIL")), slurm_args=("--exclusive", "--switches=1@10", "--nice", "5"),
    )  # fmt: skip
    made = request(batch=batch, native_dependencies={"training-00000000a": "41"})
    found = options(made)
    expected = {
        "time": "00:01:30", "partition": "cpu", "account": "a", "qos": "q", "constraint": "x&y", "reservation": "r",
        "priority": "TOP", "nodelist": "n1", "exclude": "n2", "dependency": "afterok:41,afterany:7",
        "begin": "now+1hour", "hold": None, "no-requeue": None, "signal": "B:USR1@60", "comment": "it's $(id)",
        "output": "/home/alice/out-%j.txt", "mail-user": "me@example.org", "mail-type": "END,FAIL",
        "exclusive": None, "switches": "1@10", "nice": "5",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert make_plan(made, SlurmSettings()).launch.echo_output


def test_site_defaults_fill_what_the_job_leaves_open() -> None:
    settings = read_settings({"partition": "cpu", "account": "dflt", "qos": "low"})
    found = options(request(batch=BatchOptions(account="mine")), settings)
    assert (found["partition"], found["account"], found["qos"]) == ("cpu", "mine", "low")


def test_the_checkpoints_lead_is_a_harmless_signal() -> None:
    assert options(request(batch=BatchOptions(checkpoint=Checkpoint(lead_s=300))))["signal"] == "URG@300"


@pytest.mark.parametrize(
    ("resources", "field", "words"),
    [
        (Resources(gpus=5, cpus=1, memory_bytes=10**6), "gpus", "no node here has more than 4"),
        (Resources(gpus=1, gpu_type="h100", cpus=1, memory_bytes=10**6), "gpu_type", "known: a100"),
        (Resources(cpus=65, memory_bytes=10**6), "cpus", "more than 64"),
        (Resources(cpus=1, memory_bytes=10**12), "memory", "no node here has more than"),
        (Resources(gpus=4, cpus=60, memory_bytes=10**6), "", "at once"),
    ],
)
def test_impossible_resources_name_their_field(resources: Resources, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        make_plan(request(resources), SlurmSettings())
    assert [finding.path for finding in error.value.findings] == [field]
    assert not isinstance(error.value, NotYet)


@pytest.mark.parametrize(
    ("batch", "field", "words"),
    [
        (BatchOptions(partition="nonsense"), "batch.partition", "known: amd, cpu, main"),
        (BatchOptions(time_s=7200), "batch.time", "over the limit of main"),
        (BatchOptions(dependency="afterok:training-zzzzzzzzz"), "batch.dependency", "training-zzzzzzzzz"),
        (BatchOptions(priority="high"), "batch.priority", "TOP"),
        (BatchOptions(signal="USR1@x y"), "batch.signal", "USR1@120"),
        (BatchOptions(slurm_args=("--wrap=id",)), "batch.slurm.args", "--wrap"),
        (BatchOptions(slurm_args=("--job-name=x",)), "batch.slurm.args", "--job-name"),
        (BatchOptions(slurm_args=("-p", "x")), "batch.slurm.args", "long options"),
    ],
)
def test_impossible_options_name_their_field(batch: BatchOptions, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        make_plan(request(batch=batch), SlurmSettings())
    assert [finding.path for finding in error.value.findings] == [field]


def test_one_of_several_partitions_is_enough() -> None:
    batch = BatchOptions(partition="amd,cpu", time_s=7200)
    assert options(request(Resources(cpus=60, memory_bytes=10**6), batch))["partition"] == "amd,cpu"


def test_amd_gpus_get_amd_libraries() -> None:
    batch = BatchOptions(partition="amd")
    argv = make_plan(request(Resources(gpus=1, cpus=1, memory_bytes=1), batch), SlurmSettings()).launch.learner.argv
    assert "--rocm" in argv and "--nv" not in argv


def test_no_image_is_named() -> None:
    with pytest.raises(InvalidRequest, match="no image for custom img"):
        make_plan(request(image=""), SlurmSettings())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"gatway": "cli"}, "unknown key 'gatway'"),
        ({"gateway": "rest"}, "choose one of cli, pyslurm"),
        ({"credential_life_s": 0}, "above zero"),
        ({"command_timeout_s": "soon"}, "number of seconds"),
        ({"srun_args": "--x"}, "list of texts"),
        ({"scratch_base": "tmp"}, "absolute"),
        ({"partition": 3}, "a text"),
    ],
)
def test_settings_are_checked(raw: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_settings(raw)


def test_what_the_site_could_not_prove_is_said_with_the_plan() -> None:
    """A job that gets a looser network than it could have must not get it in silence."""
    facts = replace(FACTS, network_levels=frozenset({NetworkLevel.HOST}), warnings=("isolation is not proved",))
    plan = make_plan(request(facts=facts), SlurmSettings())
    assert plan.network.level == "host"
    assert "isolation is not proved" in plan.warnings


@pytest.mark.parametrize(
    ("resources", "batch", "words"),
    [
        (Resources(learners=40, cpus=1, memory_bytes=10**6), BatchOptions(), "main has 3 nodes that hold one"),
        (Resources(learners=3, cpus=1, gpus=1, memory_bytes=10**6), BatchOptions(), "main has 2 nodes that hold one"),
        (Resources(learners=2, cpus=9, memory_bytes=10**6), BatchOptions(), "main has 1 node that holds one"),
        # A job runs in one of its partitions, never across them.
        (
            Resources(learners=4, cpus=1, memory_bytes=10**6),
            BatchOptions(partition="main,amd"),
            "main has 3 nodes that hold one, amd has 1 node that holds one",
        ),
    ],
)
def test_more_learners_than_nodes_that_could_hold_one(resources: Resources, batch: BatchOptions, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        make_plan(request(resources, batch), SlurmSettings())
    assert [(finding.path, finding.code) for finding in error.value.findings] == [("learners", "C104")]


def test_as_many_learners_as_nodes_are_planned() -> None:
    assert options(request(Resources(learners=3, cpus=1, memory_bytes=10**6)))["nodes"] == "3"
    unknown = replace(FACTS, nodes=())
    assert options(request(Resources(learners=40, cpus=1, memory_bytes=10**6), facts=unknown))["nodes"] == "40"
