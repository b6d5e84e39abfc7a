"""Each kind of incident from what is known of an end; what speaks first; and whom a learner's words cannot touch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.incidents.classification import Ended, LearnerEnd, PolicyHit, Printed, classify
from ffdl_batch.domain.incidents.incident import LINE_CHARS, LINES, Evidence, Origin
from ffdl_batch.domain.incidents.kinds import KINDS, UNKNOWN, is_kind_name, kind_of
from ffdl_batch.domain.incidents.node_health import HEALTH_S, HealthLine, nodes_kind
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.domain.outcome.error_codes import FAULTS
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase

AT = 1000.0
BASE = Ended("training-0a1b2c3d4", 1, "end-0", AT, nodes=("n1", "n2"), lost_gpu_s=60.0)
OWN = replace(BASE, code="C201")


def seen(end: EndCause, reason: str = "", signal: int | None = None) -> Observation:
    return Observation(Phase.ENDED, end.name, end, exit_signal=signal, reason=reason, ended_at=AT)


def log(*lines: str) -> tuple[Printed, ...]:
    return tuple(Printed(line, AT - 1) for line in lines)


def learner(number: int, at: float = AT, code: int | None = 1, *lines: str, node: str = "n1") -> LearnerEnd:
    return LearnerEnd(number, at, code, node=node, log=log(*lines))


TRACE = ("Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "ValueError: boom")
PEER = (*TRACE[:1], '  File "a.py", line 9, in f', "RuntimeError: Connection closed by peer [::1]")
XID = HealthLine("n2", AT - 20, "xid", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", "0000:3b:00")


def of_learner(**changes: object) -> Ended:
    end = replace(LearnerEnd(1, AT, 3, node="n1"), **changes)  # type: ignore[arg-type]
    return replace(OWN, learners=(end,))


def staged(fault_class: str, code: str = "S302") -> Ended:
    return replace(BASE, code=code, fault_class=fault_class, message="loading data failed")


CASES: list[tuple[str, Ended]] = [
    ("user.exit", of_learner(exit_code=3)),
    ("user.exit", OWN),
    ("user.exit", of_learner(exit_code=255)),
    ("user.signal", of_learner(exit_code=None, exit_signal=11)),
    ("user.signal", of_learner(exit_code=139)),
    ("user.signal", replace(OWN, seen=seen(EndCause.FAILURE, signal=9))),
    ("user.traceback", of_learner(exit_code=1, log=log(*TRACE))),
    ("user.signal", of_learner(exit_code=None, exit_signal=11, log=log(*TRACE, "going on"))),
    ("user.cuda_oom", of_learner(exit_code=1, log=log(*TRACE[:2], "torch.OutOfMemoryError: CUDA out of memory."))),
    ("user.cuda_oom", of_learner(exit_code=134, log=log("CUDA error: out of memory"))),
    ("user.memory", of_learner(exit_code=137, out_of_memory=True, log=log(*TRACE))),
    ("user.memory", replace(BASE, code="C202", seen=seen(EndCause.OUT_OF_MEMORY))),
    ("user.storage", replace(BASE, code="C204", seen=seen(EndCause.OUT_OF_STORAGE))),
    ("user.results", replace(BASE, code="C205", message="store-results on n1: [Errno 13] Permission denied: '/r/d'")),
    ("user.results", staged("unreadable", "C205")),
    ("user.idle_gpus", replace(BASE, code="C206", message="the job was ended: each GPU on n1 was busy for less")),
    ("user.model", replace(BASE, code="S301", message="load-model on n1: not a zip file")),
    ("user.resources", replace(BASE, code="S100")),
    ("user.request", replace(BASE, code="S101", refused=True)),
    ("user.dependency", replace(BASE, code="C105")),
    ("user.image", replace(BASE, code="C107")),
    ("data.credentials", staged("credentials", "C103")),
    ("data.credentials", replace(BASE, code="C103", message="the secret s3-key is not there any more")),
    ("data.missing", staged("missing", "C103")),
    ("data.missing", replace(BASE, code="S302", message="data directory /d does not exist on node n1")),
    ("data.disk_full", staged("full")),
    ("data.disk_full", replace(BASE, code="S303", message="store-results on n1: [Errno 28] No space left on device")),
    ("data.network", staged("network")),
    ("data.network", replace(BASE, code="S302", message="mounting x on n1: lookup s3.example: no such host")),
    ("data.corrupt", staged("corrupt")),
    ("platform.staging", staged("internal", "S306")),
    ("platform.storing", replace(BASE, code="S303", message="results could not be stored")),
    ("platform.storing", replace(BASE, code="S305")),
    ("scheduler.preempted", replace(BASE, code="S111", why=Interruption.PREEMPTION)),
    ("scheduler.preempted", replace(BASE, requeued=True, why=Interruption.PREEMPTION, seen=seen(EndCause.PREEMPTED))),
    ("scheduler.requeued", replace(BASE, requeued=True, why=Interruption.PREEMPTION)),
    ("scheduler.requeued", replace(BASE, requeued=True)),
    ("scheduler.time_limit", replace(BASE, code="C203", why=Interruption.TIMEOUT)),
    ("scheduler.time_limit", replace(BASE, requeued=True, why=Interruption.TIMEOUT)),
    ("scheduler.cancelled_by_others", replace(BASE, cancelled=True, seen=seen(EndCause.CANCELLED))),
    ("scheduler.ended", replace(BASE, code="S112", seen=seen(EndCause.REVOKED))),
    ("scheduler.lost", replace(BASE, code="S112", why=Interruption.NODE_FAILURE)),
    ("node.failed", replace(BASE, code="S110", why=Interruption.NODE_FAILURE, seen=seen(EndCause.NODE_FAIL))),
    ("node.failed", replace(BASE, requeued=True, why=Interruption.NODE_FAILURE)),
    ("node.silent", replace(BASE, code="S110", why=Interruption.NODE_FAILURE, silent=True, failed_nodes=("n2",))),
    ("node.devices", replace(BASE, code="S108")),
    ("node.gpu", replace(OWN, health=(XID,), learners=(learner(1, AT, 1, *TRACE),))),
    ("node.disk", replace(BASE, code="S106", health=(replace(XID, kind="ext4"),))),
    ("node.memory_error", replace(OWN, health=(replace(XID, kind="edac"),))),
    ("node.clock", replace(OWN, health=(replace(XID, kind="clock"),))),
    ("node.slurmd", replace(BASE, code="S110", seen=seen(EndCause.NODE_FAIL), health=(replace(XID, kind="slurmd"),))),
    ("container.image_missing", replace(BASE, code="S103")),
    ("container.image_missing", replace(BASE, code="S105", seen=seen(EndCause.NO_IMAGE))),
    ("container.runtime", replace(BASE, code="S105")),
    (
        "data.disk_full",
        replace(
            BASE, code="S105", message="learner 1 cannot be started on n1: [Errno 28] No space left on device: '/tmp/x'"
        ),
    ),
    (
        "data.disk_full",
        replace(
            BASE,
            code="S105",
            message="the container runtime failed on n1: FATAL: mkdir /scratch/x: disk quota exceeded",
        ),
    ),
    (
        "container.runtime",
        replace(BASE, code="S105", message="the container runtime failed on n1: FATAL: no space for it"),
    ),
    (
        "container.runtime",
        replace(BASE, code="S105", message="lookup r.io: no such host", seen=seen(EndCause.NO_IMAGE)),
    ),
    ("platform.controller_died", replace(BASE, code="S106", why=Interruption.NODE_FAILURE)),
    ("platform.network", replace(BASE, code="S107", why=Interruption.NODE_FAILURE)),
    ("platform.submission", replace(BASE, code="S101")),
    ("platform.unknown", replace(BASE, code="S104")),
    ("platform.unknown", BASE),
]


@pytest.mark.parametrize(("kind", "ended"), CASES)
def test_classify_assigns_kind_origin_and_code_to_each_end(kind: str, ended: Ended) -> None:
    incident = classify(ended)
    assert (incident.kind, incident.episode, incident.code) == (kind, "end-0", ended.code)
    assert incident.message
    assert incident.origin is Origin(kind.partition(".")[0])


def test_classify_cases_cover_every_incident_kind_and_error_code() -> None:
    beside = {"user.hang", "user.straggler"}  # they end nothing
    assert {kind for kind, _ in CASES} | beside == set(KINDS)
    given = set(FAULTS) - {"S102", "S304", "C101", "C104", "S104"}
    assert [code for code in sorted(given) if classify(replace(BASE, code=code)).kind == UNKNOWN] == []


def test_classify_prefers_site_policy_over_health_finding() -> None:
    line = Evidence("learner-1", "mlx5: link down", AT)
    hit = PolicyHit("ib-link", "node.infiniband", line, 1, ("n2",))
    incident = classify(replace(OWN, health=(XID,)), hit)
    assert (incident.kind, incident.nodes, incident.learner) == ("node.infiniband", ("n2",), 1)
    assert incident.message == "mlx5: link down (policy ib-link)"
    assert incident.evidence[0] == line
    assert (kind_of("node.infiniband").title, kind_of("node.infiniband").weight) == ("infiniband", 0.0)


def test_classify_names_node_and_device_of_health_finding() -> None:
    incident = classify(replace(OWN, health=(XID, replace(XID, node="n1", kind="clock", text="off by 9 s"))))
    assert (incident.kind, incident.nodes) == ("node.gpu", ("n2",))
    assert incident.message == f"n2 0000:3b:00: {XID.text}"
    assert incident.evidence[0] == Evidence("health n2", XID.text, AT - 20)


@pytest.mark.parametrize("late_s", [-HEALTH_S - 1, HEALTH_S + 1])
def test_classify_ignores_health_finding_outside_time_window(late_s: float) -> None:
    late = replace(OWN, health=(replace(XID, at=AT + late_s),), learners=(learner(1, AT, 1, *TRACE),))
    assert classify(late).kind == "user.traceback"


@pytest.mark.parametrize("why", [Interruption.TIMEOUT, Interruption.PREEMPTION])
def test_classify_blames_scheduler_despite_node_health_finding(why: Interruption) -> None:
    assert classify(replace(BASE, why=why, health=(XID,))).origin is Origin.SCHEDULER


@pytest.mark.parametrize(("name", "kind"), [("sunspots", ""), ("user.exit", ""), ("node.gpu", "node.gpu")])
def test_nodes_kind_accepts_only_known_node_findings(name: str, kind: str) -> None:
    assert nodes_kind(name) == kind


def test_classify_selects_first_learner_that_failed_by_itself() -> None:
    first, victim = learner(2, AT, 1, *TRACE, node="n2"), learner(1, AT - 0.5, 1, *PEER)
    incident = classify(replace(OWN, learners=(victim, first)))
    assert (incident.learner, incident.nodes, incident.message) == (2, ("n2",), "learner 2: ValueError: boom")
    assert [one.text for one in incident.evidence[:3]] == list(TRACE)
    alone = classify(replace(OWN, learners=(victim,)))
    assert (alone.learner, alone.kind) == (1, "user.traceback")


def test_classify_prefers_learner_killed_for_memory_over_earlier_crash() -> None:
    crashed = learner(1, AT - 1, 1, *TRACE)
    starved = replace(learner(2, AT, 137), out_of_memory=True)
    assert classify(replace(OWN, code="C202", learners=(crashed, starved))).learner == 2


@pytest.mark.parametrize(
    ("words", "without_gpu"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "user.traceback"),
        ("RuntimeError: CUDA error: uncorrectable ECC error", "user.traceback"),
        ("E: GPU has fallen off the bus", "user.traceback"),
        ("OSError: [Errno 5] Input/output error", "node.disk"),
    ],
)
def test_classify_names_no_node_for_printed_error_and_no_gpu_fault_without_gpu(words: str, without_gpu: str) -> None:
    end = replace(OWN, learners=(learner(1, AT, 1, *TRACE[:2], words),))
    incident = classify(end)
    assert (incident.origin, incident.nodes) == (Origin.NODE, ())
    assert incident.kind == ("node.disk" if without_gpu == "node.disk" else "node.gpu")
    assert classify(replace(end, has_gpus=False)).kind == without_gpu


def test_classify_names_node_only_if_it_is_known_and_keeps_scheduler_reason_as_evidence() -> None:
    lost = replace(BASE, code="S110", seen=seen(EndCause.NODE_FAIL, "NodeDown"))
    assert classify(lost).nodes == ()
    assert classify(replace(lost, nodes=("n1",))).nodes == ("n1",)
    assert classify(replace(lost, failed_nodes=("n2",))).nodes == ("n2",)
    assert Evidence("scheduler", "NODE_FAIL (NodeDown)", AT) in classify(lost).evidence


def test_classify_limits_evidence_and_names_its_source() -> None:
    lines = tuple("x" * 1000 for _ in range(100))
    incident = classify(replace(OWN, message="m" * 1000, learners=(learner(1, AT, 3, *lines),)))
    assert len(incident.evidence) <= LINES
    assert len(incident.message) <= LINE_CHARS
    assert {one.source for one in incident.evidence} == {"learner-1", "controller"}


def test_classify_counts_no_lost_gpu_time_if_only_upload_failed() -> None:
    assert classify(replace(BASE, code="S303")).lost_gpu_s == 0.0
    assert classify(OWN).lost_gpu_s == 60.0


def test_incident_kinds_give_weight_only_to_node_faults() -> None:
    weighted = {kind.origin for kind in KINDS.values() if kind.weight}
    assert weighted == {Origin.NODE}
    assert all(kind.title and kind.cure and is_kind_name(kind.name) for kind in KINDS.values())


@pytest.mark.parametrize("name", ["", "user", "user.", "weather.rain", "user.Exit", "user.x y", "node." + "a" * 40])
def test_kind_of_returns_unknown_for_invalid_name(name: str) -> None:
    assert not is_kind_name(name)
    assert kind_of(name).name == UNKNOWN
