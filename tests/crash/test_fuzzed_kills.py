"""`make proof-crash` in its short form: a hundred kills on both databases, and faults that must be found.

KILLS=1000 makes it longer; a small number is exceeded until somebody has died at each named step, after about 200.
SEED=7 repeats the plans of a run (what happens between the steps stays the machine's).
"""

from __future__ import annotations

import os
import secrets

import pytest

from tests.crash.fuzz.mutations import MUTATIONS
from tests.crash.fuzz.steps import NAMED
from tests.proof.crash import Verdict, World, prove, split

KILLS = int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("SEED", "0")) or secrets.randbelow(10**6)
LIMIT_S = 1800.0 + 10.0 * KILLS
pytestmark = pytest.mark.full


def show(verdict: Verdict, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{verdict.line()} (seed {SEED})")


@pytest.mark.timeout(LIMIT_S)
def test_fuzzed_kills_lose_and_duplicate_nothing_at_any_step_on_sqlite(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = prove(split(round(KILLS * 0.7), "sqlite", SEED))
    show(verdict, capsys)
    assert verdict.troubles == []
    assert set(NAMED) <= verdict.deaths.keys()
    assert verdict.holds


@pytest.mark.postgres
@pytest.mark.timeout(LIMIT_S)
def test_fuzzed_kills_lose_and_duplicate_nothing_on_postgres(capsys: pytest.CaptureFixture[str]) -> None:
    worlds = split(round(KILLS * 0.3), "postgres", SEED)
    verdict = prove([World(world.kills, world.seed, postgres=True) for world in worlds])
    show(verdict, capsys)
    assert verdict.troubles == []
    assert verdict.holds


@pytest.mark.timeout(LIMIT_S)
def test_fuzzed_kills_detect_every_mutation_of_the_product(capsys: pytest.CaptureFixture[str]) -> None:
    """The counter-check: each guard is taken away from outside, and the judge has to see it."""
    worlds = [World(one.within, SEED, wanted=one.aim, mutation=name) for name, one in MUTATIONS.items()]
    verdict = prove(worlds)
    found = {tally.mutation: tally for tally in verdict.tallies}
    with capsys.disabled():
        print("\n" + ", ".join(f"{tally.mutation}: found after {tally.kills} kills" for tally in verdict.tallies))
    assert found.keys() == MUTATIONS.keys()
    for name, mutation in MUTATIONS.items():
        tally = found[name]
        assert tally.counts[mutation.shows_in] > 0, f"{name}: {tally.counts}\n" + "\n".join(tally.sentences)
