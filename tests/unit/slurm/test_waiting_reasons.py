"""Every word of Slurm's job reasons has its meaning, a sentence and an action."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.pending.explanation import Limit, Measure, Per, WaitKind
from ffdl_batch.domain.pending.reason_text import actions_of, sentence_of
from ffdl_slurm.pending.reasons import REASONS as TABLE
from ffdl_slurm.pending.reasons import read_limit, read_reason
from tests.captured import expected

WORDS = (Path(expected.__file__).parent / "job-reasons-26.05.txt").read_text().split()
"""`jsra` of src/common/job_state_reason.c, release 26.05.3, in its order; two entries have the word of another one."""
OLDER = ("FrontEndDown", "PowerNotAvail", "PowerReserved", "FeatureNotAvailable", "ReservationBad")
"""Of earlier releases back to 20.11, that 26.05 has no more."""


def test_read_reason_knows_every_slurm_reason_with_sentence_and_action() -> None:
    for word in (*WORDS, *OLDER):
        reason = read_reason(word)
        assert reason.kind is not WaitKind.OTHER, word
        assert reason.code == word
        assert (word in TABLE) != (reason.kind is WaitKind.LIMIT), word
        sentence, actions = sentence_of(reason), actions_of(reason)
        assert word == "None" or sentence.endswith(f"({word})")
        assert actions and all(len(action) >= 4 for action in actions), word


def test_captured_reason_list_has_all_reasons_of_release() -> None:
    assert len(set(WORDS)) == len(WORDS) == 216 and {"Resources", "QOSMaxGRESPerUser", "MpiPortsBusy"} <= set(WORDS)


@pytest.mark.parametrize(
    ("word", "limit"),
    [
        ("QOSMaxGRESPerUser", Limit("QOS", "GPUs or other GRES", Per.USER)),
        ("QOSGrpGRESRunMinutes", Limit("QOS", "GPUs or other GRES", Per.ALL, Measure.RUN_MINUTES)),
        ("AssocGrpCPUMinutesLimit", Limit("association", "CPUs", Per.ALL, Measure.MINUTES)),
        ("AssocGrpCpuLimit", Limit("association", "CPUs", Per.ALL)),
        ("AssocMaxJobsLimit", Limit("association", "jobs", Per.USER)),
        ("AssocMaxSubmitJobLimit", Limit("association", "jobs", Per.USER, Measure.SUBMITTED)),
        ("QOSMaxSubmitJobPerUserLimit", Limit("QOS", "jobs", Per.USER, Measure.SUBMITTED)),
        ("QOSMaxWallDurationPerJobLimit", Limit("QOS", "time", Per.JOB)),
        ("AssocMaxCpuMinutesPerJobLimit", Limit("association", "CPUs", Per.JOB, Measure.MINUTES)),
        ("MaxMemoryPerAccount", Limit("QOS", "memory", Per.ACCOUNT)),
        ("MaxGRESRunMinsPerUser", Limit("QOS", "GPUs or other GRES", Per.USER, Measure.RUN_MINUTES)),
        ("QOSMinCpuNotSatisfied", Limit("QOS", "CPUs", Per.JOB, least=True)),
        ("QOSMinGRES", Limit("QOS", "GPUs or other GRES", Per.JOB, least=True)),
        ("MaxMemPerLimit", Limit("partition", "memory", Per.NODE)),
        ("QOSMaxNodePerUserLimit", Limit("QOS", "nodes", Per.USER)),
        ("AssociationJobLimit", Limit("association", "jobs")),
        *((word, None) for word in ("Resources", "MaxPoweredUpNodes", "", "QOS", "Max", "QOSMaxGRESPerPlanet")),
    ],
)
def test_read_limit_parses_only_limit_reason_by_its_grammar(word: str, limit: Limit | None) -> None:
    assert read_limit(word) == limit


AWAY = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
SERVICED = "Reserved for maintenance"


@pytest.mark.parametrize(
    ("text", "kind", "word", "detail"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", WaitKind.NODES_AWAY, "ReqNodeNotAvail", "UnavailableNodes:n[1-3]"),
        (f"ReqNodeNotAvail, {SERVICED}", WaitKind.NODES_AWAY, "ReqNodeNotAvail", SERVICED),
        (AWAY, WaitKind.NODES_AWAY, AWAY, ""),
        ("(Priority)", WaitKind.PRIORITY, "Priority", ""),
        ("RaisedSignal:9(Killed)", WaitKind.ENDED, "RaisedSignal", "9(Killed"),
        ("launch failed requeued held", WaitKind.HELD_AFTER_FAILURES, "launch failed requeued held", ""),
        ("(launch_failed_requeued_held)", WaitKind.HELD_AFTER_FAILURES, "launch_failed_requeued_held", ""),
        ("job requeued in held state", WaitKind.HELD_BY_USER, "job requeued in held state", ""),
        ("something that a site's plugin says", WaitKind.OTHER, "something that a site's plugin says", ""),
        ("Priority of the third kind", WaitKind.OTHER, "Priority of the third kind", ""),
        ("", WaitKind.UNCONSIDERED, "None", ""),
    ],
)
def test_read_reason_splits_reason_and_detail(text: str, kind: WaitKind, word: str, detail: str) -> None:
    reason = read_reason(text)
    assert (reason.kind, reason.code, reason.detail) == (kind, word, detail)
