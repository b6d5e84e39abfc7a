"""The table of a native array: the files that it gives are those that the planner makes, and it is read with bounds."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt import element_files
from ffdl_batch.attempt.element_files import (
    ElementTable,
    NoElement,
    derive_files,
    encode_table,
    find_task,
    make_elements,
    read_table,
)
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import DamagedFile
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.array import ArrayId, expand
from ffdl_batch.domain.job.job import Job, JobId, attempt_token
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, NetworkLevel, Resources
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_batch.services.deployment.element_plans import PlannedElement, tabulate
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.settings import SlurmSettings

ARRAY = ArrayId("array-0a1b2c3d4")
NASTY = 'it\'s $(id) \\ "{rank}" training-0 \u00e4'
ONE = Resources(cpus=1, memory_bytes=10**9)
EXPORTED = {"TOKEN": "s3cr3t", "LR": "from the shell"}
SPECS = {
    "plain": JobSpec("digits", Framework("custom", "img", "true"), resources=ONE, batch=BatchOptions(array="3,7-9")),
    "several learners": JobSpec(
        "digits",
        Framework("custom", "img", "true"),
        resources=replace(ONE, learners=2),
        batch=BatchOptions(array="0-3"),
    ),
    "sweep": JobSpec(
        "digits",
        Framework("custom", "img", "echo $LR"),
        resources=ONE,
        batch=BatchOptions(sweep=({"LR": "0.1"}, {"LR": NASTY}, {"LR": ""}, {"LR": "0.1"})),
    ),
}


def plan(root: Root, spec: JobSpec, number: int, exported: Mapping[str, str]) -> PlannedElement:
    """One element as the planner plans it, with the template of its next attempt."""
    facts = BackendFacts((), (), frozenset({NetworkLevel.HOST}), "26.05.5", "echo", ("head",))
    job, user = JobId(f"training-{number * 31:09}"), {**exported, **spec.batch.env}
    request = LaunchRequest(
        job, 1, attempt_token(job, 1), spec, root.job(job), root.job(job).attempt(1), root.doorbell, facts,
        "/images/x.sif", user_env=user, array_dir=root.array(ARRAY),
    )  # fmt: skip
    planned = make_plan(request, SlurmSettings())
    row = Job(job, 0, "a", spec, JobState.DEPLOYING, RequestedAction.NONE, "slurm", 1, "", 1, 0.0, 0.0)
    return PlannedElement(row, planned, {f"attempt-1/{file.name}": file.text for file in planned.files})


def planned_array(root: Root, name: str = "plain") -> list[PlannedElement]:
    return [plan(root, spec, number, EXPORTED) for number, spec in enumerate(expand(SPECS[name], ARRAY), 1)]


def write_chunk(root: Root, name: str = "plain") -> tuple[AttemptDir, list[PlannedElement]]:
    """A chunk as the deployer leaves it when the scheduler has it."""
    elements = planned_array(root, name)
    chunk = root.array(ARRAY).chunk(2)
    for directory in (chunk.submit, f"{root.path}/jobs"):
        Path(directory).mkdir(parents=True)
    Path(root.array(ARRAY).manifest).write_text("manifest")
    table = tabulate(elements[0], EXPORTED, [one.job for one in elements])
    Path(chunk.elements).write_text(encode_table(table))
    rows = (f"{number} {one.plan.attempt_dir.path}\n" for number, one in enumerate(elements))
    Path(chunk.tasks).write_text("".join(rows))
    Path(chunk.submit_begun).write_text("begun by the deployer\n")
    os.utime(chunk.submit_begun, (1e9, 1e9))
    return chunk, elements


@pytest.mark.parametrize("name", sorted(SPECS))
def test_table_gives_each_element_exactly_the_files_that_the_planner_makes(tmp_path: Path, name: str) -> None:
    elements = planned_array(Root(str(tmp_path)), name)
    for first in (elements[0], elements[2]):
        table = tabulate(first, EXPORTED, [one.job for one in elements])
        for element in elements:
            assert derive_files(table, element.job.id) == element.files


def test_read_table_returns_the_encoded_table(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    chunk, elements = write_chunk(root, "sweep")
    assert read_table(root, chunk) == tabulate(elements[0], EXPORTED, [one.job for one in elements])


def test_find_task_makes_directory_mark_and_launch_file_once(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    chunk, elements = write_chunk(root)
    attempt = find_task(chunk.tasks, "1")
    assert attempt == elements[1].plan.attempt_dir
    assert decode(Path(attempt.launch).read_text()) == elements[1].plan.launch
    assert Path(attempt.submit_begun).read_text() == f"begun by the deployer\narray {ARRAY}-2 1\n"
    assert Path(attempt.submit_begun).stat().st_mtime == 1e9
    private = [path for path in Path(attempt.path).iterdir() if path.is_dir() or path.suffix == ".json"]
    assert {path.stat().st_mode & 0o077 for path in private} == {0}
    Path(chunk.elements).unlink()
    assert find_task(chunk.tasks, "1") == attempt  # it is complete
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [elements[1].job.id]


def test_make_elements_makes_named_elements_with_request_that_came_before(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    chunk, elements = write_chunk(root)
    attempt = elements[2].plan.attempt_dir
    Path(attempt.path).mkdir(parents=True)
    Path(attempt.control).write_text("a request")
    assert make_elements(root, ARRAY, [elements[2].job.id, "training-unknown00"]) == [elements[2].job.id]
    assert Path(attempt.control).read_text() == "a request" and Path(attempt.launch).exists()
    assert not Path(elements[0].plan.attempt_dir.path).exists()
    Path(chunk.submit_begun).unlink()
    assert make_elements(root, ARRAY) == []  # its submission has not begun


def test_find_task_refuses_removed_job(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    chunk, elements = write_chunk(root)
    Path(root.removed_jobs).write_text(f"\n{elements[0].job.id}\n")
    with pytest.raises(NoElement, match="was removed"):
        find_task(chunk.tasks, "0")
    assert not Path(root.job(elements[0].job.id).path).exists()


@pytest.mark.parametrize("task", ["9", "", "0 ", "x", "../1"])
def test_find_task_refuses_number_without_row(tmp_path: Path, task: str) -> None:
    chunk, _ = write_chunk(Root(str(tmp_path)))
    with pytest.raises(NoElement, match="has no directory"):
        find_task(chunk.tasks, task)


@pytest.mark.parametrize("row", ["0 /elsewhere/jobs/training-0a1b2c3d4/attempt-1", "0 {root}/jobs/../x/attempt-1"])
def test_find_task_refuses_directory_outside_of_tree(tmp_path: Path, row: str) -> None:
    chunk, _ = write_chunk(Root(str(tmp_path)))
    Path(chunk.tasks).write_text(row.format(root=tmp_path) + "\n")
    with pytest.raises(NoElement, match="has no directory"):
        find_task(chunk.tasks, "0")


def _replace(table: ElementTable, **changes: object) -> str:
    body = {**json.loads(encode_table(table)), **changes}
    return json.dumps(body)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"attempt-1/../../x": ""}},
        {"files": {"attempt-1/secrets.json": ""}},
        {"files": {"attempt-1/launch.json": 1}},
        {"planned": "training"},
        {"model": "../../x"},
        {"names": "FFDL_ARRAY_INDEX"},
        {"elements": {"training-0a1b2c3d4": [0]}},
        {"elements": {"training-0a1b2c3d4": [0, [], {}, []]}},
        {"elements": []},
    ],
)
def test_read_table_refuses_damaged_table(tmp_path: Path, changes: dict[str, object]) -> None:
    root = Root(str(tmp_path))
    chunk, elements = write_chunk(root)
    table = tabulate(elements[0], EXPORTED, [one.job for one in elements])
    Path(chunk.elements).write_text(_replace(table, **changes))
    with pytest.raises(DamagedFile):
        read_table(root, chunk)
    with pytest.raises(NoElement):
        find_task(chunk.tasks, "0")


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
def test_find_task_does_not_follow_what_replaced_the_table(tmp_path: Path, what: str) -> None:
    chunk, _ = write_chunk(Root(str(tmp_path)))
    table = Path(chunk.elements)
    moved = table.rename(tmp_path / "moved")
    if what == "link":
        table.symlink_to(moved)
    elif what == "pipe":
        os.mkfifo(table)
    else:
        table.mkdir()
    with pytest.raises(NoElement):
        find_task(chunk.tasks, "0")


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def die_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Die before the `step`-th directory, link, file or mark."""
    steps = itertools.count(1)

    def before(act: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: object, **options: object) -> None:
            if next(steps) == step:
                raise Killed
            act(*args, **options)

        return counted

    for name in ("_make", "_link", "write_text", "mark_task"):
        patch.setattr(element_files, name, before(getattr(element_files, name)))


@pytest.mark.parametrize("step", range(1, 17))
@pytest.mark.parametrize("then", ["the task starts again", "the daemon makes it"])
def test_directory_is_completed_after_death_before_each_step(tmp_path: Path, step: int, then: str) -> None:
    root = Root(str(tmp_path))
    chunk, elements = write_chunk(root)
    job, attempt = elements[1].job.id, elements[1].plan.attempt_dir
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        die_at(patch, step)
        find_task(chunk.tasks, "1")
    if then == "the task starts again":
        assert find_task(chunk.tasks, "1") == attempt
    assert make_elements(root, ARRAY, [job]) == [job]
    made = {f"attempt-1/{name}": Path(attempt.path, name).read_text() for name in ("launch.json", "environment.json")}
    assert made.items() <= elements[1].files.items()
    assert Path(attempt.submit_begun).read_text() == f"begun by the deployer\narray {ARRAY}-2 1\n"
    assert all(Path(place).is_dir() for place in element_files.places_of(attempt))
