"""The protocol between a pod's controller and the daemon: paths in the pod, keys of annotations, and lines on standard
output. Runs on Python 3.9.

A pod cannot connect to the daemon. Its controller prints everything that it writes into the attempt's directory, line
by line, and the daemon writes it into its own copy of that directory. Requests of the platform are annotations of the
pod, which it sees as files (downward API).

A line is :data:`PREFIX` and a JSON object. ``run`` is the run of the pod's controller (a container that is started
again begins the next one), and ``n`` counts the lines of a run from 1, so a reader detects lost lines. ``kind`` is one
of :class:`FrameKind`; ``file`` is relative to the attempt's directory. Bytes that are not UTF-8 are in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import field
from enum import Enum
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass

PREFIX = "@ffdl "
LINE_BYTES = 12 * 1024
"""The longest line. Container runtimes cut lines at 16 KiB (kubelet joins them again, others need not)."""

TREE = "/ffdl"
"""The tree of jobs in a pod; it has only the pod's own job, at ``<TREE>/jobs/<job id>``."""
POD_DIR = "/ffdl-pod"
"""The pod's own directory, which is deleted with it: doorbell/, scratch/, seat/."""
SEAT_DIR = "/ffdl-seat"
"""Where the learner's container mounts ``<POD_DIR>/seat``."""
PLAN_DIR = "/ffdl-in/plan"
"""launch.json and the learner's shim, from a ConfigMap or from annotations of the pod."""
MODEL_DIR = "/ffdl-in/model"
"""The model archive in parts (``model.zip.000``, ``model.zip.001``, ...), or as text, :data:`MODEL_TEXT`."""
MODEL_TEXT = "model.zip.base64"
"""The whole model archive in base64: annotations hold text only."""
PRIVATE_DIR = "/ffdl-in/private"
"""environment.json and secrets.json, from a Secret."""
ANNOTATIONS_DIR = "/ffdl-in/annotations"
"""Annotations of the pod as files, by the names of :class:`PodAnnotation`."""

INDEX = "JOB_COMPLETION_INDEX"
"""Variable of an Indexed Job's containers: the pod's number, which is the rank of its node."""
PLAIN_ANNOTATION_BYTES = 32 * 1024
"""Maximum length of a request in characters; longer ones are packed."""
PACKED = "zlib:"
"""Prefix of a packed request; base64 follows."""

RUNS = "runs"
"""In the pod's directory: the number of starts of its controller."""
HOSTS = "hosts"
"""In the pod's directory: /etc/hosts of the learner's container."""

SHIM = "shim.sh"
"""Also in the seat: the sidecar copies it there before the learner's container starts."""
OPEN = "open"
"""In the seat: created when everything is loaded; the learner's container starts then (startup probe)."""
GO = "go"
"""In the seat: how the learner is started, created by one rename; the shim, a shell, waits for it and reads it. Its
first line is ``# <id>``. Each start has another id, and a container may start its learner more than once."""
TAKEN = "taken"
"""In the seat: the id of the start whose `go` the shim has read, so that it can be removed."""
BELL = "bell"
"""In the seat: a pipe, from which the shim reads; a line means that a file in the seat has changed."""
OUTPUT = "output"
"""In the seat: a pipe for the learner's output."""
BEGUN = "begun"
"""In the seat: process id of the shim in the pod; the line is complete when it has its line end."""
ENDED = "ended"
"""In the seat: one line, complete when it has its line end: the id of the start, the exit status that the shim saw, and
the number of processes of its container that the kernel had killed for memory, before and after (-1 = not known)."""
DONE = "done"
"""In the seat: created by one rename when results are stored; has the exit status for the shim."""
TERMINATING = "terminating"
"""In the seat: created by the preStop hook of the learner's container when the pod is being deleted."""

ANNOTATIONS = "ffdl-batch"
"""Prefix of our labels, annotations and finalizers."""
TIME_LIMIT = f"{ANNOTATIONS}/time-limit-s"
"""Annotation of a pod with the time limit of its job; the pod's own deadline is much later."""
JOB_LABEL = f"{ANNOTATIONS}/job"
ATTEMPT_LABEL = f"{ANNOTATIONS}/attempt"
FINALIZER = f"{ANNOTATIONS}/final-word"


NO_BASH = "this image has no bash"
"""Part of what a learner's container prints if its image lacks bash."""


class PodAnnotation(str, Enum):
    """Annotations (behind :data:`ANNOTATIONS`) that the daemon sets on running pods; each is a file in the pod."""

    CONTROL = "control"
    """The attempt's ``control.json``, unchanged."""
    SIBLINGS = "siblings"
    """What the other pods' controllers wrote: JSON, file → text of the event file; a long one is packed
    (:func:`pack`)."""
    RESEND = "resend"
    """JSON, file → offset from which on the daemon lacks the bytes."""
    SIGNAL = "signal"
    """``<number> <name>``: the latest signal request; each number is obeyed once."""
    LOOK = "look"
    """JSON, :func:`encode_look`: a request for tables or stacks of the learners; each id is answered once."""


class FrameKind(str, Enum):
    """What a line contains of a file."""

    APPEND = "append"
    """Bytes at `offset` of a file that only grows."""
    CELL = "cell"
    """The whole content of a file that changes by rename; long ones in parts, `offset` and `size` say which."""
    LOG = "log"
    """Bytes of a learner's output; `offset` counts all of it; `file` is ``logs/learner-<n>``."""
    SIZES = "sizes"
    """A summary, once a minute: `sizes` of all append-only files and of logs."""
    ANSWER = "answer"
    """The answer to a look, :func:`encode_answer`; `file` is the look's id. Long ones in parts, as cells."""


@dataclass(frozen=True)
class Frame:
    """One line."""

    run: int
    n: int
    kind: FrameKind
    file: str = ""
    offset: int = 0
    data: bytes = b""
    size: int = 0
    """Of the whole cell."""
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """A request for a table or for stacks."""

    id: str
    do: str
    """TOP or STACK of :mod:`ffdl_batch.domain.launch.attach_protocol`."""
    learners: Tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """The answer to a look."""

    status: int = 0
    """Exit status of the command that printed the stacks."""
    text: str = ""
    """The stacks."""
    table: Optional[Mapping[str, Any]] = None
    """The table as the helper sends it."""
    refused: str = ""
    """Why there is no answer; "" = there is one."""


def encode_look(look: Look) -> str:
    """Return the annotation's value."""
    return json.dumps({"id": look.id, "do": look.do, "learners": list(look.learners)}, sort_keys=True)


def decode_look(text: str) -> Look:
    """Return the look in an annotation's value. Raises ValueError."""
    plain = parse_json(text)
    if not isinstance(plain, dict) or not isinstance(plain.get("learners"), list):
        raise ValueError(f"{text[:100]!r} is not a valid look annotation")
    return Look(str(plain.get("id", "")), str(plain.get("do", "")), tuple(int(one) for one in plain["learners"]))


def encode_answer(answer: Answer) -> bytes:
    """Return the bytes that are printed, in one or more lines."""
    plain = {"status": answer.status, "text": answer.text, "table": answer.table, "refused": answer.refused}
    return json.dumps(plain, separators=(",", ":")).encode("ascii")


def decode_answer(data: bytes) -> Answer:
    """Return the answer in these bytes. Raises ValueError."""
    plain = parse_json(data)
    table = plain.get("table")
    text, refused = str(plain.get("text", "")), str(plain.get("refused", ""))
    return Answer(int(plain.get("status", 1)), text, table if isinstance(table, dict) else None, refused)


def encode_frame(frame: Frame) -> str:
    """Return the line of a frame, without its line end."""
    plain: Dict[str, object] = {"run": frame.run, "n": frame.n, "kind": frame.kind.value}
    if frame.kind is FrameKind.SIZES:
        plain["sizes"] = dict(frame.sizes)
    else:
        plain.update(file=frame.file, offset=frame.offset)
        try:
            plain["text"] = frame.data.decode("utf-8")
        except UnicodeDecodeError:
            plain["base64"] = base64.b64encode(frame.data).decode("ascii")
    if frame.kind in (FrameKind.CELL, FrameKind.ANSWER):
        plain["size"] = frame.size
    return PREFIX + json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


def decode_frame(line: str) -> Optional[Frame]:
    """Return the frame in a line; None if the line is no frame, or of a later release's kind."""
    if not line.startswith(PREFIX):
        return None
    try:
        plain = parse_json(line[len(PREFIX) :])
        data = base64.b64decode(plain["base64"]) if "base64" in plain else str(plain.get("text", "")).encode("utf-8")
        return Frame(
            int(plain["run"]), int(plain["n"]), FrameKind(plain["kind"]), str(plain.get("file", "")),
            int(plain.get("offset", 0)), data, int(plain.get("size", 0)),
            {str(name): int(size) for name, size in dict(plain.get("sizes", {})).items()},
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return None


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield parts of `data` whose lines are no longer than :data:`LINE_BYTES`, cut between characters if possible."""
    start = 0
    while start < len(data):
        end = _between(data, start, start + _TEXT_BYTES)
        while _length(data[start:end]) > _TEXT_BYTES:
            end = _between(data, start, start + max(1, (end - start) // 2))
        yield data[start:end]
        start = end


def pack(text: str) -> str:
    """Return a request as the value of an annotation: long ones compressed, because all annotations of a pod together
    have at most 256 KiB (kubernetes.io, "Annotations")."""
    if len(text) <= PLAIN_ANNOTATION_BYTES:
        return text
    return PACKED + base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def unpack(text: str) -> str:
    """Return the request in the value of an annotation. Raises ValueError."""
    if not text.startswith(PACKED):
        return text
    try:
        return zlib.decompress(base64.b64decode(text[len(PACKED) :])).decode("utf-8")
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error


_TEXT_BYTES = LINE_BYTES - 512
"""Space of a line for its bytes, as they are written in it."""


def _between(data: bytes, start: int, end: int) -> int:
    """Return `end`, or a position up to three bytes before it at which a character begins."""
    for place in range(end, max(start, end - 4), -1):
        if place >= len(data) or data[place] & 0xC0 != 0x80:
            return min(place, len(data))
    return end


def _length(data: bytes) -> int:
    try:
        return len(json.dumps(data.decode("utf-8")))
    except UnicodeDecodeError:
        return (len(data) + 2) // 3 * 4
