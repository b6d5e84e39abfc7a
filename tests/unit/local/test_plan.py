"""What a request becomes on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape
from ffdl_batch.domain.job.array import ArrayId, element_environment, expand
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import (
    SITE_DEFAULT,
    BatchOptions,
    Framework,
    JobSpec,
    NetworkLevel,
    Notify,
    Placement,
    Resources,
    Role,
)
from ffdl_batch.domain.launch.launch_file import Seat, Succession
from ffdl_batch.domain.launch.limits import LeadFrom
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_local.adapter import count_gpus
from ffdl_local.launch_plan import make_plan
from ffdl_local.settings import LocalSettings, read_settings

JOB = JobId("training-0a1b2c3d4")


def plan(
    resources: Resources | None = None, batch: BatchOptions | None = None, command: str = "true", gpus: int = 2,
    settings: LocalSettings | None = None, levels: frozenset[NetworkLevel] = frozenset(NetworkLevel), image: str = "",
    **changes: object,
) -> LaunchPlan:  # fmt: skip
    job = Root("/tree").job(JOB)
    spec = JobSpec("x", Framework("custom", "i", command), resources=resources or Resources(), base_dir="/home/a")
    facts = BackendFacts((NodeShape("m", 8, 10**9, {"": gpus} if gpus else {}),), (), levels, "1", "/py", ("ctl",))
    request = LaunchRequest(
        JOB, 1, attempt_token(JOB, 1), replace(spec, batch=batch or BatchOptions()), job, job.attempt(1), "/bell",
        facts, image,
    )  # fmt: skip
    request = replace(request, **changes)  # type: ignore[arg-type]
    return make_plan(request, settings or LocalSettings(), "/tree/local/m", "/packages")


def job_file(made: LaunchPlan) -> dict[str, object]:
    body = json.loads(next(file.text for file in made.files if file.name == "local.json"))
    assert isinstance(body, dict)
    return body


def test_local_plan_places_all_learners_on_one_node_and_sums_gpus() -> None:
    made = plan(Resources(learners=2, gpus=1))
    assert (made.launch.nodes, made.launch.learners_per_node, made.launch.step) == (1, 2, ())
    assert job_file(made)["gpus"] == 2
    assert made.launch.seats == (Seat(0, index=0, gpus=1), Seat(0, index=1, gpus=1))
    assert made.launch.names == f"learner-{JOB}"


def test_local_plan_gives_each_role_its_own_gpus() -> None:
    roles = {"ps": Role(1, gpus=0, service=True), "worker": Role(2)}
    made = plan(Resources(learners=3, gpus=1), BatchOptions(roles=roles, placement=Placement.SPREAD))
    assert [(seat.node, seat.role, seat.index, seat.service, seat.gpus) for seat in made.launch.seats] == [
        (0, "ps", 0, True, 0), (0, "worker", 0, False, 1), (0, "worker", 1, False, 1),
    ]  # fmt: skip
    assert (job_file(made)["gpus"], made.launch.nodes) == (2, 1)
    assert made.launch.succession is not None and made.launch.succession.gpus == 2.0
    with pytest.raises(InvalidRequest, match=r"batch\.roles\.worker\.gpus: 4 GPUs in all, but this machine has 2"):
        plan(Resources(learners=2), BatchOptions(roles={"worker": Role(2, gpus=2)}))


@pytest.mark.parametrize(("learners", "most"), [(4096, 128), (129, 128)])
def test_local_plan_refuses_more_learners_than_machine_can_run(learners: int, most: int) -> None:
    with pytest.raises(InvalidRequest, match=f"learners: .* has 8 CPUs, has at most {most} learners, not {learners}"):
        plan(Resources(learners=learners, cpus=0.1))
    assert len(plan(Resources(learners=most, cpus=0.1)).launch.seats) == most


def test_local_plan_runs_gpu_roles_on_cpu_with_warning_without_gpus() -> None:
    roles = {"ps": Role(1, gpus=0, service=True), "worker": Role(1, gpus=2)}
    made = plan(Resources(learners=2), BatchOptions(roles=roles), gpus=0)
    assert [seat.gpus for seat in made.launch.seats] == [0, 0]
    assert made.warnings[0].startswith("batch.roles.worker.gpus: 2 asked for")


def test_local_plan_runs_mpi_unless_learners_need_separate_gpus() -> None:
    spec = JobSpec("x", Framework("horovod", "i", "python x.py"), resources=Resources(learners=2, cpus=1))
    made = plan(spec=spec)
    assert made.launch.commands["launcher"] == "mpirun -np 2 python x.py"
    assert [(seat.role, seat.service) for seat in made.launch.seats] == [("launcher", False), ("worker", True)]
    with pytest.raises(InvalidRequest, match="one machine"):
        plan(spec=replace(spec, resources=Resources(learners=2, cpus=1, gpus=1)))
    without = plan(spec=replace(spec, resources=Resources(learners=2, cpus=1, gpus=2)), gpus=0)
    assert without.launch.commands["launcher"] == "mpirun -np 2 python x.py"


def test_local_plan_sets_array_variables_and_own_log_for_element() -> None:
    whole = JobSpec("x", Framework("custom", "i", "true"), base_dir="/home/a")
    whole = replace(whole, batch=BatchOptions(array="3-5:2", output="out-%a-%%a.txt"))
    element = expand(whole, ArrayId("array-0a1b2c3d4"))[1]
    assert element.element is not None
    made = plan(spec=element)
    assert job_file(made)["log"] == "/home/a/out-5-%a.txt"
    assert made.launch.learner.env.items() >= element_environment(element.element).items()


def test_local_plan_rejects_missing_gpus_or_falls_back_to_cpu() -> None:
    with pytest.raises(InvalidRequest, match="this machine has 2"):
        plan(Resources(gpus=3))
    made = plan(Resources(gpus=1), gpus=0)
    assert job_file(made)["gpus"] == 0 and "runs on the CPU" in made.warnings[0]
    with pytest.raises(InvalidRequest, match="this machine has 0"):
        plan(Resources(gpus=1), gpus=0, settings=read_settings({"require_gpus": True}))


def test_local_plan_warns_about_missing_cpus_and_memory() -> None:
    made = plan(Resources(learners=2, cpus=2000, memory_bytes=450 * 10**12))
    assert made.warnings[:2] == (
        "cpus: 4000 asked for, but this machine has 8; the job runs on those",
        "memory: 900TB asked for, but this machine has 1GB; the job runs with that",
    )


def test_local_plan_does_not_warn_about_site_default_resources() -> None:
    spec = JobSpec("x", Framework("custom", "i", "true"), resources=Resources(cpus=99, memory_bytes=8 * 10**9))
    quiet = replace(spec, sources={"cpus": SITE_DEFAULT, "memory": SITE_DEFAULT})
    assert len(plan(spec=spec).warnings) == len(plan(spec=quiet).warnings) + 2
    asked = replace(quiet, batch=BatchOptions(roles={"worker": Role(cpus=99)}))
    assert any(warning.startswith("cpus: 99 asked for") for warning in plan(spec=asked).warnings)


def test_local_plan_isolates_learner_if_network_level_is_available() -> None:
    made = plan()
    assert made.launch.learner.argv[:4] == ("/py", "ctl", "isolate", "--")
    assert (made.network.level, "namespace" in made.network.mechanism) == ("none", True)
    made = plan(levels=frozenset({NetworkLevel.HOST}))
    assert made.launch.learner.argv[0] == "bash" and made.network.level == "host"


def test_local_plan_requires_image_with_apptainer_runtime() -> None:
    settings = read_settings({"runtime": "apptainer"})
    assert plan(settings=settings, image="/i.sif").launch.learner.argv[0] == "apptainer"
    with pytest.raises(InvalidRequest, match="no image"):
        plan(settings=settings)


@pytest.mark.parametrize("batch", [BatchOptions(hold=True), BatchOptions(begin="now"), BatchOptions(dependency="1")])
def test_local_plan_rejects_hold_begin_and_dependency(batch: BatchOptions) -> None:
    with pytest.raises(InvalidRequest, match=r"batch\."):
        plan(batch=batch)


def test_local_plan_warns_about_partition_and_container_path() -> None:
    made = plan(batch=BatchOptions(partition="gpu", output="out-%j-%%.txt"), command="ls /mnt/data/x")
    assert any("batch.partition" in warning for warning in made.warnings)
    assert any("/mnt/data" in warning for warning in made.warnings)
    assert job_file(made)["log"] == f"/home/a/out-{JOB}-1-%.txt"


def test_local_plan_passes_time_limit_to_head_controller() -> None:
    assert plan(batch=BatchOptions(time_s=90)).launch.limits.time_s == 90


def test_local_plan_passes_continuation_settings_to_head_controller() -> None:
    budget, spent = Budget(timeouts=7), Spent(timeouts=2)
    made = plan(
        Resources(learners=2, gpus=1), lead_s=45, lead_from=LeadFrom.MANIFEST, budget=budget, spent=spent,
        carry="/tree/a/results",
    )  # fmt: skip
    launch = made.launch
    assert (launch.limits.lead_s, launch.limits.lead_from) == (45, LeadFrom.MANIFEST)
    assert launch.carry == "/tree/a/results"
    assert launch.checkpoints == Root("/tree").job(JOB).checkpoints
    template = Root("/tree").job(JOB).template.path
    assert launch.succession == Succession(template, budget=budget, spent=spent, gpus=2.0, lead_s=45)
    assert plan(Resources(gpus=1), gpus=0).launch.succession == Succession(template)


def test_count_gpus_counts_numbered_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 2
    assert count_gpus(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"slots": 1}, "unknown key"),
        ({"max_jobs": "2"}, "max_jobs is '2'; a whole number is needed"),
        ({"gpus": True}, "gpus is true; a whole number is needed"),
        ({"require_gpus": 1}, "is 1; true or false is needed"),
        ({"runtime": "docker"}, "bare or apptainer"),
    ],
)
def test_local_settings_reject_unknown_key_or_bad_value(raw: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_settings(raw)


def test_local_plan_warns_about_options_without_effect_on_one_machine() -> None:
    arguments = ("--exclusive", "--nice=10")
    batch = BatchOptions(
        comment="c", preemptible=True, requeue=True, signal="USR1@60", notify=Notify("me"), slurm_args=arguments
    )
    made = plan(Resources(gres={"npu": 1}, memory_bytes=10**6, storage_bytes=10**9), batch)
    mail = "batch.notify: no scheduler sends mail here; the daemon mails incidents if the configuration names a relay"
    nothing = (
        "batch.slurm: --exclusive, --nice=10",
        "batch.comment",
        "batch.gres",
        "batch.preemptible",
        "batch.requeue",
        "batch.signal",
        "storage",
    )
    assert sorted(made.warnings) == sorted([mail, *(f"{path}: has no effect on this machine" for path in nothing)])


@pytest.mark.parametrize(
    ("command", "learners", "env", "named"),
    [
        ("PS_HOSTS_COUNT=1 python3 launcher.py", 3, {}, "PS_HOSTS_COUNT"),
        ("run $LEARNER_NAME_PREFIX-0", 2, {}, "LEARNER_NAME_PREFIX"),
        ("run", 2, {"PS_HOSTS_COUNT": "1"}, "PS_HOSTS_COUNT"),
        ("run $LEARNER_NAME_PREFIX-0", 1, {}, ""),
        ("torchrun train.py", 2, {}, ""),
    ],
)
def test_local_plan_warns_about_learner_names_only_if_used_without_container(
    command: str, learners: int, env: dict[str, str], named: str
) -> None:
    wanted, batch = Resources(learners=learners, memory_bytes=10**6, cpus=1), BatchOptions(env=env)
    said = [one for one in plan(wanted, batch, command).warnings if "names of learners" in one]
    assert [one.split()[1] for one in said] == ([named] if named else [])
    contained = LocalSettings(runtime="apptainer")
    assert not [
        one
        for one in plan(wanted, batch, command, settings=contained, image="/i.sif").warnings
        if "names of learners" in one
    ]
