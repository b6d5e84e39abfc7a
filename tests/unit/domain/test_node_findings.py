"""Lasting findings on nodes are blamed only for ends that match them; scores of nodes halve every fourteen days."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.incidents.classification import Ended, LearnerEnd, PolicyHit, Printed, classify
from ffdl_batch.domain.incidents.incident import Evidence, Incident, Origin
from ffdl_batch.domain.incidents.node_health import HealthLine
from ffdl_batch.domain.incidents.node_score import DAY_S, NodeScore, left_out, score_nodes, unreliable_nodes
from ffdl_batch.domain.incidents.site_settings import NodeRules
from ffdl_batch.domain.outcome.continuation import Interruption

AT = 500_000.0
GPU = HealthLine("n1", AT - DAY_S, "gpu", "Xid 79, GPU has fallen off the bus", "0000:3b:00", lasts=True, drains=True)
MOUNT = replace(GPU, kind="mount", text="/shared, nas:/x (nfs): Stale file handle", device="/shared")
DISK = replace(GPU, kind="disk", text="/dev/sdb on /scratch (ext4) has become read-only", device="/scratch")
ROOT = replace(DISK, device="/")
HEAD = ("Traceback (most recent call last):", '  File "a.py", line 1, in <module>')
NO_GPU = "RuntimeError: No CUDA GPUs are available"
NCCL = (
    "ncclUnhandledCudaError: Call to CUDA function failed.",
    "Last error:",
    "Cuda failure 100 'no CUDA-capable device is detected'",
)
STALE = "OSError: [Errno 116] Stale file handle: '/shared/a'"


def ended(*lines: str, finding: HealthLine = GPU, code: int | None = 1, signal: int | None = None) -> Ended:
    log = tuple(Printed(line, AT - 1) for line in lines)
    end = LearnerEnd(1, AT, code, signal, node="n1", log=log)
    return Ended("training-a", 1, "end-0", AT, "C201", nodes=("n1", "n2"), learners=(end,), health=(finding,))


def raised(sentence: str, finding: HealthLine, *more: str) -> Ended:
    return ended(*HEAD, sentence, *more, finding=finding)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("node.gpu", raised(NO_GPU, GPU)),
        ("node.gpu", raised("RuntimeError: No HIP GPUs are available", GPU)),
        ("node.gpu", raised("RuntimeError: HIP error: hipErrorNoDevice", GPU)),
        ("node.gpu", raised("RuntimeError: CUDA error: invalid device ordinal", GPU)),
        ("node.gpu", raised("RuntimeError: CUDA error: uncorrectable ECC error encountered", replace(GPU, kind="ecc"))),
        ("node.gpu", raised("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1", GPU, *NCCL)),
        ("node.gpu", ended("E0000 failed call to cuInit: CUDA_ERROR_NO_DEVICE")),
        ("node.gpu", ended("what(): CUDA error: unknown error", code=None, signal=6)),
        ("node.gpu", raised("subprocess.CalledProcessError: it failed", GPU, "GPU has fallen off the bus")),
        ("node.disk", raised(STALE, MOUNT)),
        ("node.disk", ended("cat: /shared/a: Input/output error", finding=MOUNT)),
        ("node.disk", raised("OSError: [Errno 30] Read-only file system: '/scratch/tmp/x'", DISK)),
        ("node.disk", ended("touch: cannot touch '/scratch/x': Read-only file system", finding=DISK)),
        ("node.disk", raised("OSError: [Errno 107] Transport endpoint is not connected: '/shared'", MOUNT)),
    ],
)
def test_classify_blames_node_when_error_matches_lasting_node_finding(kind: str, end: Ended) -> None:
    incident = classify(end)
    assert (incident.kind, incident.nodes, incident.learner) == (kind, ("n1",), 1)
    assert "lasts since 1970-01-0" in incident.message
    assert incident.evidence[0].source == "health n1"
    assert "learner-1" in {one.source for one in incident.evidence}


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("user.exit", ended("done", code=3)),
        # It would speak for any end otherwise; what began just now is told as a finding of now as well.
        ("user.exit", ended("done", code=3, finding=replace(GPU, at=AT - 10))),
        ("user.signal", ended("done", code=None, signal=11)),
        ("user.traceback", raised("ValueError: boom", GPU)),
        ("user.traceback", raised("ValueError: boom", GPU, "Exception ignored: no CUDA-capable device is detected")),
        ("user.traceback", raised("RuntimeError: CUDA error: device-side assert triggered", GPU)),
        ("user.traceback", raised("RuntimeError: CUDA error: an illegal memory access was encountered", GPU)),
        ("user.traceback", raised("AssertionError: Torch not compiled with CUDA enabled", GPU)),
        ("user.traceback", raised("RuntimeError: CUDA error: unknown error; Connection closed by peer", GPU)),
        ("user.cuda_oom", raised("torch.OutOfMemoryError: CUDA out of memory.", GPU)),
        ("data.disk_full", raised("OSError: [Errno 28] No space left on device: '/scratch/x'", DISK)),
        ("user.traceback", raised("FileNotFoundError: [Errno 2] No such file or directory: '/shared/a'", MOUNT)),
        ("user.traceback", raised("OSError: [Errno 30] Read-only file system: '/opt/x'", DISK)),
        ("user.traceback", raised("OSError: [Errno 30] Read-only file system: '/scratch2/x'", DISK)),
        ("user.traceback", raised("OSError: [Errno 30] Read-only file system: '/opt/x'", ROOT)),
        ("user.traceback", raised("OSError: [Errno 107] Transport endpoint is not connected", MOUNT)),
        ("user.traceback", raised(NO_GPU, MOUNT)),
        ("user.traceback", replace(raised(NO_GPU, GPU), has_gpus=False)),
        ("user.traceback", raised(NO_GPU, replace(GPU, node="n2"))),
        ("user.traceback", raised(NO_GPU, replace(GPU, drains=False))),
        ("user.traceback", raised(NO_GPU, replace(GPU, kind="memory"))),
        ("user.traceback", raised(NO_GPU, replace(GPU, at=AT + 90.0))),
        ("user.memory", replace(raised(NO_GPU, GPU), code="C202")),
    ],
)
def test_classify_keeps_user_incident_and_adds_finding_as_evidence_without_match(kind: str, end: Ended) -> None:
    incident = classify(end)
    assert incident.kind == kind
    assert "lasts since" not in incident.message
    assert end.health[0].evidence in incident.evidence


def test_classify_blames_node_only_if_its_learner_caused_the_failure() -> None:
    end = raised(NO_GPU, GPU)
    other = LearnerEnd(2, AT - 5, 1, node="n2", log=tuple(Printed(line) for line in (*HEAD, "ValueError: boom")))
    assert classify(replace(end, learners=(other, *end.learners))).kind == "user.traceback"
    victim = replace(other, log=tuple(Printed(line) for line in (*HEAD, "RuntimeError: Connection closed by peer")))
    assert classify(replace(end, learners=(victim, *end.learners))).nodes == ("n1",)


@pytest.mark.parametrize("why", [Interruption.TIMEOUT, Interruption.PREEMPTION])
def test_classify_prefers_scheduler_cause_and_policy_over_node_finding(why: Interruption) -> None:
    end = raised(NO_GPU, GPU)
    incident = classify(replace(end, why=why))
    assert incident.origin is Origin.SCHEDULER
    assert not [one for one in incident.evidence if one.source.startswith("health")]
    assert classify(replace(end, cancelled=True)).origin is Origin.SCHEDULER
    assert classify(end, PolicyHit("own", "user.own", Evidence("learner-1", "x"))).kind == "user.own"


@pytest.mark.parametrize(
    ("code", "message", "nodes", "kind"),
    [
        ("S302", "the data on node n1 cannot be read: [Errno 116] Stale file handle: '/shared'", ("n1", "n2"), "node"),
        ("S303", "store-results on n1: [Errno 5] Input/output error", ("n1", "n2"), "node"),
        ("S303", "store-results: [Errno 5] Input/output error", ("n1",), "node"),
        ("S105", "the image cannot be opened: Stale file handle", ("n1",), "node"),
        ("S302", "the data on node n2 cannot be read: [Errno 116] Stale file handle", ("n1", "n2"), "data"),
        ("S302", "[Errno 116] Stale file handle", ("n1", "n2"), "data"),
        ("S302", "data directory /shared/d does not exist on node n1", ("n1",), "data"),
        ("S106", "a controller died: Input/output error", ("n1",), "platform"),
    ],
)
def test_classify_blames_node_disk_when_controller_on_that_node_hits_stale_mount(
    code: str, message: str, nodes: tuple[str, ...], kind: str
) -> None:
    end = Ended("training-a", 1, "end-0", AT, code, message, nodes=nodes, health=(MOUNT,))
    incident = classify(end)
    assert incident.origin is Origin(kind)
    if kind == "node":
        assert (incident.kind, incident.nodes) == ("node.disk", ("n1",))


def test_classify_limits_health_evidence_and_lists_draining_findings_first() -> None:
    clocks = tuple(replace(GPU, kind="clock", text=f"off by {number} s", drains=False) for number in range(9))
    incident = classify(replace(ended("done", code=3), health=(*clocks, GPU)))
    told = [one.text for one in incident.evidence if one.source == "health n1"]
    assert len(told) == 5
    assert told[0] == GPU.evidence.text


NOW = 1_800_000_000.0
RULES = NodeRules(exclude_unreliable=True)


def fault(
    job: str, *nodes: str, kind: str = "node.failed", days: float = 0, attempt: int = 1, word: str = "end-0"
) -> Incident:
    return Incident(job, attempt, word, kind, NOW - days * DAY_S, nodes=nodes)


def test_node_score_halves_fault_weight_every_fourteen_days_and_caps_it_for_future_timestamp() -> None:
    (n1,) = score_nodes([fault("a", "n1"), fault("b", "n1", days=14), fault("c", "n1", days=28)], NOW)
    assert n1.score == pytest.approx(1.75)
    assert (n1.kinds, n1.last, n1.jobs) == ({"node.failed": 3}, NOW, 3)
    (ahead,) = score_nodes([fault("a", "n1", days=-1)], NOW)
    assert ahead.score == 1.0


def test_node_score_counts_attempt_once_by_heaviest_incident_and_only_node_faults_of_named_nodes() -> None:
    incidents = [fault("a", "n1"), fault("a", "n1", kind="node.gpu", word="end-1"), fault("a", "n1", attempt=2)]
    (n1,) = score_nodes(incidents, NOW)
    assert (n1.score, n1.jobs, n1.kinds) == (3.0, 1, {"node.failed": 2, "node.gpu": 1})
    others = [fault("a", "n1", kind="user.exit"), fault("b", "n3", "n2"), fault("c", kind="node.gpu")]
    assert [(one.node, one.score) for one in score_nodes(others, NOW)] == [("n2", 1.0), ("n3", 1.0)]


def score(node: str, value: float, hours_ago: float = 1.0) -> NodeScore:
    return NodeScore(node, value, {}, NOW - hours_ago * 3600)


def test_unreliable_nodes_need_score_at_threshold_and_recent_fault() -> None:
    scores = [score("a", 9), score("b", 4), score("c", 3.9), score("d", 50, hours_ago=25)]
    assert [one.node for one in unreliable_nodes(scores, RULES, NOW)] == ["a", "b"]
    assert unreliable_nodes(scores, NodeRules(), NOW) == []  # nobody wants it


@pytest.mark.parametrize(("nodes", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (20, 1), (21, 2), (100, 5)])
def test_node_exclusion_respects_share_limit_and_keeps_last_node(nodes: int, most: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    found = [score("elsewhere", 99), *(score(name, 10) for name in names)]
    assert [one.node for one in left_out(found, names, RULES)] == names[:most]
    assert left_out(found, names, NodeRules(exclude_unreliable=True, percent=0)) == []
