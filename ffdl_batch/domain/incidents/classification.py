"""Turns what is known of an abnormal end of an attempt into one incident. Pure.

The order of evidence; the first that applies decides:

1. A policy of the site. 2. What ended the attempt from outside and is no node's fault: preemption, the time limit, a
cancel, a requeue. 3. A node: lines of its health within a minute of the end, then the messages of the scheduler and the
controllers, then lasting faults, if the messages of the end match them (node_health). 4. Container and image; data and
stores; the network; other errors with a code of their own. 5. Memory, by the kernel's count; what the learner printed;
its signal; its exit code.

Of several learners the one that failed first decides, unless its log only reports that a peer was gone: clocks of nodes
differ, and a learner that loses its peer fails a moment after it. What a learner prints is its owner's claim. It may
classify this one incident, and never counts against a node: such an incident names none. Only findings of root's
program on the node, which such messages then confirm, count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from ffdl_batch.domain.incidents.incident import LINE_CHARS, LINES, Evidence, Incident, Origin
from ffdl_batch.domain.incidents.kinds import KINDS, UNKNOWN, kind_of
from ffdl_batch.domain.incidents.log_signatures import AFTERWORDS, Raised, Sign, read_signs
from ffdl_batch.domain.incidents.node_health import HEALTH_S, HealthLine, explains, nodes_kind
from ffdl_batch.domain.launch.learner_text import describe_end
from ffdl_batch.domain.launch.network_level import is_unreachable
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.error_codes import NOT_STORED
from ffdl_batch.domain.outcome.observation import EndCause, Observation
from ffdl_batch.host.fast_dataclass import dataclass

_AROUND = 6
"""Lines of a log that are kept before the one that decides."""
_BY_CODE = {
    "C102": "user.model",
    "C103": "data.missing",
    "C105": "user.dependency",
    "C106": "user.resources",
    "C107": "user.image",
    "C202": "user.memory",
    "C204": "user.storage",
    "C205": "user.results",
    "C206": "user.idle_gpus",
    "S100": "user.resources",
    "S101": "platform.submission",
    "S103": "container.image_missing",
    "S105": "container.runtime",
    "S106": "platform.controller_died",
    "S107": "platform.network",
    "S108": "node.devices",
    "S110": "node.failed",
    "S200": "platform.submission",
    "S210": "platform.submission",
    "S301": "user.model",
    "S302": "data.missing",
    "S303": "platform.storing",
    "S305": "platform.storing",
    "S306": "platform.staging",
}
_BY_CLASS = {
    "credentials": "data.credentials",
    "missing": "data.missing",
    "full": "data.disk_full",
    "network": "data.network",
    "corrupt": "data.corrupt",
    "library": "platform.staging",
    "internal": "platform.staging",
}
"""Fault classes of the staging program."""
_DATA_CODES = frozenset({"C103", "S302", "S303", "S305"})
_NO_SPACE = ("no space left", "disk quota")
"""What the system says of a file on a full disk."""
_DATA_PHRASES = (
    ("data.disk_full", (*_NO_SPACE, "is full", "not enough room", "enough space")),
    ("data.credentials", ("credential", "access denied", "accessdenied", "forbidden", "refuses the", "secret")),
    ("data.corrupt", ("checksum", "digest", "is not what", "corrupt")),
    ("data.network", ("does not answer", "timed out", "connection", "unreachable")),
)
"""Phrases in a message about a store that show the class of the fault, if the staging program did not report it."""
_LEARNERS_OWN = frozenset({"C201", "C202"})
_ON_NODES = frozenset({"C103", "S103", "S105", "S301", "S302", "S303", "S305", "S306"})
"""Error codes of what controllers do with files on nodes: their messages quote the system's."""
_LASTING = 5
"""So many lasting findings are evidence even if they explain nothing."""
_MORE = 12
"""CUDA and NCCL explain their exceptions in so many lines."""
_OUTSIDE: dict[EndCause, str] = {
    EndCause.PREEMPTED: "scheduler.preempted",
    EndCause.TIMEOUT: "scheduler.time_limit",
    EndCause.REVOKED: "scheduler.ended",
    EndCause.NO_IMAGE: "container.image_missing",
}


@dataclass(frozen=True, slots=True)
class Printed:
    """A line of a learner's log."""

    text: str
    at: float | None = None
    """Seconds since the epoch; None = not known."""


@dataclass(frozen=True, slots=True)
class LearnerEnd:
    """How one learner failed by itself, and the end of its log."""

    learner: int
    at: float
    exit_code: int | None = None
    exit_signal: int | None = None
    out_of_memory: bool = False
    node: str = ""
    """Its host; "" = not known."""
    log: Sequence[Printed] = ()


@dataclass(frozen=True, slots=True)
class PolicyHit:
    """A policy of the site whose expression matched a line of the log."""

    policy: str
    kind: str
    line: Evidence
    learner: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of one abnormal end. No request and no drill ended the attempt."""

    job_id: str
    attempt: int
    episode: str
    """Of the incident."""
    at: float
    code: str = "000"
    """Error code of the job; so is `message` its message."""
    message: str = ""
    fault_class: str = ""
    """The staging program's class of a failed transfer."""
    why: Interruption | None = None
    """What interrupted the attempt; None = a failure that no next attempt follows."""
    seen: Observation | None = None
    """What the scheduler reports; None = nothing."""
    requeued: bool = False
    """Whether the scheduler itself started it again."""
    cancelled: bool = False
    """Whether it was cancelled in the scheduler."""
    nodes: tuple[str, ...] = ()
    """All nodes of the attempt."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes that made it fail."""
    silent: bool = False
    """Whether `failed_nodes` did not report any more."""
    learners: Sequence[LearnerEnd] = ()
    """Learners that failed by themselves, first ones first."""
    health: Sequence[HealthLine] = ()
    lost_gpu_s: float = 0.0
    has_gpus: bool = True
    """Whether it had GPUs."""
    refused: bool = False
    """Whether the scheduler answered that it will never accept such a request."""


@dataclass(frozen=True, slots=True)
class _Found:
    kind: str
    message: str = ""
    evidence: tuple[Evidence, ...] = ()
    nodes: tuple[str, ...] | None = None
    """None = all of the attempt's."""
    learner: int = 0


@dataclass(frozen=True, slots=True)
class _Cause:
    """The learner that failed first by itself, and what its log shows."""

    end: LearnerEnd
    sign: Sign | None = field(default=None)


def classify(ended: Ended, policy: PolicyHit | None = None) -> Incident:
    """Return the incident of this end."""
    found = _by_policy(policy) or _outside(ended) or _by_node(ended) or _by_lasting(ended)
    found = found or _by_code(ended) or _by_learner(ended) or _Found(UNKNOWN)
    evidence = (*found.evidence, *_message_evidence(ended), *_lasting(ended, found.kind))
    return Incident(
        ended.job_id,
        ended.attempt,
        ended.episode,
        found.kind,
        ended.at,
        ended.code,
        (found.message or ended.message or kind_of(found.kind).title)[:LINE_CHARS],
        ended.nodes if found.nodes is None else found.nodes,
        found.learner,
        tuple(dict.fromkeys(evidence))[:LINES],
        0.0 if ended.code in NOT_STORED else ended.lost_gpu_s,
    )


def _by_policy(hit: PolicyHit | None) -> _Found | None:
    if hit is None:
        return None
    said = f"{hit.line.text} (policy {hit.policy})"
    nodes = hit.nodes if kind_of(hit.kind).origin is Origin.NODE else None
    return _Found(hit.kind, said, (hit.line,), nodes, hit.learner)


def _outside(ended: Ended) -> _Found | None:
    """Return what ended it from outside; None if a node or a learner did."""
    end = ended.seen.end if ended.seen is not None else None
    if ended.why is Interruption.TIMEOUT or ended.code == "C203":
        return _Found("scheduler.time_limit")
    if ended.requeued and ended.why is not Interruption.NODE_FAILURE and ended.why is not Interruption.FAILURE:
        is_preempted = ended.seen is not None and end is EndCause.PREEMPTED
        return _Found("scheduler.preempted" if is_preempted else "scheduler.requeued")
    if ended.why is Interruption.PREEMPTION or ended.code == "S111":
        return _Found("scheduler.preempted")
    if ended.cancelled:
        return _Found("scheduler.cancelled_by_others")
    if ended.code == "S112":
        return _Found(_OUTSIDE.get(end, "scheduler.lost") if end is not None else "scheduler.lost")
    return None


def _by_node(ended: Ended) -> _Found | None:
    now = [line for line in ended.health if not line.lasts and abs(line.at - ended.at) <= HEALTH_S]
    near = [(line, kind) for line in now if (kind := nodes_kind(line.kind))]
    if near:
        heaviest = max(near, key=lambda one: KINDS[one[1]].weight)[1]
        lines_of_kind = [line for line, kind in near if kind == heaviest]
        nodes = tuple(dict.fromkeys(line.node for line in lines_of_kind))
        return _Found(heaviest, lines_of_kind[0].sentence, tuple(line.evidence for line in lines_of_kind), nodes)
    end = ended.seen.end if ended.seen is not None else None
    if ended.code == "S108":
        return _Found("node.devices", nodes=ended.failed_nodes or ended.nodes)
    if ended.silent:
        return _Found("node.silent", nodes=ended.failed_nodes)
    if end is EndCause.NODE_FAIL or ended.code == "S110":
        return _Found("node.failed", nodes=ended.failed_nodes or _only(ended.nodes))
    if ended.requeued and ended.why is Interruption.NODE_FAILURE and ended.code in ("000", "S106"):
        return _Found("node.failed", nodes=ended.failed_nodes or _only(ended.nodes))
    return None


def _by_lasting(ended: Ended) -> _Found | None:
    """Return a lasting fault of the node, if the messages of the end match it."""
    last = [line for line in ended.health if line.lasts and line.at <= ended.at + HEALTH_S]
    if not last:
        return None
    there: tuple[str, ...]
    words: tuple[str, ...]
    quoted: tuple[Evidence, ...] = ()
    learner = 0
    if ended.code in _ON_NODES:
        there, words = _named(ended), (ended.message,)
    elif (cause := _cause(ended)) is not None and ended.code != "C202":
        there, words = _only((cause.end.node,)), _last_output(cause)
        quoted, learner = _quoted(cause.end, cause.sign), cause.end.learner
    else:
        return None
    guilty = [line for line in last if line.node in there and explains(line, words, has_gpus=ended.has_gpus)]
    if not guilty:
        return None
    heaviest = max((nodes_kind(line.kind) for line in guilty), key=lambda kind: KINDS[kind].weight)
    lines_of_kind = [line for line in guilty if nodes_kind(line.kind) == heaviest]
    lines = tuple(line.evidence for line in lines_of_kind[:_LASTING])
    return _Found(heaviest, lines_of_kind[0].sentence, (*lines, *quoted), (lines_of_kind[0].node,), learner)


def _named(ended: Ended) -> tuple[str, ...]:
    """Return the nodes that the message names; if the attempt has only one node, that one."""
    words = {word.strip(".,:;()'\"") for word in ended.message.split()}
    return tuple(node for node in ended.nodes if node in words) or _only(ended.nodes)


def _last_output(cause: _Cause) -> tuple[str, ...]:
    """Return what the learner printed about its end: its last exception, or without one its last lines. Nothing if that
    has a cause of its own: no memory, no space, no access, a peer that was gone."""
    end, sign = cause.end, cause.sign
    if end.out_of_memory:
        return ()
    lines = tuple(line.text for line in end.log)
    if sign is None or not _is_its_end(end, sign) or Raised(sign.text, sign.line).is_launchers:
        return lines[-AFTERWORDS:]
    if sign.is_victims or sign.kind not in ("user.traceback", "node.gpu", "node.disk"):
        return ()
    goes_on = any(word in sign.text.lower() for word in ("cuda", "nccl", "nvml", "hip"))
    return (sign.text, *lines[sign.line + 1 : sign.line + 1 + _MORE]) if goes_on else (sign.text,)


def _lasting(ended: Ended, kind: str) -> tuple[Evidence, ...]:
    """Return lasting faults of the nodes, for people to judge; none if the scheduler ended the attempt."""
    if kind_of(kind).origin is Origin.SCHEDULER:
        return ()
    last = sorted((line for line in ended.health if line.lasts), key=lambda line: not line.drains)
    return tuple(line.evidence for line in last[:_LASTING])


def _only(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the node of an attempt that has one; of several it is not known which one it was."""
    return nodes if len(nodes) == 1 else ()


def _by_code(ended: Ended) -> _Found | None:
    if ended.code in _LEARNERS_OWN or ended.code not in _BY_CODE:
        return None
    end = ended.seen.end if ended.seen is not None else None
    if ended.code == "S105" and end is EndCause.NO_IMAGE and not is_unreachable(ended.message):
        return _Found("container.image_missing")
    if ended.code == "S101" and ended.refused:
        return _Found("user.request")
    kind = _BY_CODE[ended.code]
    if ended.code in _DATA_CODES:
        kind = _BY_CLASS.get(ended.fault_class) or _by_message(ended.message, kind)
    if kind == "container.runtime":
        if any(words in ended.message.lower() for words in _NO_SPACE):
            kind = "data.disk_full"
        return _Found(kind, nodes=ended.failed_nodes or _only(ended.nodes))
    return _Found(kind)


def _by_message(message: str, otherwise: str) -> str:
    said = message.lower()
    if is_unreachable(message):
        return "data.network"
    return next((kind for kind, words in _DATA_PHRASES if any(word in said for word in words)), otherwise)


def _by_learner(ended: Ended) -> _Found | None:
    cause = _cause(ended)
    if cause is None:
        if ended.code == "C202":
            return _Found("user.memory")
        if ended.code != "C201":
            return None
        seen = ended.seen
        return _Found("user.signal" if seen is not None and seen.exit_signal else "user.exit")
    end, sign = cause.end, cause.sign
    lines = _quoted(end, sign)
    if end.out_of_memory or ended.code == "C202":
        return _Found("user.memory", "", lines, _only((end.node,)) if end.node else None, end.learner)
    how = describe_end(end.exit_code, end.exit_signal)
    nodes = (end.node,) if end.node else ended.nodes
    if sign is not None and _is_its_end(end, sign):
        is_claim = kind_of(sign.kind).origin is Origin.NODE
        return _Found(sign.kind, f"learner {end.learner}: {sign.text}", lines, () if is_claim else nodes, end.learner)
    killed = end.exit_signal is not None or (end.exit_code is not None and end.exit_code > 128)
    kind = "user.signal" if killed and "SIG" in how else "user.exit"
    return _Found(kind, f"learner {end.learner} {how}", lines, nodes, end.learner)


def _is_its_end(end: LearnerEnd, sign: Sign) -> bool:
    """Return whether the log's sign explains how the learner ended: Python exits with status 1 after an exception, and
    a shell or a launcher may change that. A KILL or a crash that followed a traceback is not its result."""
    if sign.kind == "user.traceback" and end.exit_signal is not None:
        return False
    return not (sign.kind == "user.traceback" and end.exit_code in (134, 135, 136, 137, 139))


def _cause(ended: Ended) -> _Cause | None:
    """Return the first learner that failed by itself, not because a peer was gone; if all report that, the first."""
    read = [_Cause(end, _sign(end, has_gpus=ended.has_gpus)) for end in ended.learners]
    starved = [one for one in read if one.end.out_of_memory]
    own = [one for one in read if one.sign is None or not one.sign.is_victims]
    return next(iter([*starved, *own, *read]), None)


def _sign(end: LearnerEnd, *, has_gpus: bool) -> Sign | None:
    """Return what the log shows. A learner without GPU cannot report a failed one, whatever its exceptions say."""
    sign = read_signs([line.text for line in end.log])
    is_of_gpu = sign is not None and sign.kind == "node.gpu"
    return replace(sign, kind="user.traceback") if sign is not None and is_of_gpu and not has_gpus else sign


def _quoted(end: LearnerEnd, sign: Sign | None) -> tuple[Evidence, ...]:
    """Return the deciding lines: of a traceback its innermost frame and its last line, and the lines before that."""
    source = f"learner-{end.learner}"
    last = sign.line + 1 if sign is not None else len(end.log)
    lines = end.log[max(0, last - _AROUND) : last]
    return tuple(Evidence(source, line.text, line.at) for line in lines if line.text.strip())


def _message_evidence(ended: Ended) -> tuple[Evidence, ...]:
    """Return the messages of the controllers and of the scheduler."""
    said = [Evidence("controller", ended.message, ended.at)] if ended.message else []
    if ended.seen is not None and ended.seen.end is not None:
        reason = f" ({ended.seen.reason})" if ended.seen.reason else ""
        said.append(Evidence("scheduler", f"{ended.seen.native_state}{reason}", ended.seen.ended_at))
    return tuple(said)
