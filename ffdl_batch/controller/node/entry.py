"""Run the node controller once: end what an earlier run left, do the phases, and report the end."""

from __future__ import annotations

import os
import sys
import traceback

from ffdl_batch.attempt.conclusion import EXIT_PLATFORM
from ffdl_batch.attempt.control_cell import newer_run, own_run
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.filesystem_retry import patiently
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import Fenced
from ffdl_batch.controller.learner.orphans import end_controller, end_learners, living_controller, mark, marked_sessions
from ffdl_batch.controller.learner.pod_exchange import spared
from ffdl_batch.controller.node.node_controller import Node, fail
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.outcome.controller_events import EventKind, node_source
from ffdl_batch.host.processes import all_processes, descendants, identity
from ffdl_batch.host.signals import hold_signals

EXIT_FENCED = 75
PARTED = "the controller of one of several pods was started again: its learner lost the connection to the others"


def run_node(launch: LaunchFile, launch_path: str, node_rank: int) -> int:
    """Run the phases of one node. Return the exit code of its first failing learner, else 0."""
    hold_signals(only_family=launch.pod is not None)
    attempt = AttemptDir(launch.attempt_dir)
    journal = _open_journal(launch, attempt, node_source(node_rank))
    before = living_controller(journal.earlier)
    if before:
        end_controller(before, launch.limits.kill_wait_s + 5.0)
        journal = _open_journal(launch, attempt, journal.source)
    allocation = os.environ.get(launch.host.allocation, "") if launch.host.allocation else ""
    machine = os.environ.get(launch.host.machine, "")
    where = {"machine": machine} if machine else {}
    journal.append(EventKind.STARTED, **identity(os.getpid()), **where, run=own_run(os.environ), allocation=allocation)
    journal.load_ballast()
    try:
        end_learners(journal.earlier, mark(launch.token, node_rank), spared(launch))
        if launch.pod is not None and launch.nodes > 1 and own_run(os.environ) > 1:
            return fail(launch, node_rank, journal, "S106", f"{PARTED} on {os.uname().nodename}")
        node = Node(launch, launch_path, node_rank, journal)
        patiently(node.report_found, attempt.path, launch.limits.fence_s)
        return node.run()
    except Fenced as fence:
        journal.append(EventKind.FAULT, code="S106", message=f"the learners were killed: {fence}")
        return EXIT_FENCED
    except NewerFormat as error:  # not a failure of the job
        sys.stderr.write(f"ffdl-controller: {error}\n")
        return EXIT_PLATFORM
    except (OSError, LaunchFileError) as error:
        return fail(launch, node_rank, journal, "S105", f"node {node_rank} on {os.uname().nodename}: {error}")
    except Exception as error:  # noqa: BLE001 - the other nodes must not wait for this one
        traceback.print_exc()
        what = f"failed on {os.uname().nodename}: {type(error).__name__}: {error}"
        return fail(launch, node_rank, journal, "S106", f"the controller of node {node_rank} {what}")
    finally:
        _record_end(launch, node_rank, journal)
        journal.close()


def _open_journal(launch: LaunchFile, attempt: AttemptDir, source: str) -> Journal:
    patience_s, bell = launch.limits.fence_s, os.path.join(launch.doorbell, launch.job_id)
    path, run = attempt.event_file(source), own_run(os.environ)

    def is_superseded() -> bool:
        return bool(newer_run(launch, run))

    return patiently(lambda: Journal(path, source, bell, patience_s, is_superseded), attempt.path, patience_s)


def _record_end(launch: LaunchFile, node_rank: int, journal: Journal) -> None:
    """Write the last event if no process of the learners is left. A newer attempt relies on it."""
    own = [pid for pid in descendants(os.getpid(), all_processes()) if pid != os.getpid()]
    if not own and not marked_sessions(mark(launch.token, node_rank)):
        journal.append(EventKind.ENDED)
