"""Native arrays: their script and table, which record is about which task, and ids in few words."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.array import ArrayId, chunk_name, expand
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import BatchOptions, Checkpoint, Framework, JobSpec, NetworkLevel, Resources
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan, LaunchRequest
from ffdl_slurm.native_array import fill_index, job_arguments, plan_array, read_table
from ffdl_slurm.observing.parsers import JobRecord, parse_squeue
from ffdl_slurm.observing.record_lookup import Listing, TaskTables, dropped_tasks, pick
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.sbatch_script import parse_options
from ffdl_slurm.settings import SlurmSettings

ARRAY = ArrayId("array-0a1b2c3d4")
HEADER = "JOBID|STATE|EXIT_CODE|RESTARTCNT|SUBMIT_TIME|START_TIME|END_TIME|NODELIST|REASON|NAME\n"
SPEC = JobSpec("digits", Framework("custom", "img", "true"), resources=Resources(cpus=1, memory_bytes=10**9))


def plan_elements(root: Path, batch: BatchOptions) -> list[LaunchPlan]:
    tree, plans = Root(str(root)), []
    facts = BackendFacts((), (), frozenset({NetworkLevel.HOST}), "26.05.5", "echo", ("head",))
    for number, spec in enumerate(expand(replace(SPEC, batch=batch), ARRAY)):
        job = JobId(f"training-{number:09}")
        request = LaunchRequest(
            job, 1, attempt_token(job, 1), spec, tree.job(job), tree.job(job).attempt(1), tree.doorbell, facts,
            "/images/x.sif", array_dir=tree.array(ARRAY),
        )  # fmt: skip
        plans.append(make_plan(request, SlurmSettings()))
    return plans


def plan_chunk(root: Path, batch: BatchOptions, max_array_size: int = 1001) -> ArrayPlan | None:
    """All elements as one native array."""
    chunk = Chunk(chunk_name(ARRAY, 3), Root(str(root)).array(ARRAY).chunk(3), max_array_size)
    return plan_array(chunk, plan_elements(root, batch))


def read_records(*rows: tuple[str, str, str]) -> list[JobRecord]:
    """Of (id, state, name) as squeue prints them."""
    return parse_squeue(HEADER + "".join(f"{n}|{state}|0:0|0|1|1|1|n1|None|{name}\n" for n, state, name in rows))


def tasks(*numbers: str) -> list[NativeId]:
    return [NativeId("20", number) for number in numbers]


def picked(records: list[JobRecord], ids: list[NativeId]) -> dict[str, str]:
    return {str(native): str(record.observation.phase) for native, record in pick(records, ids).items()}


def run_task(planned: ArrayPlan, task: str) -> subprocess.CompletedProcess[str]:
    """The script itself, as slurmd would start it: `echo` stands for the controller."""
    env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": "1234"}
    return subprocess.run(["sh"], input=planned.script, env=env, capture_output=True, text=True, check=False)


# ------------------------------------------------------------------------------------------------ planning


def test_array_elements_share_one_batch_script(tmp_path: Path) -> None:
    batch = BatchOptions(array="0-3", time_s=600, checkpoint=Checkpoint(lead_s=60), dependency="afterok:4711")
    scripts = {plan.array_script for plan in plan_elements(tmp_path, batch)}
    assert len(scripts) == 1 and "" not in scripts


def test_array_tasks_use_element_indexes_if_max_array_size_allows_and_table_positions_otherwise(tmp_path: Path) -> None:
    planned = plan_chunk(tmp_path, BatchOptions(array="7,998-1000"))
    assert planned is not None
    assert list(planned.tasks.values()) == ["7", "998", "999", "1000"]
    assert ("array", "7,998-1000") in [(option.name, option.value) for option in parse_options(planned.script)]
    renumbered = plan_chunk(tmp_path, BatchOptions(array="5,1001"))
    assert renumbered is not None and list(renumbered.tasks.values()) == ["0", "1"]


@pytest.mark.parametrize(
    ("array", "output", "max_array_size", "is_planned"),
    [
        # Tasks whose numbers are others than the elements' cannot write to files that are named by the index.
        ("5,1001", "out-%a.txt", 1001, False),
        ("5,1000", "out-%a.txt", 1001, True),
        ("0-3", "", 4, True),
        ("0-4", "", 4, False),
    ],
)
def test_array_plan_is_none_if_renumbering_conflicts_with_output_name_or_elements_exceed_max_array_size(
    tmp_path: Path, array: str, output: str, max_array_size: int, is_planned: bool
) -> None:
    planned = plan_chunk(tmp_path, BatchOptions(array=array, output=output), max_array_size)
    assert (planned is not None) is is_planned


@pytest.mark.parametrize(("output", "log"), [("", " --log batch.log"), ("told.txt", "")])
def test_array_script_starts_head_with_table_and_number_of_task(tmp_path: Path, output: str, log: str) -> None:
    planned = plan_chunk(tmp_path / "it's a root", BatchOptions(array="1,11,111", output=output))
    assert planned is not None
    done = run_task(planned, "11")
    assert done.stdout == f"head head --tasks {planned.chunk.directory.tasks}{log} --task 11\n"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("pattern", "filled"),
    [
        ("out-%a.txt", "out-12.txt"),
        ("%4a/%x", "0012/%x"),
        ("%%a", "%%a"),
        ("%99a", "0000000012"),
        ("%j-%A", "%j-%A"),
        ("back\\slash-%a", "back\\slash-%a"),
    ],
)
def test_fill_index_replaces_only_index_pattern_in_file_name(pattern: str, filled: str) -> None:
    assert fill_index(pattern, 12) == filled


def test_read_table_maps_tasks_to_attempts_and_ignores_other_lines() -> None:
    first, second = "/a b/jobs/training-0a1b2c3d4/attempt-1", "/a b/jobs/training-0a1b2c3d5/attempt-12"
    table = read_table(f"0 {first}\n7 {second}\ngarbage\n8 /elsewhere\n")
    assert table == {"0": "training-0a1b2c3d4-1", "7": "training-0a1b2c3d5-12"}


# ------------------------------------------------------------------------------------------------ listings


def test_pick_matches_pending_range_and_running_task_to_their_ids() -> None:
    records = read_records(("20_[1-3,7-9:2%4]", "PENDING", "c"), ("20_5", "RUNNING", "c"), ("21", "RUNNING", "x"))
    found = picked(records, [*tasks("1", "5", "8", "9"), NativeId("21"), NativeId("22")])
    assert found == {"20_1": "pending", "20_5": "running", "20_9": "pending", "21": "running"}
    truncated = read_records(("20_[1-3,5,...]", "PENDING", "c"))
    assert list(pick(truncated, tasks("1", "3", "5", "6"))) == tasks("1", "3", "5")


@pytest.mark.parametrize("order", [1, -1])
def test_pick_prefers_record_of_task_over_record_of_range(order: int) -> None:
    records = read_records(("20_[1-3]", "PENDING", "c"), ("20_2", "RUNNING", "c"))[::order]
    assert picked(records, tasks("1", "2", "4")) == {"20_1": "pending", "20_2": "running"}


def test_pick_applies_array_record_to_unlisted_tasks_only_after_array_ended() -> None:
    ended, waiting = (read_records(("20", state, "c"), ("20_5", "RUNNING", "c")) for state in ("CANCELLED", "PENDING"))
    assert picked(ended, tasks("1", "5")) == {"20_1": "ended", "20_5": "running"}
    assert picked(waiting, tasks("1", "5")) == {"20_5": "running"}


NAMES = {("c", "1"): "one", ("c", "2"): "two", ("d", "2"): "another's"}


def name_of(name: str, task: str | None) -> str:
    """The attempt that a task is, in tests of absence."""
    return NAMES.get((name, task or ""), name)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([("20_[1,3%1]", "PENDING", "c")], id="the list"),
        pytest.param([("20_1", "PENDING", "c"), ("20_3", "PENDING", "c")], id="each of the list"),
        pytest.param([("20_0", "RUNNING", "c")], id="one that started"),
        pytest.param([("20_0", "COMPLETED", "c"), ("21_2", "PENDING", "d")], id="one that ended"),
    ],
)
def test_dropped_tasks_finds_task_missing_from_listing_of_its_array(rows: list[tuple[str, str, str]]) -> None:
    wanted = [*tasks("2"), NativeId("20"), NativeId("22"), NativeId("22", "2")]
    assert dropped_tasks(read_records(*rows), wanted, name_of) == {NativeId("20", "2"): "two"}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([], id="nothing"),
        pytest.param([("21_1", "PENDING", "c")], id="another array"),
        pytest.param([("20_2", "RUNNING", "c"), ("20_[3-4]", "PENDING", "c")], id="requeued or running"),
        pytest.param([("20_[1-4]", "PENDING", "c")], id="it waits"),
        pytest.param([("20_[1,3,...]", "PENDING", "c")], id="cut off"),
        pytest.param([("20_[1,3,...", "PENDING", "c"), ("20_0", "RUNNING", "c")], id="cut off without an end"),
        pytest.param([("20_1", "RUNNING", "c"), ("20_3", "RUNNING", "called otherwise")], id="two names"),
        pytest.param([("20", "CANCELLED", "c"), ("20_0", "RUNNING", "c")], id="the list was cancelled"),
        pytest.param([("20", "RUNNING", "c")], id="no array"),
        pytest.param([("20", "RUNNING", "c"), ("20_[1,3]", "PENDING", "c")], id="a task without a number"),
    ],
)
def test_dropped_tasks_finds_nothing_if_listing_does_not_prove_absence(rows: list[tuple[str, str, str]]) -> None:
    assert dropped_tasks(read_records(*rows), tasks("2"), name_of) == {}


def test_dropped_tasks_names_tasks_by_array_that_now_has_the_id() -> None:
    found = dropped_tasks(read_records(("20_3", "RUNNING", "d")), tasks("1", "2"), name_of)
    assert found == {NativeId("20", "1"): "d", NativeId("20", "2"): "another's"}


def test_listing_finds_jobs_and_tasks_by_name() -> None:
    one, two, job = chunk_name(ARRAY, 1), chunk_name(ARRAY, 2), "training-0a1b2c3d4-1"
    waiting, running = ("20_[1-3%1]", "PENDING", one), ("20_0", "RUNNING", one)
    listing = Listing(read_records(waiting, running, ("21_1", "RUNNING", two), ("22", "RUNNING", job)))
    assert listing.tasks_named(one, "0") == {NativeId("20", "0")}
    assert listing.tasks_named(one, "2") == {NativeId("20", "2")}
    assert listing.tasks_named(two, "1") == {NativeId("21", "1")}
    assert listing.tasks_named(one, "4") == set()
    assert listing.jobs_named(job) == {NativeId("22")} and listing.jobs_named(one) == set()


def test_task_tables_map_task_to_attempt_token_or_keep_job_name(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    chunk = root.array(ARRAY).chunk(1)
    Path(chunk.path).mkdir(parents=True)
    Path(chunk.tasks).write_text(f"4 {root.job(JobId('training-0a1b2c3d4')).attempt(1).path}\n")
    tables, name = TaskTables(root), chunk_name(ARRAY, 1)
    assert tables.token_of(name, "4") == "training-0a1b2c3d4-1"
    assert tables.token_of(name, "5") == name
    assert tables.token_of(name, None) == name
    assert tables.token_of("renamed by its owner", "4") == "renamed by its owner"
    assert tables.token_of(chunk_name(ARRAY, 2), "4") == chunk_name(ARRAY, 2)  # no table


def test_scancel_arguments_group_tasks_of_one_array_into_ranges() -> None:
    ids = [*tasks("3", "0", "1", "9"), NativeId("21"), NativeId("22", "5")]
    assert job_arguments(ids) == ["21", "20_[0-1,3,9]", "22_5"]
