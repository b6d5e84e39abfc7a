"""From a request to the script; and requests that this cluster can never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.job import JobId, Token, attempt_token
from ffdl_batch.domain.job.spec import BatchOptions, Checkpoint, Framework, JobSpec, NetworkLevel, Resources
from ffdl_batch.domain.launch.attach_protocol import INTERACTIVE_COMMAND
from ffdl_batch.domain.launch.launch_file import TEMPLATE, Succession, decode, succeed
from ffdl_batch.domain.launch.limits import LeadFrom
from ffdl_batch.domain.quantity import UNLIMITED_S, WHOLE_NODE
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.sbatch_script import parse_options
from ffdl_slurm.settings import SlurmSettings, read_settings

FACTS = BackendFacts(
    nodes=(
        NodeShape("n[1-2]", 8, 4000 * 1024**2, {"a100": 4}, ("main",)),
        NodeShape("m1", 16, 8000 * 1024**2, {"mi250": 2}, ("amd",)),
        NodeShape("c1", 64, 64000 * 1024**2, {}, ("main", "cpu")),
    ),
    partitions=(PartitionShape("main", True, 3600), PartitionShape("cpu"), PartitionShape("amd", False, 60)),
    network_levels=frozenset({NetworkLevel.HOST, NetworkLevel.NONE}),
    version="26.05.5", python="/usr/bin/python3", controller=("-I", "-S", "/shared/controller.pyz"),
)  # fmt: skip
JOB = JobId("training-0a1b2c3d4")


def request(resources: Resources | None = None, batch: BatchOptions | None = None, **changes: Any) -> LaunchRequest:
    spec = JobSpec(
        "digits", Framework("custom", "img", "python3 train.py"), base_dir="/home/alice",
        resources=resources or Resources(cpus=1, memory_bytes=10**9), batch=batch or BatchOptions(),
    )  # fmt: skip
    job = Root("/shared/alice").job(JOB)
    plain = LaunchRequest(
        JOB, 1, attempt_token(JOB, 1), spec, job, job.attempt(1), "/shared/alice/doorbell", FACTS, "/images/x.sif"
    )
    return replace(plain, **changes)


def options(made: LaunchRequest, settings: SlurmSettings | None = None) -> dict[str, str | None]:
    return {option.name: option.value for option in parse_options(make_plan(made, settings or SlurmSettings()).script)}


def chained(made: LaunchRequest, settings: SlurmSettings | None = None) -> tuple[LaunchPlan, Succession]:
    """The plan, and what its launch file says of the attempts after it."""
    plan = make_plan(made, settings or SlurmSettings())
    assert plan.launch.succession is not None
    return plan, plan.launch.succession


def small(**more: Any) -> Resources:
    return Resources(**{"cpus": 1, "memory_bytes": 10**6, **more})


def test_plan_passes_several_dependencies_batch_shell_signal_and_further_options_to_sbatch() -> None:
    words = ("--exclusive", "--nice=5")
    batch = BatchOptions(dependency="afterok:41,afterany:7", signal="B:USR1@60", slurm_args=words)
    expected = {"dependency": "afterok:41,afterany:7", "signal": "B:USR1@60", "exclusive": None, "nice": "5"}
    found = options(request(batch=batch))
    assert {name: found[name] for name in expected} == expected


def test_plan_passes_absolute_times_as_seconds_since_epoch() -> None:
    text = "2027-01-15T09:00:00+01:00"
    found = options(request(batch=BatchOptions(begin=text, slurm_args=(f"--deadline={text}",))))
    assert (found["begin"], found["deadline"]) == ("uts1800000000", "uts1800000000")


def test_plan_passes_numeric_options_of_sbatch_as_they_are() -> None:
    words = ("--nice", "--mincpus=4", "--switches=1@1:00:00", "--time-min=1-0", "--tmp=10G",
             "--acctg-freq=task=30,energy=0", "--extra-node-info=2:4-8:*")  # fmt: skip
    found = options(request(batch=BatchOptions(slurm_args=words)))
    names = [word[2:].partition("=")[0] for word in words]
    assert [f"--{name}" + (f"={found[name]}" if found[name] else "") for name in names] == list(words)


def test_plan_hides_failure_of_training_from_slurm_only_if_it_expedites_requeues() -> None:
    batch = BatchOptions(requeue=True, expedite=True)
    plan = make_plan(request(small(memory_bytes=WHOLE_NODE), batch), SlurmSettings())
    asked = {option.name: option.value for option in parse_options(plan.script)}
    assert (asked["requeue"], asked["mem"]) == ("expedite", "0M")
    assert " head --exit-zero --launch " in plan.script
    assert " head --launch " in make_plan(request(small(), BatchOptions(requeue=True)), SlurmSettings()).script


def test_plan_refuses_job_without_limit_on_partition_with_one() -> None:
    with pytest.raises(InvalidRequest, match=r"batch\.time: UNLIMITED is over the limit of main, 01:00:00"):
        make_plan(request(small(), BatchOptions(time_s=UNLIMITED_S)), SlurmSettings())


def test_plan_uses_site_defaults_for_unset_options_and_configured_fence_and_kill_wait() -> None:
    settings = read_settings({"partition": "cpu", "account": "dflt", "qos": "low"})
    found = options(request(batch=BatchOptions(account="mine")), settings)
    assert (found["partition"], found["account"], found["qos"]) == ("cpu", "mine", "low")
    limits = make_plan(request(), read_settings({"fence_s": 20, "kill_wait_s": 5})).launch.limits
    assert (limits.fence_s, limits.kill_wait_s) == (20.0, 5)
    assert make_plan(request(), SlurmSettings()).launch.limits.fence_s == 120.0


def test_plan_requests_urg_signal_with_lead_limited_to_65535() -> None:
    assert options(request(lead_s=300))["signal"] == "URG@300"
    assert options(request(lead_s=100_000))["signal"] == "URG@65535"
    assert "signal" not in options(request(batch=BatchOptions(checkpoint=Checkpoint(lead_s=300))))
    plan, chain = chained(request(lead_s=300, lead_from=LeadFrom.MEASURED))
    assert (plan.launch.limits.lead_s, chain.lead_s, plan.launch.limits.lead_from) == (300, 300, LeadFrom.MEASURED)
    assert chain.submit[2:] == ("--dependency=afterany:{native_id}", "--signal=URG@{lead_s}", "{script}")


def test_plan_replaces_lead_signal_with_user_signal_and_warns() -> None:
    made = request(batch=BatchOptions(signal="USR1@60", checkpoint=Checkpoint(lead_s=300)), lead_s=300)
    plan, chain = chained(made)
    assert options(made)["signal"] == "USR1@60"
    assert (plan.launch.limits.lead_s, chain.lead_s) == (None, None)
    assert chain.submit[2:] == ("--dependency=afterany:{native_id}", "{script}")
    assert any("batch.signal is used instead" in warning for warning in plan.warnings)


def template(made: LaunchRequest) -> LaunchRequest:
    return replace(made, attempt=2, token=Token(f"{JOB}-{TEMPLATE}"), attempt_dir=made.job_dir.template)


@pytest.mark.parametrize("settings", [SlurmSettings(), SlurmSettings(continue_in_place=True)])
def test_template_plan_equals_plan_of_later_attempt_when_filled(settings: SlurmSettings) -> None:
    """Filled in, it is the plan of that attempt but for what the head sets itself: the number, and where the template
    of the attempt after it lies."""
    resources = Resources(learners=2, cpus=1, gpus=1, memory_bytes=10**9)
    made = request(resources, BatchOptions(exclude="n9"), lead_s=60)
    later = replace(made, attempt=3, token=attempt_token(JOB, 3), attempt_dir=made.job_dir.attempt(3))
    third = make_plan(later, settings)
    files = {file.name: succeed(file.text, JOB, 3) for file in make_plan(template(made), settings).files}
    assert files["script.sh"] == third.script
    filled = decode(files["launch.json"])
    assert filled.succession is not None
    numbered = replace(filled.succession, template=made.job_dir.template.path)
    assert replace(filled, attempt=3, succession=numbered) == third.launch


@pytest.mark.parametrize(
    ("resources", "shrinks"),
    [
        (Resources(gpus=2, learners=2), False),
        (Resources(gpus=2, learners=2, gpu_type="a100"), True),
        (Resources(gpus=0, learners=2), True),
    ],
)
def test_plan_lets_job_shrink_in_place_on_nodes_with_one_gpu_type(resources: Resources, shrinks: bool) -> None:
    shapes = tuple(
        NodeShape(name, 80, 10**11, {kind: 4}, ("main",)) for name, kind in (("n[1-4]", "a100"), ("m", "v100"))
    )
    elastic = Elastic(1, 2, 2, 8, 4, 4, in_place=True)
    made = request(resources, BatchOptions(elasticity=elastic))
    made = replace(made, facts=replace(made.facts, nodes=shapes))
    plan = make_plan(made, SlurmSettings(continue_in_place=True))
    assert plan.launch.shrinks is shrinks
    assert any("GPUs of several types" in one for one in plan.warnings) is not shrinks
    written = options(made, SlurmSettings(continue_in_place=True))
    assert "no-requeue" in written and "requeue" not in written


def test_plan_requeues_in_place_if_site_allows_unless_job_forbids_it() -> None:
    settings = read_settings({"continue_in_place": True, "command_timeout_s": 7})
    chain = chained(request(), settings)[1]
    assert (chain.requeue, chain.timeout_s) == (("scontrol", "requeue", "{native_id}"), 7.0)
    assert "requeue" in options(request(), settings)
    owner = request(batch=BatchOptions(requeue=False))
    assert chained(owner, settings)[1].requeue == ()
    assert "no-requeue" in options(owner, settings) and "requeue" not in options(owner, settings)


@pytest.mark.parametrize(
    ("resources", "batch", "field", "words"),
    [
        (small(gpus=5), {}, "gpus", "no node here has more than 4"),
        (small(gpus=1, gpu_type="h100"), {}, "gpu_type", "known: a100"),
        (small(cpus=65), {}, "cpus", "more than 64"),
        (small(memory_bytes=10**12), {}, "memory", "no node here has more than"),
        (small(gpus=4, cpus=60), {}, "", "at once"),
        (small(learners=40), {}, "learners", "main has 3 nodes that hold one"),
        (small(learners=3, gpus=1), {}, "learners", "main has 2 nodes that hold one"),
        (small(learners=2, cpus=9), {}, "learners", "main has 1 node that holds one"),
        # A job runs in one of its partitions, never across them.
        (small(learners=4), {"partition": "main,amd"}, "learners",
         "main has 3 nodes that hold one, amd has 1 node that holds one"),
        (small(), {"partition": "nonsense"}, "batch.partition", "known: amd, cpu, main"),
        (small(), {"time_s": 7200}, "batch.time", "over the limit of main"),
        (small(), {"dependency": "afterok:training-zzzzzzzzz"}, "batch.dependency", "training-zzzzzzzzz"),
        (small(), {"priority": "high"}, "batch.priority", "TOP"),
        (small(), {"priority": "²"}, "batch.priority", "TOP"),
        (small(), {"priority": "4294967294"}, "batch.priority", "TOP"),
        (small(), {"signal": "USR1@x y"}, "batch.signal", "USR1@120"),
        (small(), {"signal": "USR1@65536"}, "batch.signal", "USR1@120"),
        *[
            (small(), {"begin": text}, "batch.begin", "now.1hour")
            for text in ("nonsense", "16:00", "now+1hour")  # submissions make them absolute
        ],
        *[
            (small(), {"slurm_args": (f"--{name}={text}",)}, "batch.slurm.args[0]", f"--{name}")
            for name, text in [
                ("deadline", "nonsense"), ("nice", "low"), ("mincpus", "0"), ("wait-all-nodes", "1"), ("reboot", "x"),
            ]
        ],
        (small(), {"slurm_args": ("--mincpus",)}, "batch.slurm.args[0]", "--mincpus"),
        (small(), {"slurm_args": ("--wrap=id",)}, "batch.slurm.args[0]", "--wrap"),
        (small(), {"slurm_args": ("--job-name=x",)}, "batch.slurm.args[0]", "--job-name"),
        (small(), {"slurm_args": ("-p", "x")}, "batch.slurm.args[0]", "long sbatch option"),
    ],
)  # fmt: skip
def test_plan_rejects_impossible_resources_and_invalid_batch_options_with_field_name(
    resources: Resources, batch: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        make_plan(request(resources, BatchOptions(**batch)), SlurmSettings())
    (finding,) = error.value.findings
    assert finding.path == field
    assert field != "learners" or finding.code == "C104"


@pytest.mark.parametrize(
    ("command", "cure"),
    [("python3 x", "ask for at most 4, or use more learners with fewer GPUs each"),
     (INTERACTIVE_COMMAND, "ask for at most 4")],
)  # fmt: skip
def test_plan_suggests_more_learners_only_if_job_may_have_several(command: str, cure: str) -> None:
    asked = request(small(gpus=5))
    spec = replace(asked.spec, framework=replace(asked.spec.framework, command=command))
    with pytest.raises(InvalidRequest) as error:
        make_plan(replace(asked, spec=spec), SlurmSettings())
    assert [finding.cure for finding in error.value.findings] == [cure]


def test_plan_rejects_job_without_image() -> None:
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
        ({"fence_s": -1}, "above zero"),
        ({"kill_wait_s": 0.5}, "whole number"),
        ({"continue_in_place": "yes"}, "true or false"),
        ({"gpu_devices": ["/dev/nvidia0"]}, "a table is needed"),
        ({"gpu_devices": {"habana": ["/dev/hl*"]}}, "known are nvidia, amd, intel"),
        ({"gpu_devices": {"nvidia": "/dev/nvidia0"}}, "list of texts"),
        ({"gres_devices": {"npu": ["npu0"]}}, "absolute patterns"),
    ],
)
def test_slurm_settings_reject_unknown_key_or_invalid_value(raw: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_settings(raw)


def test_plan_includes_warnings_of_site_probe() -> None:
    """A job that gets a looser network than it could have must not get it in silence."""
    facts = replace(FACTS, network_levels=frozenset({NetworkLevel.HOST}), warnings=("isolation is not proved",))
    plan = make_plan(request(facts=facts), SlurmSettings())
    assert plan.network.level == "host"
    assert "isolation is not proved" in plan.warnings


def test_plan_accepts_job_that_fills_a_node_or_fits_one_of_its_partitions_or_has_no_node_facts() -> None:
    whole = request(Resources(cpus=64, memory_bytes=64000 * 1024**2), BatchOptions(time_s=3600))
    assert (options(whole)["cpus-per-task"], options(whole)["mem"], options(whole)["time"]) == (
        "64",
        "64000M",
        "01:00:00",
    )
    batch = BatchOptions(partition="amd,cpu", time_s=7200)
    assert options(request(small(cpus=60), batch))["partition"] == "amd,cpu"
    assert options(request(small(learners=40), facts=replace(FACTS, nodes=())))["nodes"] == "40"
