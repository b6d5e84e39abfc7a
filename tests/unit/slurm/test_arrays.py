"""Native arrays: their script and table, which record is about which task, and ids in few words."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.array import ArrayId, chunk_name, expand
from ffdl_batch.domain.job import JobId, attempt_token
from ffdl_batch.domain.jobdir import Root
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.domain.spec import BatchOptions, Checkpoint, Framework, JobSpec, NetworkLevel, Resources
from ffdl_batch.ports.scheduler import ArrayPlan, BackendFacts, Chunk, LaunchPlan, LaunchRequest
from ffdl_slurm.absence import dropped_tasks
from ffdl_slurm.arrays import fill_index, job_words, plan_array, read_table
from ffdl_slurm.parsers import Garbled, JobRecord, parse_config, parse_squeue
from ffdl_slurm.plan import make_plan
from ffdl_slurm.script import parse_options
from ffdl_slurm.settings import SlurmSettings
from ffdl_slurm.tasks import Listing, TaskTables, pick

ARRAY = ArrayId("array-0a1b2c3d4")
HEADER = "JOBID|STATE|EXIT_CODE|RESTARTCNT|SUBMIT_TIME|START_TIME|END_TIME|NODELIST|REASON|NAME\n"
SPEC = JobSpec("digits", Framework("custom", "img", "true"), resources=Resources(cpus=1, memory_bytes=10**9))


def plan_elements(root: Path, batch: BatchOptions) -> list[LaunchPlan]:
    """The plans of all elements."""
    tree, plans = Root(str(root)), []
    for number, spec in enumerate(expand(replace(SPEC, batch=batch), ARRAY)):
        job = JobId(f"training-{number:09}")
        attempt = tree.job(job).attempt(1)
        facts = BackendFacts((), (), frozenset({NetworkLevel.HOST}), "26.05.5", "echo", ("head",))
        request = LaunchRequest(
            job, 1, attempt_token(job, 1), spec, tree.job(job), attempt, tree.doorbell, facts, "/images/x.sif",
            array_dir=tree.array(ARRAY),
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


# ------------------------------------------------------------------------------------------------ planning


def test_array_elements_share_one_batch_script(tmp_path: Path) -> None:
    batch = BatchOptions(array="0-3", time_s=600, checkpoint=Checkpoint(lead_s=60), dependency="afterok:4711")
    scripts = {plan.array_script for plan in plan_elements(tmp_path, batch)}
    assert len(scripts) == 1 and "" not in scripts


def test_array_tasks_use_element_indexes_if_max_array_size_allows(tmp_path: Path) -> None:
    planned = plan_chunk(tmp_path, BatchOptions(array="7,998-1000"))
    assert planned is not None
    assert list(planned.tasks.values()) == ["7", "998", "999", "1000"]
    assert ("array", "7,998-1000") in [(option.name, option.value) for option in parse_options(planned.script)]


def test_array_tasks_use_table_positions_if_indexes_exceed_max_array_size(tmp_path: Path) -> None:
    planned = plan_chunk(tmp_path, BatchOptions(array="5,1001"))
    assert planned is not None and list(planned.tasks.values()) == ["0", "1"]


def test_array_plan_rejects_renumbering_if_output_name_contains_index(tmp_path: Path) -> None:
    """Tasks whose numbers are others than the elements' cannot write to files that are named by the index."""
    assert plan_chunk(tmp_path, BatchOptions(array="5,1001", output="out-%a.txt")) is None
    assert plan_chunk(tmp_path, BatchOptions(array="5,1000", output="out-%a.txt")) is not None


def test_array_plan_returns_none_for_more_elements_than_max_array_size(tmp_path: Path) -> None:
    assert plan_chunk(tmp_path, BatchOptions(array="0-3"), max_array_size=4) is not None
    assert plan_chunk(tmp_path, BatchOptions(array="0-4"), max_array_size=4) is None


@pytest.mark.parametrize("output", ["", "told.txt"])
def test_array_script_executes_attempt_of_each_task(tmp_path: Path, output: str) -> None:
    """By the script itself, as slurmd would start it: `echo` stands for the controller."""
    planned = plan_chunk(root := tmp_path / "it's a root", BatchOptions(array="1,11,111", output=output))
    assert planned is not None
    chunk = Path(planned.chunk.directory.path)
    chunk.mkdir(parents=True)
    for file in planned.files:
        (chunk / file.name).write_text(file.text)
    for number, task in enumerate(("1", "11", "111")):
        attempt = Path(Root(str(root)).job(JobId(f"training-{number:09}")).attempt(1).path)
        attempt.mkdir(parents=True)
        env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": "1234"}
        done = subprocess.run(["sh"], input=planned.script, env=env, capture_output=True, text=True, check=True)
        said = done.stdout if output else (attempt / "batch.log").read_text()
        assert said == f"head head --launch {attempt}/launch.json\n"
        assert done.stderr == ""


def test_array_script_exits_66_if_task_is_not_in_table(tmp_path: Path) -> None:
    planned = plan_chunk(tmp_path, BatchOptions(array="1,11"))
    assert planned is not None
    chunk = Path(planned.chunk.directory.path)
    chunk.mkdir(parents=True)
    Path(planned.chunk.directory.tasks).write_text("11 /elsewhere\n")
    env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "1234"}
    done = subprocess.run(["sh"], input=planned.script, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (66, "", "task 1 has no directory\n")


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
    text = (
        "0 /a b/jobs/training-0a1b2c3d4/attempt-1\n7 /a b/jobs/training-0a1b2c3d5/attempt-12\ngarbage\n8 /elsewhere\n"
    )
    assert read_table(text) == {"0": "training-0a1b2c3d4-1", "7": "training-0a1b2c3d5-12"}


# ------------------------------------------------------------------------------------------------ listings


def test_pick_matches_pending_range_and_running_task_to_their_ids() -> None:
    records = read_records(("20_[1-3,7-9:2%4]", "PENDING", "c"), ("20_5", "RUNNING", "c"), ("21", "RUNNING", "x"))
    ids = [NativeId("20", n) for n in ("1", "5", "8", "9")] + [NativeId("21"), NativeId("22")]
    found = pick(records, ids)
    assert {native: str(record.observation.phase) for native, record in found.items()} == {
        NativeId("20", "1"): "pending",
        NativeId("20", "5"): "running",
        NativeId("20", "9"): "pending",
        NativeId("21"): "running",
    }


@pytest.mark.parametrize("order", [1, -1])
def test_pick_prefers_record_of_task_over_record_of_range(order: int) -> None:
    records = read_records(("20_[1-3]", "PENDING", "c"), ("20_2", "RUNNING", "c"))[::order]
    found = pick(records, [NativeId("20", n) for n in ("1", "2", "4")])
    assert {str(native): str(record.observation.phase) for native, record in found.items()} == {
        "20_1": "pending",
        "20_2": "running",
    }


def test_pick_applies_array_record_to_unlisted_tasks_only_after_array_ended() -> None:
    ended, waiting = (read_records(("20", state, "c"), ("20_5", "RUNNING", "c")) for state in ("CANCELLED", "PENDING"))
    ids = [NativeId("20", "1"), NativeId("20", "5")]
    assert {str(native): record.observation.phase.value for native, record in pick(ended, ids).items()} == {
        "20_1": "ended",
        "20_5": "running",
    }
    assert list(pick(waiting, ids)) == [NativeId("20", "5")]


def test_pick_uses_readable_part_of_truncated_range() -> None:
    records = read_records(("20_[1-3,5,...]", "PENDING", "c"))
    assert set(pick(records, [NativeId("20", n) for n in ("1", "3", "5", "6")])) == {
        NativeId("20", n) for n in ("1", "3", "5")
    }


NAMES = {("c", "1"): "one", ("c", "2"): "two", ("d", "2"): "another's"}


def name_of(name: str, task: str | None) -> str:
    """The attempt that a task is, in tests of absence."""
    return NAMES.get((name, task or ""), name)


@pytest.mark.parametrize(
    "rows",
    [
        [("20_[1,3%1]", "PENDING", "c")],
        [("20_1", "PENDING", "c"), ("20_3", "PENDING", "c")],
        [("20_0", "RUNNING", "c")],
        [("20_0", "COMPLETED", "c"), ("21_2", "PENDING", "d")],
    ],
    ids=["the list", "each of the list", "one that started", "one that ended"],
)
def test_dropped_tasks_finds_task_missing_from_listing_of_its_array(rows: list[tuple[str, str, str]]) -> None:
    wanted = [NativeId("20", "2"), NativeId("20"), NativeId("22"), NativeId("22", "2")]
    assert dropped_tasks(read_records(*rows), wanted, name_of) == {NativeId("20", "2"): "two"}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [("21_1", "PENDING", "c")],
        [("20_2", "RUNNING", "c"), ("20_[3-4]", "PENDING", "c")],
        [("20_[1-4]", "PENDING", "c")],
        [("20_[1,3,...]", "PENDING", "c")],
        [("20_[1,3,...", "PENDING", "c"), ("20_0", "RUNNING", "c")],
        [("20_1", "RUNNING", "c"), ("20_3", "RUNNING", "called otherwise")],
        [("20", "CANCELLED", "c"), ("20_0", "RUNNING", "c")],
        [("20", "RUNNING", "c")],
        [("20", "RUNNING", "c"), ("20_[1,3]", "PENDING", "c")],
    ],
    ids=["nothing", "another array", "requeued or running", "it waits", "cut off", "cut off without an end",
         "two names", "the list was cancelled", "no array", "a task without a number"],
)  # fmt: skip
def test_dropped_tasks_finds_nothing_if_listing_does_not_prove_absence(rows: list[tuple[str, str, str]]) -> None:
    assert dropped_tasks(read_records(*rows), [NativeId("20", "2")], name_of) == {}


def test_dropped_tasks_names_tasks_by_array_that_now_has_the_id() -> None:
    wanted = [NativeId("20", "1"), NativeId("20", "2")]
    assert dropped_tasks(read_records(("20_3", "RUNNING", "d")), wanted, name_of) == {
        NativeId("20", "1"): "d",
        NativeId("20", "2"): "another's",
    }


def test_listing_finds_jobs_and_tasks_by_name() -> None:
    one, two, job = chunk_name(ARRAY, 1), chunk_name(ARRAY, 2), "training-0a1b2c3d4-1"
    listing = Listing(
        read_records(
            ("20_[1-3%1]", "PENDING", one), ("20_0", "RUNNING", one), ("21_1", "RUNNING", two), ("22", "RUNNING", job)
        )
    )
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
    ids = [NativeId("20", n) for n in ("3", "0", "1", "9")] + [NativeId("21"), NativeId("22", "5")]
    assert job_words(ids) == ["21", "20_[0-1,3,9]", "22_5"]


# ------------------------------------------------------------------------------------------------ the site


def test_config_parser_reads_max_array_size_or_raises() -> None:
    text = "Configuration data as of 2026-01-01T00:00:00\nMaxArraySize            = 1001\nMaxBatchRequeue = 5\n"
    assert parse_config(text).max_array_size == 1001
    with pytest.raises(Garbled, match="MaxArraySize"):
        parse_config("slurm_load_ctl_conf error: Zero Bytes were transmitted or received")
