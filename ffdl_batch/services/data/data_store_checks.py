"""Checks a job's stores at its submission: that they exist, accept the keys, and have the data to be read.

The staging program makes the checks (``--check``: one page of a listing), in one process for each store and direction,
within LIMIT_S in total. A certain error refuses the job. A store that this host cannot reach causes a warning, because
the nodes may reach it. The nodes check again before they load anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import (
    Direction,
    Failed,
    FaultClass,
    StageTask,
    Transfer,
    encode_task,
    fault_code,
    read_line,
)
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.data_stores import REMOTE, stores_with_input
from ffdl_batch.domain.job.spec import DataStore
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.host.egress import Networks, child_environment
from ffdl_batch.host.fast_dataclass import dataclass

SURE = {
    FaultClass.CREDENTIALS: "correct user_name and password of the store, or what they refer to",
    FaultClass.MISSING: "correct the container, or make it and put the data there (ffdl data put)",
}
"""Failures that the nodes would have, too, with their cures."""
_MAKE_IT = "correct the container, or make it"
_DOUBTFUL, _NO_ROOM = "could not be used from this host", "there is no space for the data now"
DOUBTS = (_DOUBTFUL, _NO_ROOM)
"""Texts of warnings, which may not apply when the job starts."""
_IN_DOUBT = "the nodes check it again before they load anything"
_ROOM = "free space before the job starts, or set jobs_dir to a directory on a larger file system"
_WHAT = {Direction.IN: "data", Direction.OUT: "results"}
_CONTAINER = {Direction.IN: "training_data.container", Direction.OUT: "training_results.container"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one check: what is wrong with a store; `kind` None = nothing. `message` is the cause."""

    kind: FaultClass | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """An error of the store at this place of the manifest, in one direction."""

    store: int
    direction: Direction
    address: StoreAddress
    answer: Answer

    @property
    def sameness(self) -> tuple[object, ...]:
        """Key that is equal for fields with the same cause."""
        if self.answer.kind is FaultClass.NETWORK:  # where it is, not which container
            return self.answer.kind, self.address.kind, self.address.endpoint, self.address.region
        return self.answer.kind, self.store, self.answer.message

    @property
    def field(self) -> str:
        """Path of the manifest's field with the error."""
        kind = self.answer.kind
        if kind in (FaultClass.MISSING, FaultClass.FULL):
            below = _CONTAINER[self.direction]
        elif kind is FaultClass.NETWORK:
            below = "connection.host" if self.address.kind is StoreKind.FSSPEC else "connection.auth_url"
        else:
            below = "type" if kind is FaultClass.LIBRARY else "connection"
        return f"data_stores[{self.store}].{below}"


def findings_of(wrong: Sequence[StoreFailure], *, later: bool, runs_here: bool) -> Iterator[Finding]:
    """Yield the findings, one for each cause.

    `later`: missing data may be put there before the job starts. `runs_here`: the nodes use this installation.
    """
    groups: dict[tuple[object, ...], list[StoreFailure]] = {}
    for one in wrong:
        groups.setdefault(one.sameness, []).append(one)
    for group in groups.values():
        yield _finding(group, later=later, runs_here=runs_here)


def _finding(group: Sequence[StoreFailure], *, later: bool, runs_here: bool) -> Finding:
    """Return an error if the nodes would fail in the same way, else a warning."""
    first = group[0]
    what = " and ".join(dict.fromkeys(_WHAT[one.direction] for one in group))
    kind, said = first.answer.kind, first.answer.message
    assert kind is not None
    is_certain = kind in SURE and not (later and kind is FaultClass.MISSING)
    if is_certain or kind is FaultClass.TASK or (kind is FaultClass.LIBRARY and runs_here):
        code = fault_code(kind, Direction.IN)
        cure = SURE.get(kind, "correct the store") if kind is not FaultClass.LIBRARY else None
        if kind is FaultClass.MISSING and all(one.direction is Direction.OUT for one in group):
            cure = _MAKE_IT
        message = f"the store of {what} cannot be used ({code}): {said}"
        return Finding(Severity.ERROR, message, cure, path=first.field, code=code)
    code = fault_code(kind, first.direction)
    if kind is FaultClass.FULL and first.direction is Direction.IN:
        message = f"{_NO_ROOM} ({code}): {said}"
        return Finding(Severity.WARNING, message, _ROOM, path=first.field, code=code)
    message = f"the store of {what} {_DOUBTFUL} ({code}): {said}"
    return Finding(Severity.WARNING, message, _IN_DOUBT, path=first.field, code=code)


LIMIT_S = 6.0
CONNECTION_S = "4"
"""Time-out of a connection on which nothing is received."""
KNOWN_S = 30.0
"""How long an answer is reused for further submissions with the same stores and keys."""
MOST_KNOWN = 100


@dataclass(frozen=True, slots=True)
class _Question:
    """One transfer of the job, and the place of its store in the manifest."""

    store: int
    direction: Direction
    transfer: Transfer


class StoreChecks:
    """The checks of one daemon. Calls may come from several threads at once."""

    def __init__(self, limit_s: float = LIMIT_S, egress: Networks | None = None) -> None:
        self._limit_s, self._environ = limit_s, child_environment(egress)
        self._known: dict[str, tuple[float, Answer]] = {}
        self._lock = threading.Lock()

    def findings(
        self, launch: LaunchFile, stores: Sequence[DataStore], secrets: Mapping[str, str], *, later: bool
    ) -> Iterator[Finding]:
        """Return what is wrong with the stores of a planned attempt, which are those of the manifest.

        `secrets` are the known values; a store with an unknown secret is not checked. `later`: the job waits for
        another one, which may create missing data.
        """
        asked = [
            one for one in _questions(launch, stores) if set(one.transfer.store.credentials.values()) <= {*secrets}
        ]
        answers = self._answers(asked, secrets)
        wrong = [
            StoreFailure(one.store, one.direction, one.transfer.store, answer)
            for one, answer in zip(asked, answers, strict=True)
            if answer.kind is not None
        ]
        here = launch.staging[:1] == (sys.executable,)
        yield from findings_of(wrong, later=later, runs_here=here)

    def _answers(self, asked: Sequence[_Question], secrets: Mapping[str, str]) -> list[Answer]:
        keys = [_key(one, secrets) for one in asked]
        now = time.monotonic()
        with self._lock:
            self._known = {key: found for key, found in self._known.items() if now - found[0] < KNOWN_S}
            found = {key: self._known[key][1] for key in keys if key in self._known}
        new = {key: one for key, one in zip(keys, asked, strict=True) if key not in found}
        if new:
            answers = dict(zip(new, _ask(list(new.values()), secrets, self._limit_s, self._environ), strict=True))
            with self._lock:
                for key, answer in answers.items():
                    if answer.kind in (None, *SURE) and len(self._known) < MOST_KNOWN:
                        self._known[key] = (time.monotonic(), answer)
            found |= answers
        return [found[key] for key in keys]


def _questions(launch: LaunchFile, stores: Sequence[DataStore]) -> list[_Question]:
    """Return the transfers of the launch file, with short time-outs and few tries."""
    fetches = (one for one in launch.fetches if not one.optional)
    found = [
        _Question(index, Direction.IN, transfer)
        for index, transfer in zip(stores_with_input(stores, remote=True), fetches, strict=False)
    ]
    targets = (index for index, one in enumerate(stores) if one.training_results and one.effective_type in REMOTE)
    found += [_Question(index, Direction.OUT, one) for index, one in zip(targets, launch.uploads[:1], strict=False)]
    return [replace(one, transfer=_quick(one.transfer)) for one in found]


def _quick(transfer: Transfer) -> Transfer:
    store = transfer.store
    return replace(transfer, store=replace(store, options={**store.options, "timeout_s": CONNECTION_S}))


def _key(question: _Question, secrets: Mapping[str, str]) -> str:
    """Return a key that is equal for the same check; it omits the job's own directory and prefix."""
    direction, one = question.direction, question.transfer
    same = replace(one, local="/", prefix=one.prefix if direction is Direction.IN else "")
    values = sorted((name, secrets[name]) for name in one.store.credentials.values())
    text = f"{encode_task(StageTask(direction, (same,), '/'))}\0{values}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _ask(
    asked: Sequence[_Question], secrets: Mapping[str, str], limit_s: float, environ: Mapping[str, str]
) -> list[Answer]:
    """Make all checks in parallel; return their answers in order."""
    end = time.monotonic() + limit_s
    started: list[subprocess.Popen[bytes]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="ffdl-check-") as place:
            try:
                for number, one in enumerate(asked):
                    started.append(_start(Path(place, str(number)), one, secrets, environ))
                answers = [_answer(process, end) for process in started]
                return [answer or _silent(one, limit_s) for answer, one in zip(answers, asked, strict=True)]
            finally:
                for process in started:
                    if process.poll() is None:
                        process.kill()
                        process.communicate()
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return [Answer(FaultClass.INTERNAL, f"{error.strerror or error}{where}") for _ in asked]


def _start(
    place: Path, question: _Question, secrets: Mapping[str, str], environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start one check. Secrets are passed in memory, so a killed daemon leaves none on disk."""
    transfer = question.transfer
    needed = {name: secrets[name] for name in transfer.store.credentials.values()}
    values = os.memfd_create("secrets")
    try:
        with os.fdopen(os.dup(values), "w", encoding="utf-8") as file:
            json.dump(needed, file)
        task = StageTask(question.direction, (transfer,), str(place), f"/dev/fd/{values}", tries=1)
        path = place.with_suffix(".json")
        path.write_text(encode_task(task), encoding="utf-8")
        argv = [sys.executable, "-I", "-m", "ffdl_batch.staging", str(path), "--check"]
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=place.parent,
            start_new_session=True, pass_fds=(values,), env=environ,
        )  # fmt: skip
    finally:
        os.close(values)


def _silent(question: _Question, limit_s: float) -> Answer:
    store = question.transfer.store
    named = f"{store.options.get('protocol', store.kind.value)} store {store.endpoint}".strip()
    return Answer(FaultClass.NETWORK, f"{named}: it did not answer within {limit_s:g} s")


def _answer(process: subprocess.Popen[bytes], end: float) -> Answer | None:
    """Return the process's answer; None if there is none before `end`."""
    try:
        said, _ = process.communicate(timeout=max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    lines = [read_line(line) for line in said.decode("utf-8", "replace").splitlines()]
    failed = next((line for line in lines if isinstance(line, Failed)), None)
    if failed is not None:
        return Answer(failed.class_, failed.cause or failed.message)
    return Answer() if process.returncode == 0 else Answer(FaultClass.INTERNAL, f"exit status {process.returncode}")
