"""Whether a training goes on: the table of cases, and what holds for every chain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffdl_batch.domain.outcome.continuation import (
    FRUITLESS_IN_A_ROW,
    SIMULATED,
    Budget,
    Checkpoint,
    Decision,
    Interruption,
    Spent,
    decide,
    describe,
    describe_interruption,
    is_progress,
    used_up,
)

I = Interruption  # noqa: E741 - as short as the table below needs it
CONFIRMED = Checkpoint(asked=True, confirmed=True, answered=True, took_s=4.25, saved_at=100.0, newest="model.pt")
CONFIRMED_WORDS = "checkpoint confirmed after 4.2 s (newest file: model.pt)"
ANSWERED = Checkpoint(asked=True, answered=True, took_s=1.0)
IGNORED = Checkpoint(asked=True, took_s=60.0)
SAVED = Checkpoint(saved_at=100.0, newest="model.pt")
ASKED_AND_SAVED = Checkpoint(asked=True, saved_at=100.0)
NOTHING = Checkpoint()
UNSEEN = Checkpoint(unseen=True)
COUNTER = {I.TIMEOUT: "timeouts", I.PREEMPTION: "preemptions", I.NODE_FAILURE: "node_failures", I.FAILURE: "failures"}


NOT_ENOUGH = (
    "after a time limit a saved one counts only where the manifest gives batch.retry.timeouts, so the chain ends here"
)


@pytest.mark.parametrize(
    ("why", "budget", "spent", "progress", "goes_on", "sentence"),
    [
        (I.TIMEOUT, Budget(), Spent(), CONFIRMED, True, "the time limit was reached; checkpoint confirmed after 4.2 s"),
        (I.TIMEOUT, Budget(timeouts=3), Spent(timeouts=2), CONFIRMED, True, "checkpoint confirmed"),
        (I.TIMEOUT, Budget(timeouts=3), Spent(timeouts=3), CONFIRMED, False, "batch.retry.timeouts allows 3"),
        (I.TIMEOUT, Budget(timeouts=0), Spent(), CONFIRMED, False, "batch.retry.timeouts allows 0"),
        (I.TIMEOUT, Budget(), Spent(), IGNORED, False, "no checkpoint was confirmed; it would start from the same"),
        (I.TIMEOUT, Budget(), Spent(), NOTHING, False, "no checkpoint was saved; it would start from the same point"),
        (I.TIMEOUT, Budget(), Spent(), SAVED, False, f"a checkpoint was saved; {NOT_ENOUGH}"),
        (
            I.TIMEOUT,
            Budget(),
            Spent(),
            ASKED_AND_SAVED,
            False,
            f"no checkpoint was confirmed, but one was saved; {NOT_ENOUGH}",
        ),
        (I.TIMEOUT, Budget(saved_is_enough=True), Spent(), SAVED, True, "a checkpoint was saved"),
        (I.TIMEOUT, Budget(), Spent(), ANSWERED, True, "no checkpoint was confirmed"),
        (I.TIMEOUT, Budget(), Spent(fruitless=1), ANSWERED, False, "the chain ends here"),
        (I.PREEMPTION, Budget(), Spent(), NOTHING, True, "the scheduler preempted the job; no checkpoint was saved"),
        (I.PREEMPTION, Budget(), Spent(fruitless=1), NOTHING, True, ""),
        (I.PREEMPTION, Budget(), Spent(fruitless=2), NOTHING, False, "the chain ends here"),
        (I.PREEMPTION, Budget(), Spent(fruitless=2), SAVED, True, ""),
        (I.NODE_FAILURE, Budget(), Spent(fruitless=2), UNSEEN, True, "whether a checkpoint was saved is not known"),
        (I.NODE_FAILURE, Budget(node_failures=1), Spent(node_failures=1), UNSEEN, False, "node_failures allows 1"),
        (I.TIMEOUT, Budget(), Spent(), UNSEEN, False, "it would start from the same point"),
        (I.PREEMPTION, Budget(preemptions=1), Spent(preemptions=1), SAVED, False, "batch.retry.preemptions allows 1"),
        (I.NODE_FAILURE, Budget(), Spent(), NOTHING, True, "a node or controller failed"),
        (I.NODE_FAILURE, Budget(), Spent(node_failures=5), SAVED, False, "batch.retry.node_failures allows 5"),
        (I.NODE_FAILURE, Budget(), Spent(timeouts=50, preemptions=50), SAVED, True, ""),
        (I.FAILURE, Budget(), Spent(), CONFIRMED, False, "batch.retry.failures allows 0"),
        (I.FAILURE, Budget(failures=1), Spent(), NOTHING, True, "the learner failed"),
        (I.HALT, Budget(), Spent(), CONFIRMED, False, "halted on request; checkpoint confirmed after 4.2 s"),
        (I.TIMEOUT, Budget(gpu_seconds=3600.0), Spent(gpu_seconds=3500.0), CONFIRMED, False, "1.00 GPU-hours are used"),
        (I.TIMEOUT, Budget(gpu_seconds=3600.0), Spent(gpu_seconds=3499.0), CONFIRMED, True, ""),
        (I.PREEMPTION, Budget(gpu_seconds=0.0), Spent(), SAVED, False, "batch.retry.gpu_hours is 0"),
    ],
)
def test_decide_continues_or_stops_by_interruption_budget_and_checkpoint(
    why: Interruption, budget: Budget, spent: Spent, progress: Checkpoint, goes_on: bool, sentence: str
) -> None:
    decision = decide(why, budget, spent, progress, gpu_seconds=100.0)
    assert decision.goes_on is goes_on, decision.sentence
    assert sentence in decision.sentence
    assert decision.sentence.startswith(describe_interruption(why))


@pytest.mark.parametrize(("why", "counter"), COUNTER.items())
def test_decide_charges_budget_of_its_interruption_but_none_for_halt(why: Interruption, counter: str) -> None:
    before = Spent(1, 2, 3, 4, 10.0, 1)
    after = decide(why, Budget(), before, CONFIRMED, 5.0).spent
    assert after == replace(before, **{counter: getattr(before, counter) + 1}, gpu_seconds=15.0, fruitless=0)
    assert decide(I.HALT, Budget(), before, IGNORED, 5.0).spent == replace(before, gpu_seconds=15.0, fruitless=2)


def test_decide_continues_after_staging_without_charging_budget() -> None:
    spent = Spent(timeouts=9, gpu_seconds=99.0, fruitless=FRUITLESS_IN_A_ROW)
    budget = Budget(0, 0, 0, 0, gpu_seconds=1.0)
    said = "the data are in place; the training itself follows"
    assert decide(I.STAGED, budget, spent, NOTHING, 0.0) == Decision(True, spent, said)


@pytest.mark.parametrize(
    ("progress", "sentence"),
    [
        (CONFIRMED, CONFIRMED_WORDS),
        (replace(CONFIRMED, took_s=None, newest=""), "checkpoint confirmed"),
        (ASKED_AND_SAVED, "no checkpoint was confirmed, but one was saved"),
        (SAVED, "a checkpoint was saved"),
        (IGNORED, "no checkpoint was confirmed"),
        (NOTHING, "no checkpoint was saved"),
        (UNSEEN, "whether a checkpoint was saved is not known"),
    ],
)
def test_describe_states_checkpoint_result(progress: Checkpoint, sentence: str) -> None:
    assert describe(progress) == sentence


checkpoints = st.builds(
    Checkpoint, *[st.booleans()] * 3, st.none() | st.floats(0, 1e4), st.none() | st.floats(0, 2e9), st.text()
)
counts = st.integers(0, 6)
budgets = st.builds(Budget, counts, counts, counts, counts, st.none() | st.floats(0, 1e5), st.booleans())
spents = st.builds(Spent, counts, counts, counts, counts, st.floats(0, 1e5), st.integers(0, 3))
whys = st.sampled_from([why for why in Interruption if why is not I.STAGED])


@given(whys, budgets, spents, checkpoints, st.floats(0, 1e5))
def test_decide_charges_exactly_one_retry_except_for_halt_and_keeps_to_budgets(
    why: Interruption, budget: Budget, spent: Spent, progress: Checkpoint, gpu_seconds: float
) -> None:
    decision = decide(why, budget, spent, progress, gpu_seconds)
    after = decision.spent
    charged = sum(getattr(after, counter) - getattr(spent, counter) for counter in COUNTER.values())
    assert charged == (0 if why is I.HALT else 1)
    assert after.gpu_seconds == spent.gpu_seconds + gpu_seconds
    assert after.fruitless == (0 if is_progress(why, budget, progress) else spent.fruitless + 1)
    if decision.goes_on:
        assert why is not I.HALT
        assert getattr(after, COUNTER[why]) <= getattr(budget, COUNTER[why])
        assert budget.gpu_seconds is None or after.gpu_seconds < budget.gpu_seconds
        assert after.fruitless < FRUITLESS_IN_A_ROW
        richer = replace(budget, **{c: getattr(budget, c) + 1 for c in COUNTER.values()}, gpu_seconds=None)
        assert decide(why, richer, spent, progress, gpu_seconds).goes_on


@given(whys, budgets, spents, checkpoints, st.floats(0, 1e5))
def test_decide_stops_and_names_only_budgets_that_are_used_up(
    why: Interruption, budget: Budget, spent: Spent, progress: Checkpoint, gpu_seconds: float
) -> None:
    decision = decide(why, budget, spent, progress, gpu_seconds)
    told = {name for name in COUNTER.values() if f"batch.retry.{name} allows" in decision.sentence}
    told |= {"gpu_hours"} if "batch.retry.gpu_hours is" in decision.sentence else set()
    assert told <= used_up(budget, decision.spent)
    if why is not I.HALT and used_up(budget, decision.spent) & {COUNTER[why], "gpu_hours"}:
        assert not decision.goes_on
    assert used_up(replace(budget, gpu_seconds=None), Spent(gpu_seconds=1e9)) == frozenset()


@settings(max_examples=30)
@given(budgets, st.lists(st.tuples(whys, checkpoints, st.floats(0, 1e4)), min_size=40, max_size=40))
def test_decide_ends_every_continuation_within_total_budget(
    budget: Budget, story: list[tuple[Interruption, Checkpoint, float]]
) -> None:
    spent, attempts = Spent(), 0
    for why, progress, gpu_seconds in story:
        decision: Decision = decide(why, budget, spent, progress, gpu_seconds)
        if not decision.goes_on:
            break
        spent, attempts = decision.spent, attempts + 1
    assert attempts <= budget.timeouts + budget.preemptions + budget.node_failures + budget.failures


@given(whys, st.integers(0, 20))
def test_decide_stops_soon_without_any_checkpoint(why: Interruption, start: int) -> None:
    budget, spent, attempts = Budget(1000, 1000, 1000, 1000), Spent(timeouts=start), 1
    while (decision := decide(why, budget, spent, NOTHING, 0.0)).goes_on:
        spent, attempts = decision.spent, attempts + 1
    assert attempts == (1 if why in (I.HALT, I.TIMEOUT) else FRUITLESS_IN_A_ROW)


IN_EARNEST = "in earnest the chain would have ended: "


@pytest.mark.parametrize(
    ("why", "budget", "progress", "goes_on", "sentence"),
    [
        (I.TIMEOUT, Budget(), CONFIRMED, True, f"a time limit; {CONFIRMED_WORDS}"),
        (I.PREEMPTION, Budget(), SAVED, True, "a preemption; a checkpoint was saved"),
        (I.NODE_FAILURE, Budget(), SAVED, True, "a node failure; a checkpoint was saved"),
        (I.TIMEOUT, Budget(), IGNORED, True, "a time limit; no checkpoint was confirmed; "
         f"{IN_EARNEST}it would start from the same point again"),
        (I.PREEMPTION, Budget(preemptions=1), CONFIRMED, True, f"a preemption; {CONFIRMED_WORDS}; "
         f"{IN_EARNEST}batch.retry.preemptions allows 1"),
        (I.TIMEOUT, Budget(gpu_seconds=36.0), CONFIRMED, False, f"a time limit; {CONFIRMED_WORDS}; "
         "0.028 GPU-hours are used, batch.retry.gpu_hours is 0.01"),
    ],
)  # fmt: skip
def test_decide_describes_drill_and_its_real_outcome(
    why: Interruption, budget: Budget, progress: Checkpoint, goes_on: bool, sentence: str
) -> None:
    decision = decide(why, budget, Spent(preemptions=1), progress, 100.0, simulated=True)
    assert (decision.goes_on, decision.sentence) == (goes_on, f"a drill simulated {sentence}")


@given(st.sampled_from(sorted(set(SIMULATED.values()) - {I.HALT})), budgets, spents, checkpoints, st.floats(0, 1e5))
def test_decide_charges_only_gpu_time_for_drill(
    why: Interruption, budget: Budget, spent: Spent, progress: Checkpoint, gpu_seconds: float
) -> None:
    decision = decide(why, budget, spent, progress, gpu_seconds, simulated=True)
    after = replace(spent, gpu_seconds=spent.gpu_seconds + gpu_seconds)
    assert decision.spent == (replace(after, fruitless=0) if is_progress(why, budget, progress) else after)
    in_earnest = decide(why, budget, spent, progress, gpu_seconds)
    assert decision.goes_on or not in_earnest.goes_on
    assert decision.goes_on == (budget.gpu_seconds is None or after.gpu_seconds < budget.gpu_seconds)
