"""Whole batch scripts and launch files, byte for byte. ``--update-golden`` rewrites them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.domain.job.array import ArrayId, chunk_name, expand
from ffdl_batch.domain.job.job import JobId, Token, attempt_token
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    DataStore,
    Egress,
    Framework,
    JobSpec,
    NetworkLevel,
    Notify,
    Placement,
    Resources,
    Restart,
    Role,
    StoreType,
)
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.manifest.command import read_command
from ffdl_batch.runtimes.launch_request import Chunk, LaunchPlan, LaunchRequest
from ffdl_slurm.native_array import plan_array
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.settings import read_settings

HERE = Path(__file__).parent / "slurm"
JOB = JobId("training-0a1b2c3d4")
FACTS = BackendFacts(
    nodes=(
        NodeShape("gpu[01-16]", 64, 512 * 1024**3, {"a100": 4}, ("gpu",), gres={"nvme": 1, "npu:310": 8, "shard": 16}),
    ),
    partitions=(PartitionShape("gpu", True, 172800),),
    network_levels=frozenset({NetworkLevel.HOST, NetworkLevel.NONE}),
    version="26.05.5",
    python="/usr/bin/python3",
    controller=("-I", "-S", "/shared/alice/ffdl/controller/controller-0123456789abcdef.pyz"),
    staging=("/shared/ffdl/bin/python3", "-I", "-m", "ffdl_batch.staging"),
)
ABLE = replace(FACTS, nodes=(replace(FACTS.nodes[0], features=("ffdl-network", "ffdl-egress")),))
STORE = DataStore(
    "store", StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, "digits", "trained", {"path": "/shared/datasets"}
)
BUCKETS = DataStore(
    "s3", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "digits/train", "trained",
    {"auth_url": "https://s3.example.org", "region": "eu-de", "user_name": "${secret:s3-user_name}",
     "password": "${secret:s3-password}"},
)  # fmt: skip
PLAIN = JobSpec("digits", Framework("custom", "custom.sif", "python3 train.py --epochs 3"), base_dir="/home/alice")
NASTY = 'it\'s "quoted" $(touch x) `y` %j #z \\ hetjob'
CASES = {
    "plain": PLAIN,
    "buckets": replace(PLAIN, data_stores=(BUCKETS,)),
    "two-nodes-with-gpus": replace(
        PLAIN, resources=Resources(learners=2, cpus=8, gpus=4, gpu_type="a100", memory_bytes=64 * 1024**3),
        data_stores=(STORE,), batch=BatchOptions(
            time_s=86400, partition="gpu", account="physics", qos="normal",
            checkpoint=Checkpoint(lead_s=600, grace_s=120),
        ),
    ),
    "every-option": replace(
        PLAIN, resources=Resources(cpus=1.5, gpus=1, memory_bytes=10**9, gres={"nvme": 1}), batch=BatchOptions(
            time_s=90, partition="gpu", account="a", qos="q", constraint="a100&ib", reservation="r", priority="TOP",
            nodelist="gpu[01-02]", exclude="gpu03", dependency="afterok:4711", begin="2027-01-20T12:34:00+01:00",
            hold=True, requeue=True, signal="USR1@120", comment=NASTY, output="out dir/%x-%j.txt",
            notify=Notify("alice@example.org", ("END", "FAIL")), network=NetworkLevel.NONE,
            slurm_args=("--exclusive", "--switches=1@10:00"),
        ),
    ),
}  # fmt: skip
FOUR = replace(PLAIN, resources=Resources(learners=4, cpus=8, gpus=1, memory_bytes=16 * 1024**3))
CASES |= {
    "shares": replace(
        FOUR, resources=replace(FOUR.resources, learners=3, gpus=0.25), batch=BatchOptions(placement=Placement.PACK)
    ),
    "other-accelerators": replace(
        FOUR, resources=replace(FOUR.resources, gpus=0, gres={"npu": 2, "nvme": 1}),
        batch=BatchOptions(placement=Placement.PACK),
    ),
    "spread": replace(
        FOUR, resources=replace(FOUR.resources, learners=20), batch=BatchOptions(placement=Placement.SPREAD)
    ),
    "roles": replace(
        FOUR, batch=BatchOptions(
            placement=Placement.PACK, restart=Restart.LEARNER, roles={
                "chief": Role(), "worker": Role(2, command="python3 worker.py --braces {}"),
                "ps": Role(1, cpus=2, gpus=0, memory_bytes=4 * 1024**3, service=True),
            },
        ),
    ),
    "parameter-servers": replace(
        FOUR, framework=Framework("tensorflow", "1.5.0", "PS_HOSTS_COUNT=1 ./launcher.py python3 mnist.py")
    ),
    "own-network": replace(FOUR, batch=BatchOptions(placement=Placement.PACK, comment="my run")),
    "egress": replace(
        FOUR, resources=replace(FOUR.resources, learners=1), batch=BatchOptions(
            network=NetworkLevel.EGRESS, egress=(Egress("data.example.org", 443), Egress("192.0.2.7", 8080))
        ),
    ),
    "mpi": replace(FOUR, framework=Framework("horovod", "0.13.10", "python3 mnist.py")),
    "command-continued": replace(PLAIN, framework=Framework("custom", "custom.sif", read_command(
        "python3 train.py\n  --epochs 3\n\n  --lr 0.1\n"
    ).text)),
    "command-script": replace(PLAIN, framework=Framework("custom", "custom.sif", read_command(
        "# prepare\r\ncat >config <<'EOF'\r\n  - {lr}\r\nEOF\r\npython3 train.py \\\r\n  --epochs 3\r\n"
    ).text)),
}  # fmt: skip


JOB_DIR = Root("/shared/alice/ffdl").job(JOB)
REQUEST = LaunchRequest(
    JOB, 1, attempt_token(JOB, 1), PLAIN, JOB_DIR, JOB_DIR.attempt(1), Root("/shared/alice/ffdl").doorbell, FACTS,
    "/shared/images/custom.sif", user_env={"EPOCHS": "3", "NASTY": NASTY},
)  # fmt: skip
TEMPLATE: Mapping[str, Any] = {"attempt": 2, "token": Token(f"{JOB}-next"), "attempt_dir": JOB_DIR.template}
CHAINED: Mapping[str, Any] = {
    "attempt": 3,
    "token": attempt_token(JOB, 3),
    "attempt_dir": JOB_DIR.attempt(3),
    "lead_s": 600,
    "budget": Budget(timeouts=10, gpu_seconds=720000.0, saved_is_enough=True),
    "spent": Spent(timeouts=2, gpu_seconds=3600.5),
    "carry": JOB_DIR.attempt(2).results,
}
CACHED: Mapping[str, Any] = {
    "cache_dir": "/var/cache/ffdl", "cache_bytes": 10**12, "image": "docker://registry.example.org/a/b:c",
}  # fmt: skip
PLANS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, object]]] = {
    "plain": ("plain", {}, {}),
    "buckets": ("buckets", {}, {}),
    "cached": ("buckets", CACHED, {}),
    "two-nodes-with-gpus": ("two-nodes-with-gpus", CHAINED, {}),
    "every-option": ("every-option", {}, {}),
    "every-option-next": ("every-option", TEMPLATE, {}),
    **{name: (name, {}, {}) for name in ("spread", "roles", "parameter-servers", "mpi", "shares")},
    **{name: (name, {}, {}) for name in ("command-continued", "command-script")},
    "other-accelerators": ("other-accelerators", {}, {"gres_devices": {"npu": ["/dev/npu[0-9]*"]}}),
    "own-network": ("own-network", {"facts": ABLE}, {}),
    "egress": ("egress", {"facts": ABLE}, {"network_dir": "/var/run/ffdl", "job_mark": "site:"}),
    "in-place": ("plain", {"lead_s": 70}, {"continue_in_place": True, "fence_s": 20, "kill_wait_s": 120}),
}
"""Name of the golden directory: the case, fields of the request, settings of the site."""


@pytest.mark.parametrize("name", sorted(PLANS))
def test_slurm_plan_files_match_golden_files(name: str, update_golden: bool) -> None:
    case, changes, settings = PLANS[name]
    plan = make_plan(replace(REQUEST, spec=CASES[case], **changes), read_settings(settings))
    _compare(name, _made_files(plan), update_golden)


def test_slurm_array_plan_files_match_golden_files(update_golden: bool) -> None:
    """One script and one table for all elements; each has its own launch file, and a script for itself alone."""
    root, array = Root("/shared/alice/ffdl"), ArrayId("array-0a1b2c3d4")
    sweep = ({"LR": "0.1"}, {"LR": "0.01"}, {"LR": NASTY})
    elements = expand(replace(PLAIN, batch=BatchOptions(array="0,2%1", sweep=sweep, output="out/%x-%A_%3a.txt")), array)
    plans = []
    for number, spec in enumerate(elements):
        job = JobId(f"training-00000000{number}")
        request = replace(
            REQUEST, job_id=job, token=attempt_token(job, 1), spec=spec, job_dir=root.job(job),
            attempt_dir=root.job(job).attempt(1), user_env=spec.batch.env, array_dir=root.array(array),
        )  # fmt: skip
        plans.append(make_plan(request, read_settings({})))
    chunk = Chunk(chunk_name(array, 7), root.array(array).chunk(7), max_array_size=1001, limit=1)
    planned = plan_array(chunk, plans)
    assert planned is not None
    assert planned.tasks == {"training-000000000-1": "0", "training-000000001-1": "2"}
    assert planned.submit_argv[-1] == chunk.directory.script
    _compare("array", {file.name: file.text for file in planned.files}, update_golden)
    _compare("array-element", _made_files(plans[1]), update_golden)


def _made_files(plan: LaunchPlan) -> dict[str, str]:
    made = {file.name: file.text for file in plan.files}
    return made | {"launch.json": made["launch.json"].replace(plan.launch.written_by, "slurm RELEASE")}


def _compare(name: str, made: Mapping[str, str], update_golden: bool) -> None:
    for file, text in made.items():
        path = HERE / name / file
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(HERE.parent)} differs; see --update-golden"
