"""Pending reasons as sentences: one for each kind, limits with their figures, times as people write them."""

from __future__ import annotations

import time

import pytest

from ffdl_batch.domain.pending.evidence import (
    ahead_text,
    alternative_text,
    capacity_text,
    evidence_of,
    history_text,
    moment_text,
    trial_text,
)
from ffdl_batch.domain.pending.explanation import (
    Ahead,
    Alternative,
    Blocker,
    BlockerKind,
    Capacity,
    Explanation,
    Factor,
    Foretold,
    Limit,
    Measure,
    NodeAway,
    Per,
    Reason,
    WaitHistory,
    WaitKind,
)
from ffdl_batch.domain.pending.reason_text import SENTENCES, actions_of, limit_sentence, sentence_of, span_text

NOW = time.mktime((2027, 1, 20, 12, 0, 0, 0, 0, -1))


def test_pending_reason_sentences_cover_every_kind_with_actions() -> None:
    assert set(SENTENCES) == set(WaitKind) - {WaitKind.LIMIT}
    for kind, (sentence, actions) in SENTENCES.items():
        assert sentence[0].islower() and not sentence.endswith("."), kind
        assert actions and all(actions), kind


def test_pending_reason_sentence_appends_scheduler_reason() -> None:
    reason = Reason(WaitKind.NODES_AWAY, "ReqNodeNotAvail", "UnavailableNodes:n3")
    assert sentence_of(reason).endswith("(ReqNodeNotAvail: UnavailableNodes:n3)")
    assert sentence_of(Reason(WaitKind.UNCONSIDERED, "None")).endswith("round")


@pytest.mark.parametrize(
    ("limit", "sentence", "action"),
    [
        (Limit("QOS", "GPUs", Per.USER, name="high", most="4", used="3", asked="2"),
         "the QOS high has used up its GPUs a user: the limit is 4, 3 in use, it asks for 2",
         "wait until other jobs that count for it end, ask for fewer, or use another qos"),
        (Limit("QOS", "GPUs", Per.USER, name="high", most="1", used="0", asked="2"),
         "it asks for more GPUs than the QOS high gives a user: the limit is 1, 0 in use, it asks for 2",
         "it will never start like this: ask for less, or use another qos"),
        (Limit("association", "time", Per.JOB, most="60"),
         "it asks for more time than its association gives a job: the limit is 60 min",
         "it will never start like this: ask for less, or use another account"),
        (Limit("association", "CPUs", Per.ALL, Measure.MINUTES), "its association has used up its minutes of CPUs",
         "wait until the use of its association is reset, use another account or qos, or ask who runs the site "
         "for more"),
        (Limit("QOS", "GPUs", Per.JOB, least=True, most="2"),
         "its QOS takes no job with so little GPUs: the limit is 2",
         "ask for at least as much as its QOS wants, or use another one"),
    ],
)  # fmt: skip
def test_limit_sentence_gives_figures_and_action_for_each_limit_kind(limit: Limit, sentence: str, action: str) -> None:
    assert limit_sentence(limit) == sentence
    assert actions_of(Reason(WaitKind.LIMIT, "x", limit=limit)) == (action,)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (89, "89 s"), (90, "2 min"), (7200, "2 h"), (9000, "2.5 h"), (200_000, "2 days")]
)
def test_span_text_rounds_seconds_to_readable_unit(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("later_s", "text"),
    [
        (-100, "now"),
        (600, "at 12:10 (in 10 min)"),
        (2 * 86400, "on 2027-01-22 at 12:00"),
        (1700 * 365 * 86400, "when jobs without a time limit have ended, which cannot be predicted"),
    ],
)
def test_moment_text_prints_clock_time_date_or_unknown(later_s: float, text: str) -> None:
    assert moment_text(NOW + later_s, NOW) == text


def test_capacity_text_reports_free_gpus_fitting_nodes_and_unavailable_nodes() -> None:
    room = Capacity("main", "v100", 8, 1, 2, 0, 1, 2, (NodeAway("n3", "IDLE+DRAIN", "fan"),))
    assert capacity_text(room) == (
        "1 of 8 GPUs of type v100 in main is free; 0 of 2 nodes have room for 2 GPUs each, and it needs 1 node; not "
        "to be had: n3 (IDLE+DRAIN: fan)"
    )
    more = Capacity("main", "v100", 8, 1, 2, 0, 1, 2, (NodeAway("n3", "DOWN"),), 40)
    assert capacity_text(more).endswith("; not to be had: n3 (DOWN) and 40 more")
    assert capacity_text(Capacity("main", "h100", 0, 0, 0, 0, 1, 2)).startswith(
        "no open node in main has GPUs of type h100"
    )
    none = Capacity("team", "", 0, 0, 0, 0, 1, 0, (NodeAway("n1", "cordoned"),), learners_fitting=0)
    assert capacity_text(none) == "no node in team is open to what it asks for; not to be had: n1 (cordoned)"


def test_evidence_lists_each_known_fact_once_in_order() -> None:
    blockers = (
        Blocker(BlockerKind.RESERVATION, "maint", "maintenance of n3 (1 nodes)", NOW + 60, NOW + 3660),
        Blocker(BlockerKind.DEPENDENCY, "afterok:7(unfulfilled)"),
        Blocker(BlockerKind.LICENSE, "matlab:1"),
    )
    known = Explanation(
        NOW, Reason(WaitKind.PRIORITY, "Priority"), priority=1850, expected_start=NOW + 600, position=3,
        factors=(Factor("age", 250), Factor("partition", 1600)), blockers=blockers,
        figures={"longest time in short": "00:02:00"}, lacks=("limits' figures could not be read: no answer",),
    )  # fmt: skip
    trial, history = Foretold("said", NOW + 1200), WaitHistory("1 GPUs", 12, 300, 4000, 9000)
    assert evidence_of(None, None, None, NOW) == ()
    assert evidence_of(known, trial, history, NOW)[-2:] == (trial_text(trial, NOW), history_text(history))
    assert evidence_of(known, None, None, NOW) == (
        "the reservation maint, maintenance of n3 (1 nodes), begins at 12:01 (in 60 s) and ends at 13:01 (in 61 min)",
        "it depends on afterok:7(unfulfilled)",
        "it asks for the licenses matlab:1",
        "it is number 3 in its queue",
        "its priority of 1850 is made of: age 250, partition 1600",
        "longest time in short: 00:02:00",
        "by the scheduler's own plan it starts at 12:10 (in 10 min)",
        "limits' figures could not be read: no answer",
    )


def test_evidence_texts_describe_wait_history_trial_and_alternative() -> None:
    assert history_text(WaitHistory("4 GPUs and a like time limit", 12, 300, 4000, 9000)) == (
        "your last 12 jobs with 4 GPUs and a like time limit waited 5 min (median), 90 % of them up to "
        "67 min, the longest 2.5 h"
    )
    assert trial_text(Foretold("said", NOW, "n1", 2), NOW) == (
        "submitted now, behind what waits, by the scheduler's estimate it would start now, and would preempt 2 running "
        "jobs"
    )
    assert trial_text(Foretold("what it said"), NOW).endswith("would answer: what it said")
    text = alternative_text(Alternative("partition quick", "--partition=quick", NOW + 600, 3600), NOW)
    assert text == "partition quick (--partition=quick): starts at 12:10 (in 10 min), 60 min sooner"


@pytest.mark.parametrize("jobs", [1, 2, 30])
def test_evidence_texts_do_not_attribute_jobs_of_caller_to_others(jobs: int) -> None:
    ahead = Ahead("main", jobs, jobs, 4, jobs, 2)
    assert ("(yours)" if jobs == 1 else f"({jobs} of them yours)") in ahead_text(ahead, NOW, is_queued=True)
    texts = (
        ahead_text(ahead, NOW, is_queued=True),
        ahead_text(ahead, NOW, is_queued=False),
        trial_text(Foretold("said", NOW, "n1", jobs), NOW),
        alternative_text(Alternative("partition quick", "--partition=quick", NOW, 60, jobs), NOW),
        *evidence_of(Explanation(NOW, ahead=(ahead,)), Foretold("said", NOW, "n1", jobs), None, NOW),
    )
    assert not any("other" in text for text in texts), texts
