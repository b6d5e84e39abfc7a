"""Reads from the end of a learner's log why it failed. Pure; what a learner prints is its owner's claim.

A failure has one cause, and its log several messages: ranks that lost their peer, launchers that report their children,
exceptions that others were raised from. The last exception decides that is neither a victim's nor a launcher's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ffdl_batch.host.fast_dataclass import dataclass

AFTERWORDS = 60
"""So many lines may follow a traceback that ended the learner: messages of launchers and other ranks."""
_PREFIX = re.compile(r"(?:\s*(?:\[(?:default)?\d+\]:?\s?|\[rank\s?\d+\]:\s?|\d+:\s))+")
_TRACEBACK = re.compile(r"(?P<margin>[\s|+]*)(?:Exception Group )?Traceback \(most recent call last\):\s*")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:\.<locals>\.\w+)?(?:: .*|:)?")
_GROUP = re.compile(r"(?:BaseExceptionGroup|ExceptionGroup|[\w.]*ExceptionGroup)\b")
_LAUNCHERS = re.compile(
    r"(?:torch\.distributed\.elastic\.multiprocessing\.(?:errors\.ChildFailedError|api\.SignalException)"
    r"|subprocess\.CalledProcessError|torch\.multiprocessing\.spawn\.Process(?:Raised|Exited)Exception)\b"
)
_CUDA_OOM = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|\b(?:torch\.cuda|torch)\.OutOfMemoryError"
    r"|OOM when allocating tensor|RESOURCE_EXHAUSTED: Out of memory|XPU out of memory"
)
_VICTIM = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset|refused|aborted) by (?:remote )?peer|Connection reset by peer"
    r"|Broken pipe|ncclRemoteError|NCCL communicator was aborted|remote process (?:has )?exited"
    r"|Connection closed by (?:remote )?peer|ncclSystemError.*(?:peer|socket)|Socket Timeout|DistNetworkError"
    r"|DistStoreError|watchdog (?:thread|got stuck|caught collective)|Watchdog caught collective operation timeout"
    r"|gloo/transport|Application timeout caused pair closure|BrokenPipeError|ConnectionResetError"
    r"|ConnectionRefusedError|ConnectionAbortedError|DistBackendError.*(?:peer|remote|abort)|recvValue failed"
    r"|failed to recv, got 0 bytes|MPI_ABORT was invoked"
)
_SIGNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("user.cuda_oom", _CUDA_OOM),
    (
        "node.gpu",
        re.compile(
            r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable|NVLink .*error"
            r"|CUDA_ERROR_NVLINK_UNCORRECTABLE|GPU has fallen off the bus|hipErrorECCNotCorrectable"
        ),
    ),
    ("data.disk_full", re.compile(r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]")),
    ("node.disk", re.compile(r"\[Errno 5\] |\[Errno 116\] |Stale file handle|Input/output error")),
    (
        "data.credentials",
        re.compile(
            r"NoCredentialsError|PartialCredentialsError|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken"
            r"|An error occurred \((?:AccessDenied|403|InvalidToken)\)|DefaultCredentialsError"
        ),
    ),
    ("data.missing", re.compile(r"NoSuchBucket|NoSuchKey|An error occurred \(404\)")),
    ("user.memory", re.compile(r"MemoryError\b|DefaultCPUAllocator: (?:can't allocate|not enough) memory")),
)
"""Last lines of exceptions that show a kind more precise than a traceback; the first match decides."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a traceback ends with."""

    text: str
    line: int
    """Index of the line."""
    where: str = ""
    """Innermost frame of the traceback; "" = it has none."""
    leaf: str = ""
    """First exception of a group."""

    @property
    def is_victims(self) -> bool:
        """Whether it reports that another learner was gone."""
        return _VICTIM.search(self.text) is not None

    @property
    def is_launchers(self) -> bool:
        """Whether it reports a child that failed."""
        return _LAUNCHERS.match(self.text) is not None

    @property
    def sentence(self) -> str:
        """The traceback's last line; of a group with its first exception."""
        return f"{self.text}: {self.leaf}" if self.leaf else self.text


@dataclass(frozen=True, slots=True)
class Sign:
    """What a log shows."""

    kind: str
    text: str
    """The deciding line."""
    line: int
    where: str = ""
    """Where the exception was raised; "" = not known."""
    is_victims: bool = False
    """Whether it only reports that a peer was gone."""


def read_signs(lines: Sequence[str]) -> Sign | None:
    """Return what the last lines of a failed learner's log show about its end; None if they explain nothing."""
    plain = [bare(line) for line in lines]
    late = [one for one in tracebacks(plain) if len(plain) - one.line <= AFTERWORDS]
    own = [one for one in late if not one.is_victims and not one.is_launchers]
    raised = own[-1] if own else late[-1] if late else None
    if raised is not None and not raised.is_launchers:
        kind = "user.traceback" if raised.is_victims else _kind_of(raised.sentence)
        return Sign(kind, raised.sentence, raised.line, raised.where, raised.is_victims)
    said = _without_traceback(plain)
    if said is not None or raised is None:
        return said
    return Sign("user.traceback", raised.sentence, raised.line, raised.where)


def tracebacks(lines: Sequence[str]) -> list[Raised]:
    """Return the exception that each chain of tracebacks ends with, in order."""
    found: list[Raised] = []
    number = 0
    while number < len(lines):
        match = _TRACEBACK.fullmatch(lines[number])
        if match is None or (match["margin"].strip(" ") and "Group" not in lines[number]):
            number += 1
            continue
        raised = _read_one(lines, number)
        number = number + 1 if raised is None else raised.line + 1
        if raised is not None:
            found.append(raised)
    return found


def bare(line: str) -> str:
    """Return the line without the prefix that launchers write before the lines of their ranks."""
    match = _PREFIX.match(line)
    return line[match.end() :] if match and match.end() else line


def _read_one(lines: Sequence[str], start: int) -> Raised | None:
    """Return the exception of the traceback that begins at `start`: the first line after its frames that is not
    indented."""
    is_group = "Exception Group" in lines[start]
    where = ""
    for number in range(start + 1, len(lines)):
        text = lines[number]
        if is_group:
            text = text.lstrip(" ").removeprefix("|").removeprefix(" ")
        if text.lstrip().startswith("File "):
            where = text.strip()
        elif text and not text[0].isspace():
            if _EXCEPTION.fullmatch(text) is None:
                return None
            leaf = _leaf(lines, number) if is_group and _GROUP.match(text) else ""
            return Raised(text.rstrip(), number, where, leaf)
    return None


def _leaf(lines: Sequence[str], start: int) -> str:
    """Return the first exception in a group that is not a group itself."""
    for text in lines[start + 1 :]:
        said = text.lstrip(" |")
        if not text.lstrip().startswith(("|", "+")):
            return ""
        if said.startswith(("+", "File ")) or _TRACEBACK.fullmatch(text) or _GROUP.match(said):
            continue
        name, colon, _ = said.partition(":")
        if colon and re.fullmatch(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\w*", name):
            return said.rstrip()
    return ""


def _kind_of(sentence: str) -> str:
    return next((kind for kind, sign in _SIGNS if sign.search(sentence)), "user.traceback")


def _without_traceback(lines: Sequence[str]) -> Sign | None:
    """Return what programs other than Python print in a line of their own."""
    first = max(0, len(lines) - AFTERWORDS)
    for number in range(len(lines) - 1, first - 1, -1):
        if _CUDA_OOM.search(lines[number]):
            return Sign("user.cuda_oom", lines[number].strip(), number)
    return None
