"""Every word of Slurm has a meaning; a new one is unknown, never an end."""

from __future__ import annotations

import logging

import pytest

from ffdl_batch.domain.observation import EndCause, Phase
from ffdl_slurm.states import COMPACT, STATES, UNKNOWN, interpret_state

WORDS = """PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE
OUT_OF_MEMORY LAUNCH_FAILED REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESIZING CONFIGURING COMPLETING STOPPED RECONFIG_FAIL
POWER_UP_NODE REVOKED REQUEUE_FED RESV_DEL_HOLD SIGNALING STAGE_OUT EXPEDITING"""


@pytest.mark.parametrize("word", WORDS.split())
def test_state_table_has_meaning_for_every_slurm_state(word: str) -> None:
    assert interpret_state(word) == (word, STATES[word])
    assert (STATES[word].phase is Phase.ENDED) == (STATES[word].end is not None)


@pytest.mark.parametrize(
    ("text", "word", "phase", "end"),
    [
        ("CANCELLED by 1000", "CANCELLED", Phase.ENDED, EndCause.CANCELLED),
        ("CANCELLED+", "CANCELLED", Phase.ENDED, EndCause.CANCELLED),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", Phase.ENDED, EndCause.OUT_OF_MEMORY),
        ("CG", "COMPLETING", Phase.COMPLETING, None),
        ("OOM", "OUT_OF_MEMORY", Phase.ENDED, EndCause.OUT_OF_MEMORY),
        ("FAILED,LAUNCH_FAILED", "LAUNCH_FAILED", Phase.ENDED, EndCause.LAUNCH_FAILED),
        ("COMPLETED,COMPLETING", "COMPLETING", Phase.COMPLETING, None),
        ("PENDING REQUEUED", "REQUEUED", Phase.PENDING, None),
        ("TIMEOUT", "TIMEOUT", Phase.ENDED, EndCause.TIMEOUT),
        ("running", "RUNNING", Phase.RUNNING, None),
    ],
)
def test_interpret_state_reads_compact_truncated_and_combined_states(
    text: str, word: str, phase: Phase, end: EndCause | None
) -> None:
    found, meaning = interpret_state(text)
    assert (found, meaning.phase, meaning.end) == (word, phase, end)


def test_compact_states_map_to_known_states() -> None:
    assert set(COMPACT.values()) <= set(STATES)


@pytest.mark.parametrize("text", ["", "?", "HIBERNATING", "COMPLETED,HIBERNATING", "CO+"])
def test_interpret_state_returns_unknown_for_new_state(text: str) -> None:
    assert interpret_state(text)[1] is UNKNOWN


def test_interpret_state_warns_once_about_new_state(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        interpret_state("BRAND_NEW_WORD")
        interpret_state("BRAND_NEW_WORD")
    assert sum("BRAND_NEW_WORD" in record.getMessage() for record in caplog.records) == 1
