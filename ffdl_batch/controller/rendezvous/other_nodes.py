"""What the event files of all node controllers say: who has ended, which phase is done."""

from __future__ import annotations

import os
import sys
import time
from typing import Dict, Iterable, List, Optional

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import ended_of_itself, last_endings, learner_status
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_object, find_text
from ffdl_batch.controller.rendezvous.node_barrier import Word
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Phase, decode_events, merge, node_source


def read_events(attempt: AttemptDir, source: str) -> List[Event]:
    """Return one writer's events so far; () if its file is missing or damaged. Raises OSError."""
    return decode_events(find_text(attempt.event_file(source), MAX_EVENT_BYTES, below=attempt.path))


def tell_others(launch: LaunchFile, *, what: str = "stop", reason: str = "failure", **why: object) -> None:
    """Have all node controllers end their learners (`what` stop), or ask them to save and end (halt).

    `why` goes into the cell, too. A cell that says stop stays. Never raises.
    """
    if launch.nodes == 1:
        return
    path = AttemptDir(launch.attempt_dir).stop
    try:
        if find_object(path).get("what") not in ("stop", what):
            write_cell(path, {"what": what, "reason": reason, "at": time.time(), **why})
    except OSError as error:  # the other nodes end when the head does
        sys.stderr.write(f"ffdl-controller: {path}: {error}\n")


class Siblings:
    """The node controllers of one attempt, read afresh at every question; all but the own one, whose `journal` also
    knows what could not be written yet. Raises OSError."""

    def __init__(self, launch: LaunchFile, node_rank: int, journal: Journal) -> None:
        self.launch, self.node_rank, self.journal = launch, node_rank, journal
        self.attempt = AttemptDir(launch.attempt_dir)

    def events(self, ranks: Optional[Iterable[int]] = None) -> List[Event]:
        """Of all node controllers, in order; `ranks`: of these, and of the own one."""
        own, wanted = self.node_rank, range(self.launch.nodes) if ranks is None else sorted(ranks)
        files = (read_events(self.attempt, node_source(rank)) for rank in wanted if rank != own)
        return merge([*files, self.journal.events])

    def word(self, node_rank: int) -> Word:
        """What can be seen of another one."""
        try:
            beat_at = os.lstat(self.attempt.heartbeat(node_rank)).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            beat_at = 0.0
        return Word(read_events(self.attempt, node_source(node_rank)), beat_at)

    def phase_status(self, node_rank: int, phase: Phase) -> Optional[int]:
        """How the phase last ended on that node; None when it is not done."""
        status: Optional[int] = None
        for event in read_events(self.attempt, node_source(node_rank)):
            if event.kind is EventKind.PHASE and event.fields.get("phase") == phase.value:
                found = event.fields.get("exit")
                status = found if event.fields.get("status") == "ended" and isinstance(found, int) else None
        return status

    def ended_of_themselves(self) -> Dict[int, int]:
        """Status of every learner that ended without being told to or asked, in this run or an earlier one.

        Such a learner is done or has failed; one that was asked for a checkpoint goes on from it in a new run.
        """
        return {n: learner_status(event) for n, event in last_endings(self.events()).items() if ended_of_itself(event)}

    def all_learners_ended(self) -> bool:
        """Whether no learner of the job is left."""
        return len(last_endings(self.events())) >= self.launch.learners

    def all_learners_started(self) -> bool:
        """Whether each learner of the job was started, in this run or an earlier one."""
        found = {event.fields.get("learner_id") for event in self.events() if event.kind is EventKind.LEARNER_STARTED}
        return len(found) >= self.launch.learners
