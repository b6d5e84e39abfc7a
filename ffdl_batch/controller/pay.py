"""Stores owed: results and logs that an attempt could not store before it was killed.

Run by the next attempt's head and by the platform, each in a process of its own, after the attempt has ended.
Idempotent; two at once do no harm. What a newer attempt stored is not replaced.
"""

from __future__ import annotations

import os
import sys
import time
from typing import List

from ffdl_batch.controller.files import write_cell
from ffdl_batch.controller.processes import lives_here
from ffdl_batch.controller.siblings import read_events
from ffdl_batch.controller.storing import store_logs, store_results
from ffdl_batch.domain.events import Event, EventKind, merge, node_source
from ffdl_batch.domain.jobdir import AttemptDir, JobDir
from ffdl_batch.domain.launch import LaunchFile

EXIT_PLATFORM = 74
EXIT_STILL_RUNNING = 75
"""A node controller of the attempt lives on this machine: there may be more to store later (sysexits.h EX_TEMPFAIL)."""


def pay(launch: LaunchFile) -> int:
    """Store what is owed and write ``paid.json``; 0 also where nothing is owed. EXIT_PLATFORM where it cannot be."""
    attempt = AttemptDir(launch.attempt_dir)
    if os.path.exists(attempt.paid):
        return 0
    files = [read_events(attempt, node_source(rank)) for rank in range(launch.nodes)]
    for events in files:
        started = [event for event in events if event.kind is EventKind.STARTED]
        if started and lives_here(started[-1].fields):
            sys.stderr.write(f"ffdl-controller: a controller of {launch.token} still runs; nothing is stored yet\n")
            return EXIT_STILL_RUNNING
    owed = learners_owed(merge(files))
    late = os.path.exists(JobDir(launch.job_dir).attempt(launch.attempt + 1).launch)
    try:
        if owed:
            if os.path.isdir(attempt.results):
                store_results(launch, late=late)
            store_logs(launch, [n for n in owed if os.path.isdir(attempt.learner_logs(n))], late=late)
        write_cell(attempt.paid, {"at": time.time(), "host": os.uname().nodename, "learners": owed})
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {launch.token}: results and logs cannot be stored: {error}\n")
        return EXIT_PLATFORM
    return 0


def learners_owed(events: List[Event]) -> List[int]:
    """Learners that were started and not stored since."""
    owed = set()
    for event in events:
        learner = event.fields.get("learner_id")
        if isinstance(learner, int) and event.kind is EventKind.LEARNER_STARTED:
            owed.add(learner)
        elif isinstance(learner, int) and event.kind is EventKind.STORED:
            owed.discard(learner)
    return sorted(owed)
