"""What a pod's controller and the daemon have agreed on: paths in the pod, keys of annotations, and lines on standard
output. Runs on Python 3.9.

A pod has no way to the daemon. What its controller writes into the attempt's directory it also says, line by line, on
standard output, and the daemon writes it into its own copy of that directory. What the platform requests comes as
annotations of the pod, which are files in it (downward API).

A line is :data:`PREFIX` and a JSON object. ``run`` is the run of the pod's controller (a container that is started
anew begins the next one), ``n`` counts the lines of a run from 1: so a reader knows what it has, and what it missed.
``kind`` is one of :class:`FrameKind`; ``file`` is relative to the attempt's directory. Bytes are base64 where they are
no UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from ffdl_batch.domain.untrusted_json import parse_json

PREFIX = "@ffdl "
LINE_BYTES = 12 * 1024
"""The longest line that is said. Container runtimes cut lines at 16 KiB (kubelet joins them again, others need not)."""

TREE = "/ffdl"
"""The tree of jobs in a pod; only the pod's own job is in it, at ``<TREE>/jobs/<job id>``."""
POD_DIR = "/ffdl-pod"
"""The pod's own directory, gone with it: doorbell/, scratch/, seat/."""
SEAT_DIR = "/ffdl-seat"
"""What the learner's container sees of it: ``<POD_DIR>/seat``."""
PLAN_DIR = "/ffdl-in/plan"
"""launch.json and the learner's shim, from a ConfigMap."""
MODEL_DIR = "/ffdl-in/model"
"""The model archive in parts, ``model.zip.000`` and on."""
PRIVATE_DIR = "/ffdl-in/private"
"""environment.json and secrets.json, from a Secret."""
ANNOTATIONS_DIR = "/ffdl-in/annotations"
"""Annotations of the pod as files, by the names of :class:`Wish`."""

INDEX = "JOB_COMPLETION_INDEX"
"""Variable of an Indexed Job's containers: the pod's number, which is the rank of its node."""
PLAIN_ANNOTATION_BYTES = 32 * 1024
"""Characters: longer requests are packed."""
PACKED = "zlib:"
"""What a packed request begins with; base64 follows."""

RUNS = "runs"
"""In the pod's directory: how often its controller was started."""
HOSTS = "hosts"
"""In the pod's directory: /etc/hosts of the learner's container."""

SHIM = "shim.sh"
"""In the seat, too: the sidecar puts it there before the learner's container starts."""
OPEN = "open"
"""In the seat: made when everything is loaded; the learner's container starts then (startup probe)."""
GO = "go"
"""In the seat: how the learner is started, made by one rename; the shim waits for it. A shell reads it. Its first line
is ``# <id>``; each start has another id, and one container may be told to start its learner more than once."""
TAKEN = "taken"
"""In the seat: the id of the start whose `go` the shim has read, so that it can be removed."""
BELL = "bell"
"""In the seat: a pipe, on which the shim waits; a line in it means that there is news in the seat."""
OUTPUT = "output"
"""In the seat: a pipe; what the learner prints goes into it."""
BEGUN = "begun"
"""In the seat: process id of the shim, as the pod sees it; the line is whole once it has its end."""
ENDED = "ended"
"""In the seat: one line, whole once it has its end: the id of the start, the exit status that the shim saw, and how
many processes of its container the kernel had killed for memory, before and after (-1 = not known)."""
DONE = "done"
"""In the seat: made by one rename when results are stored; has the exit status with which the shim ends then."""
TERMINATING = "terminating"
"""In the seat: made by the preStop hook of the learner's container: the pod is being deleted."""

ANNOTATIONS = "ffdl-batch"
"""Prefix of our labels, annotations and finalizers."""
TIME_LIMIT = f"{ANNOTATIONS}/time-limit-s"
"""The annotation of a pod with what its job may run for: its own deadline is much later."""
JOB_LABEL = f"{ANNOTATIONS}/job"
ATTEMPT_LABEL = f"{ANNOTATIONS}/attempt"
FINALIZER = f"{ANNOTATIONS}/final-word"


NO_BASH = "this image has no bash"
"""Part of what a learner's container says whose image lacks it."""


class PodAnnotation(str, Enum):
    """Annotations (behind :data:`ANNOTATIONS`) that the daemon sets on running pods; each is a file in the pod."""

    CONTROL = "control"
    """The attempt's ``control.json``, as it is."""
    SIBLINGS = "siblings"
    """What the pods' controllers said: JSON, file -> text, as events files; a long one is packed (:func:`pack`)."""
    RESEND = "resend"
    """JSON, file -> offset: from there on the daemon has it not."""
    SIGNAL = "signal"
    """``<number> <name>``: the latest signal that was asked for; each number once."""
    LOOK = "look"
    """JSON, :func:`encode_look`: what somebody wants to see of the learners; each id once."""


class FrameKind(str, Enum):
    """What a line says about a file."""

    APPEND = "append"
    """Bytes at `offset` of a file that only grows."""
    CELL = "cell"
    """The whole content of a file that changes by rename; long ones in parts, `offset` and `size` say which."""
    LOG = "log"
    """Bytes of what a learner printed, `offset` counts all that it printed; `file` is ``logs/learner-<n>``."""
    SIZES = "sizes"
    """The snapshot, once a minute: `sizes` of all files that only grow and of logs."""
    ANSWER = "answer"
    """What was seen, :func:`encode_answer`; `file` is the look's id. Long ones in parts, as cells."""


@dataclass(frozen=True)
class Frame:
    """One line. `size` is that of the whole cell."""

    run: int
    n: int
    kind: FrameKind
    file: str = ""
    offset: int = 0
    data: bytes = b""
    size: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """A request to see something; `do` is TOP or STACK of :mod:`ffdl_batch.domain.launch.attach_protocol`."""

    id: str
    do: str
    learners: Tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """What was seen: the stacks as `text`, with the `status` of the command, or a `table` as the helper tells it.
    `refused` says why nothing was."""

    status: int = 0
    text: str = ""
    table: Optional[Mapping[str, Any]] = None
    refused: str = ""


def encode_look(look: Look) -> str:
    """The annotation's value."""
    return json.dumps({"id": look.id, "do": look.do, "learners": list(look.learners)}, sort_keys=True)


def decode_look(text: str) -> Look:
    """The inverse. Raises ValueError."""
    plain = parse_json(text)
    if not isinstance(plain, dict) or not isinstance(plain.get("learners"), list):
        raise ValueError(f"{text[:100]!r} is no look")
    return Look(str(plain.get("id", "")), str(plain.get("do", "")), tuple(int(one) for one in plain["learners"]))


def encode_answer(answer: Answer) -> bytes:
    """What is said of it, over all its lines."""
    plain = {"status": answer.status, "text": answer.text, "table": answer.table, "refused": answer.refused}
    return json.dumps(plain, separators=(",", ":")).encode("ascii")


def decode_answer(data: bytes) -> Answer:
    """The inverse. Raises ValueError."""
    plain = parse_json(data)
    table = plain.get("table")
    text, refused = str(plain.get("text", "")), str(plain.get("refused", ""))
    return Answer(int(plain.get("status", 1)), text, table if isinstance(table, dict) else None, refused)


def encode_frame(frame: Frame) -> str:
    """The line, without its end."""
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
    """The inverse; None of a line that is none of ours, or of a later release's kind."""
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
    """Parts of `data` whose lines are no longer than :data:`LINE_BYTES`, cut between characters where that can be."""
    start = 0
    while start < len(data):
        end = _between(data, start, start + _TEXT_BYTES)
        while _length(data[start:end]) > _TEXT_BYTES:
            end = _between(data, start, start + max(1, (end - start) // 2))
        yield data[start:end]
        start = end


def pack(text: str) -> str:
    """A request as an annotation has it: long ones compressed, because all annotations of a pod together have 256 KiB
    (kubernetes.io, "Annotations")."""
    if len(text) <= PLAIN_ANNOTATION_BYTES:
        return text
    return PACKED + base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def unpack(text: str) -> str:
    """The inverse. Raises ValueError."""
    if not text.startswith(PACKED):
        return text
    try:
        return zlib.decompress(base64.b64decode(text[len(PACKED) :])).decode("utf-8")
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error


_TEXT_BYTES = LINE_BYTES - 512
"""What a line has for bytes as they are written in it."""


def _between(data: bytes, start: int, end: int) -> int:
    """`end`, or up to three bytes before it, where a character begins there."""
    for place in range(end, max(start, end - 4), -1):
        if place >= len(data) or data[place] & 0xC0 != 0x80:
            return min(place, len(data))
    return end


def _length(data: bytes) -> int:
    try:
        return len(json.dumps(data.decode("utf-8")))
    except UnicodeDecodeError:
        return (len(data) + 2) // 3 * 4
