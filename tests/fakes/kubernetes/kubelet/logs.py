"""Containers' logs, as kubelet gives them: of the latest file alone."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.kubelet.slot import Slot
from tests.fakes.kubernetes.kubelet.worker import Worker
from tests.fakes.kubernetes.refusals import Refusal, bad_request
from tests.fakes.kubernetes.web import Request

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a log is asked for. `since` compares as text: nanoseconds and all."""

    follow: bool
    timestamps: bool
    since: str
    tail: int | None
    limit: int | None


def wanted_of(request: Request) -> Wanted:
    """The parameters of a request."""
    query = request.query
    since = query.get("sinceTime", "")
    if since:
        since = _comparable(since)
    elif query.get("sinceSeconds"):
        moment = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        since = _comparable(moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    tail, limit = query.get("tailLines"), query.get("limitBytes")
    return Wanted(
        request.asks("follow"), request.asks("timestamps"), since,
        int(tail) if tail else None, int(limit) if limit else None,
    )  # fmt: skip


def _comparable(text: str) -> str:
    """In UTC with nine digits behind the second."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise bad_request(f'unable to decode query: parsing time "{text}" as "2006-01-02T15:04:05Z07:00"')
    moment = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")).astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{(match[2] or '').ljust(9, '0')}Z"


def slot_of(worker: Worker, request: Request) -> Slot:
    """The container that is asked for; the refusals of the API server."""
    return worker.slot(container_of(worker.pod, request))


def container_of(pod: Obj, request: Request) -> str:
    """The name of it."""
    inits = [one["name"] for one in pod["spec"].get("initContainers") or []]
    mains = [one["name"] for one in pod["spec"]["containers"]]
    name, of = request.query.get("container", ""), pod["metadata"]["name"]
    if not name and len(mains) > 1:
        ending = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
        raise bad_request(
            f"a container name must be specified for pod {of}, choose one of: [{' '.join(mains)}]{ending}"
        )
    if name and name not in (*inits, *mains):
        raise bad_request(f"container {name} is not valid for pod {of}")
    return name or str(mains[0])


def check_started(worker: Worker, slot: Slot, *, previous: bool) -> None:
    """Refuse the log of a container that never ran."""
    if previous and slot.restarts == 0:
        raise bad_request(f'previous terminated container "{slot.name}" in pod "{worker.key[1]}" not found')
    if "waiting" in slot.state and not slot.restarts:
        reason = slot.state["waiting"].get("reason", "")
        said = "trying and failing to pull image" if "Image" in reason else reason
        raise bad_request(f'container "{slot.name}" in pod "{worker.key[1]}" is waiting to start: {said}')


async def read_log(worker: Worker, slot: Slot, wanted: Wanted, *, previous: bool) -> AsyncIterator[bytes]:
    """The log's bytes."""
    reader = _Reader(slot.log_file(previous=previous), wanted)
    grew = asyncio.Event()
    worker.logs_grew.add(grew)
    run = slot.running
    try:
        while True:
            grew.clear()
            over = run is None or (run.ended.done() and slot.running is not run)
            for chunk in reader.read():
                yield chunk
            if reader.full or not wanted.follow or over or worker.gone:
                return
            try:
                await asyncio.wait_for(grew.wait(), _POLL_S)
            except TimeoutError:
                continue
    finally:
        worker.logs_grew.discard(grew)
        reader.close()


class _Reader:
    """Reads a log file, and the next one when it was rotated."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self._path, self._wanted = path, wanted
        self._left = wanted.limit
        self._rest, self._fresh = b"", True
        self._file = path.open("rb") if path.exists() else None
        self.full = False
        if wanted.tail is not None and self._file is not None:
            self._skip(wanted.tail)

    def _skip(self, lines: int) -> None:
        assert self._file is not None
        data = self._file.read()
        starts, whole = [0], 0
        for match in re.finditer(rb"[^\n]*\n", data):
            if match[0].split(b" ", 3)[2:3] == [b"F"]:
                whole += 1
                starts.append(match.end())
        self._file.seek(starts[max(whole - lines, 0)])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self) -> list[bytes]:
        """All that is there."""
        found = self._more()
        if self._file is not None and self._path.exists():
            if self._path.stat().st_ino != _inode(self._file.fileno()):
                found += self._more()
                self._file.close()
                self._file, self._rest = self._path.open("rb"), b""
                found += self._more()
        elif self._file is None and self._path.exists():
            self._file = self._path.open("rb")
            found += self._more()
        return found

    def _more(self) -> list[bytes]:
        if self._file is None:
            return []
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        data = b"".join(self._shown(line) for line in lines)
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.full = self._left <= 0
        return [data] if data else []

    def _shown(self, line: bytes) -> bytes:
        moment, _stream, tag, text = [*line.split(b" ", 3), b""][:4]
        begins, self._fresh = self._fresh, tag == b"F"
        if self._wanted.since and moment.decode() < self._wanted.since:
            return b""
        prefix = moment + b" " if self._wanted.timestamps and begins else b""
        return prefix + text + (b"\n" if tag == b"F" else b"")


def _inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def unreachable(node: str, worker_key: tuple[str, str], container: str) -> Refusal:
    """What the API server says when the node's kubelet does not answer."""
    namespace, pod = worker_key
    where = f"https://{node}:10250/containerLogs/{namespace}/{pod}/{container}"
    return Refusal(500, "InternalError", f'Get "{where}": dial tcp 127.0.0.1:10250: connect: connection refused')
