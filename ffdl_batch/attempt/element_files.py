"""Make the directory of an element of an array from the table of its native array. Runs on Python 3.9.

The elements of a native array differ in few values. So the deployer plans one element and writes its files once, into
the table ``elements.json`` of the chunk, with the values of each other element. The directory of an element is made
from the table when its task starts (by the head), or when a service needs it before. Both make the same files, so it is
harmless if they do so at once. The launch file is written last: where it exists, the directory is complete.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ffdl_batch.attempt.file_writer import sync_directory, write_bytes, write_text
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, NO_FILE, DamagedFile, find_text, read_object, read_whole
from ffdl_batch.domain.file_format import FORMAT, require_known
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass

MAX_TABLE_BYTES = MAX_TEXT_BYTES
LAUNCH, ENVIRONMENT = "launch.json", "environment.json"
PLACES = ("attempt-1", "attempt-next")
"""Directories of an element whose files the table has. Only first attempts are tasks of native arrays."""
_JOB = re.compile(r"training-[0-9a-z]{9}", re.ASCII)
_CHUNK = re.compile(r"(array-[0-9a-z]{9})/chunk-([1-9][0-9]{0,8})", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAMES = {LAUNCH: 0o600, ENVIRONMENT: 0o600, "script.sh": 0o700}

Files = Dict[str, str]
"""The texts of an element's files, by their names below its job's directory."""


class NoElement(Exception):
    """The element's directory cannot be made; the message says why."""


@dataclass(frozen=True)
class Changes:
    """The values of one element."""

    ports: int
    """`ports` of its launch file."""
    learner: Sequence[str]
    """Values of the table's `names` in the environment of its learners."""
    set_variables: Mapping[str, str]
    """Variables of the user that the planned element lacks, or has with other values."""
    unset_variables: Sequence[str]
    """Variables of the user that only the planned element has."""


@dataclass(frozen=True)
class ElementTable:
    """The files of one element, and the values of the others."""

    planned: str
    """Id of the element that was planned; it is in its texts wherever another element has its own id."""
    model: str
    """SHA-256 of the model archive; "" = there is none."""
    files: Mapping[str, str]
    names: Sequence[str]
    elements: Mapping[str, Changes]
    """By the ids of the jobs."""

    def only(self, jobs: Sequence[str]) -> ElementTable:
        """Return the table with these elements."""
        return ElementTable(self.planned, self.model, self.files, self.names, {job: self.elements[job] for job in jobs})


def encode_table(table: ElementTable) -> str:
    """Return the text of ``elements.json``."""
    elements = {
        job: [one.ports, list(one.learner), dict(one.set_variables), list(one.unset_variables)]
        for job, one in table.elements.items()
    }
    body = {
        "format": FORMAT, "planned": table.planned, "model": table.model, "files": dict(table.files),
        "names": list(table.names), "elements": elements,
    }  # fmt: skip
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_table(root: Root, chunk: AttemptDir) -> ElementTable:
    """Return the table of a native array. Raises FileNotFoundError if it has none, DamagedFile, OSError, NewerFormat
    among them."""
    body = read_object(chunk.elements, MAX_TABLE_BYTES, below=root.path)
    require_known(body, chunk.elements)
    try:
        planned, model, names = body["planned"], body["model"], _texts(body["names"])
        if not _is_job(planned) or not (model == "" or _DIGEST.fullmatch(model)):
            raise ValueError("it names no job or no model")
        files = _variables(body["files"])
        for name in files:
            place, _, file = name.partition("/")
            if place not in PLACES or file not in _NAMES:
                raise ValueError(f"{name[:60]!r} is no file of an element")
        elements = {job: _changes(*value) for job, value in body["elements"].items() if _is_job(job)}
        if any(len(one.learner) != len(names) for one in elements.values()):
            raise ValueError("an element has too few values")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFile(chunk.elements, f"it is not the table of a native array ({error})") from None
    return ElementTable(planned, model, files, names, elements)


def _changes(ports: object, learner: object, set_variables: object, unset_variables: object) -> Changes:
    if not isinstance(ports, int):
        raise ValueError("ports are no number")
    return Changes(ports, _texts(learner), _variables(set_variables), _texts(unset_variables))


def _texts(value: object) -> List[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of texts is none")
    return value


def _variables(value: object) -> Dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError("an object of texts is none")
    return value


def _is_job(value: object) -> bool:
    return isinstance(value, str) and _JOB.fullmatch(value) is not None


def derive_files(table: ElementTable, job: str) -> Files:
    """Return the files of the element `job`: those of the planned one with its id and values. Raises KeyError if the
    table does not have it, ValueError if its texts are damaged.

    No user's text can hold the id of the planned element: the id was drawn after the text was written.
    """
    changes = table.elements[job]
    found: Files = {}
    for name, planned in table.files.items():
        text, file = planned.replace(table.planned, job), name.rpartition("/")[2]
        if file == LAUNCH:
            found[name] = _launch_of(text, table.names, changes)
        elif file == ENVIRONMENT:
            user = {name: value for name, value in parse_json(text).items() if name not in changes.unset_variables}
            found[name] = encode_variables({**user, **changes.set_variables})
        else:
            found[name] = text
    return found


def _launch_of(text: str, names: Sequence[str], changes: Changes) -> str:
    body = parse_json(text)
    body["ports"] = changes.ports
    body["learner"]["env"].update(zip(names, changes.learner))
    return json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def encode_variables(user: Mapping[str, str]) -> str:
    """Return the text of ``environment.json``."""
    return json.dumps(dict(user), sort_keys=True, ensure_ascii=False, indent=1) + "\n"


def write_element(root: Root, array: str, table: ElementTable, job: str) -> None:
    """Make the element's directory, unless it is complete. Raises OSError, KeyError, ValueError.

    Nothing in it is changed that another process may have made: its mark, its requests, its claim.
    """
    directory = root.job(job)
    attempt = directory.attempt(1)
    if os.path.lexists(attempt.launch):
        return
    files = derive_files(table, job)
    for path in (directory.path, directory.checkpoints, directory.template.path, *places_of(attempt)):
        _make(path)
    _link(root.array(array).manifest, directory.manifest)
    if table.model:
        _link(root.model(table.model), directory.model_archive)
    last = f"{PLACES[0]}/{LAUNCH}"
    for name in sorted(files, key=lambda one: one == last):
        path = os.path.join(directory.path, name)
        if not name.startswith(PLACES[0]) and os.path.lexists(path):
            continue  # it may be of a later attempt
        write_text(path, files[name], _NAMES[os.path.basename(name)], durable=name == last)
    sync_directory(attempt.path)


def places_of(attempt: AttemptDir) -> Tuple[str, ...]:
    """Return the directories of an attempt that exist before its controllers."""
    return (
        attempt.path, attempt.submit, attempt.events, attempt.state, attempt.model, attempt.data, attempt.results,
        attempt.logs,
    )  # fmt: skip


def _make(path: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _link(source: str, target: str) -> None:
    if os.path.lexists(target):
        return
    try:
        with suppress(FileExistsError):  # another process was faster
            os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # the file system has no hard links
        write_bytes(target, read_whole(source, os.lstat(source).st_size), durable=False)


# ------------------------------------------------------------------------------------------------------ chunks


def chunks_of(root: Root, array: str) -> Iterator[Tuple[int, AttemptDir]]:
    """Yield the native arrays of `array` whose tables were written and whose submission has begun, in order."""
    directory = root.array(array)
    try:
        names = os.listdir(directory.path)
    except FileNotFoundError:
        return
    numbers = sorted(int(name[6:]) for name in names if name.startswith("chunk-") and name[6:].isdigit())
    for number in numbers:
        chunk = directory.chunk(number)
        if os.path.lexists(chunk.elements) and os.path.lexists(chunk.submit_begun):
            yield number, chunk


def tasks_of(root: Root, chunk: AttemptDir) -> Dict[str, str]:
    """Return the task of each element of a native array, by the id of its job. Raises OSError, DamagedFile."""
    found: Dict[str, str] = {}
    text = read_whole(chunk.tasks, MAX_TABLE_BYTES, below=root.path).decode("utf-8", "replace")
    for line in text.splitlines():
        task, _, path = line.partition(" ")
        job = os.path.basename(os.path.dirname(path))
        if task.isdigit() and _is_job(job) and path == root.job(job).attempt(1).path:
            found[job] = task
    return found


def mark_task(attempt: AttemptDir, chunk: AttemptDir, line: str) -> None:
    """Mark durably that the element was submitted as a task of the native array, at the time of its submission. A mark
    that has the line stays. Raises OSError."""
    text = find_text(attempt.submit_begun, MAX_TEXT_BYTES)
    if line in text:
        return
    first = text.partition("\n")[0] or find_text(chunk.submit_begun).partition("\n")[0]
    asked_at = os.lstat(chunk.submit_begun).st_mtime
    rest = text.partition("\n")[2]
    write_text(attempt.submit_begun, f"{first}\n{rest}{line}")
    if not text:
        os.utime(attempt.submit_begun, (asked_at, asked_at))


def make_elements(root: Root, array: str, jobs: Optional[Sequence[str]] = None) -> List[str]:
    """Make the directories and marks of those of `jobs` that were submitted by a table (None: of all). Return their
    ids. A table that is damaged or was removed counts as missing. Raises OSError."""
    made: List[str] = []
    for number, chunk in chunks_of(root, array):
        try:
            table, tasks = read_table(root, chunk), tasks_of(root, chunk)
        except NO_FILE:
            continue
        for job in table.elements if jobs is None else [one for one in jobs if one in table.elements]:
            if job in tasks:
                make_element(root, array, table, job, chunk, mark_line(array, number, tasks[job]))
                made.append(job)
    return made


def make_element(root: Root, array: str, table: ElementTable, job: str, chunk: AttemptDir, line: str) -> None:
    """Make one element's directory and mark. Raises OSError, DamagedFile."""
    try:
        write_element(root, array, table, job)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, DamagedFile):
            raise
        raise DamagedFile(chunk.elements, f"its files are no element's ({error})") from None
    mark_task(root.job(job).attempt(1), chunk, line)


def mark_line(array: str, number: int, task: str) -> str:
    """Return the line of an attempt's mark for a task of a native array."""
    return f"array {array}-{number} {task}\n"


# -------------------------------------------------------------------------------------------------------- tasks


def find_task(tasks: str, task: str) -> AttemptDir:
    """Return the attempt of task number `task` of the native array whose table of tasks is the file `tasks`. Make its
    directory if it is not complete. Raises NoElement, OSError, NewerFormat among them."""
    chunk = AttemptDir(os.path.dirname(tasks))
    named = _CHUNK.search(chunk.path + "/", len(os.path.dirname(os.path.dirname(chunk.path))))
    root = Root(os.path.dirname(os.path.dirname(os.path.dirname(chunk.path))))
    if named is None or chunk.tasks != tasks or root.array(named[1]).chunk(named[2]).path != chunk.path:
        raise NoElement(f"{tasks} is not the table of a native array")
    try:
        lines = read_whole(tasks, MAX_TABLE_BYTES, below=root.path).decode("utf-8", "replace").splitlines()
    except NO_FILE as error:
        raise NoElement(f"task {task} has no directory: {error}") from None
    path = next((line[len(task) + 1 :] for line in lines if task.isdigit() and line.startswith(f"{task} ")), "")
    job = os.path.basename(os.path.dirname(path))
    number = os.path.basename(path)[len("attempt-") :]
    if not _is_job(job) or not number.isdigit() or path != root.job(job).attempt(int(number)).path:
        raise NoElement(f"task {task} has no directory")
    attempt = AttemptDir(path)
    if not os.path.lexists(attempt.launch):
        _make_task(root, named[1], int(named[2]), chunk, job, task)
    return attempt


def _make_task(root: Root, array: str, number: int, chunk: AttemptDir, job: str, task: str) -> None:
    if job in find_text(root.removed_jobs, MAX_TABLE_BYTES).splitlines():
        raise NoElement(f"task {task} is {job}, which was removed")
    try:
        table = read_table(root, chunk)
        if job not in table.elements:
            raise NoElement(f"task {task} has no directory")
        make_element(root, array, table, job, chunk, mark_line(array, number, task))
    except NO_FILE as error:
        raise NoElement(f"task {task} has no directory: {error}") from None
