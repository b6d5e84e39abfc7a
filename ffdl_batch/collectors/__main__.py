"""`python -m ffdl_batch.collectors SPEC.json`: collect one learner's metrics until its stop file exists.

Standard output has JSON lines: `{"event": "note", "kind": ..., "message": ...}` for what could not be used, each kind
once, and at the end `{"event": "done", "records": n, "notes": {kind: count}}`. Exit status: 0 done; 69 a package is
missing; 70 the process that started it has ended; 73 the records cannot be written; 74 what the learner writes cannot
be read; 75 another collector works on them; 78 the spec is invalid. SIGTERM and SIGKILL have the same effect: the next
run continues, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from ffdl_batch.attempt.reader import MAX_CELL_BYTES, DamagedFile, read_whole
from ffdl_batch.collectors.emetrics import EmetricsSource
from ffdl_batch.collectors.program import EXIT_CANNOT_WRITE, EXIT_DONE, Collector, World
from ffdl_batch.collectors.record_file import Taken, open_ledger
from ffdl_batch.collectors.regex_extractor import RegexSource
from ffdl_batch.collectors.source import Notes, Source, State
from ffdl_batch.collectors.tensorboard import TensorBoardSource
from ffdl_batch.domain.codec import CodecError
from ffdl_batch.domain.metrics.patterns import check_metrics
from ffdl_batch.domain.metrics.records import (
    EMETRICS_FILE,
    LOGS_ONLY,
    TENSORBOARD,
    CollectorSpec,
    UnknownKind,
    decode_spec,
    kind_of,
)

EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_TAKEN, EXIT_SPEC = 64, 69, 75, 78


def main(arguments: list[str] | None = None) -> int:
    """Run. Return the exit status."""
    argv = sys.argv[1:] if arguments is None else arguments
    if len(argv) != 1:
        return _failed(EXIT_USAGE, "usage: python -m ffdl_batch.collectors SPEC.json")
    try:
        spec = decode_spec(read_whole(argv[0], MAX_CELL_BYTES).decode("utf-8"))
    except (OSError, DamagedFile, UnicodeDecodeError, CodecError, UnknownKind) as error:
        return _failed(EXIT_SPEC, f"{argv[0]}: {error}")
    findings = check_metrics(spec.kind, spec.groups, spec.line_lookahead) if spec.groups else ()
    if findings:
        return _failed(EXIT_SPEC, f"{argv[0]}: " + "; ".join(f"{'.'.join(f.path)}: {f.message}" for f in findings))
    if kind_of(spec.kind) == LOGS_ONLY:
        return EXIT_DONE
    return _collect(spec)


def _collect(spec: CollectorSpec) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # who started it may ignore or hold back signals for itself
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGVTALRM})
    try:
        ledger, whole = open_ledger(spec.out)
    except Taken:
        return _failed(EXIT_TAKEN, f"{spec.out}: another collector is at work on it")
    except (OSError, ValueError) as error:
        return _failed(EXIT_CANNOT_WRITE, f"{spec.out}: {error}")
    notes = Notes(
        lambda kind, message: print_event({"event": "note", "kind": kind, "message": message}), _counts(ledger.state)
    )
    if not whole:
        notes.note("cut", f"{spec.out} is shorter than it was; records are missing")
    try:
        source = _source(spec, notes, ledger.state.get("source", {}))
    except ImportError as error:
        words = f"the collector {spec.kind} needs a package that is not installed here ({error})"
        return _failed(EXIT_UNAVAILABLE, f"{words}; install ffdl-batch[tensorboard]")
    try:
        parent = os.getppid()
        world = World(time.monotonic, time.sleep, print_event, lambda: os.getppid() != parent)
        return Collector(spec, source, ledger, notes, world).run()
    finally:
        ledger.close()


def _source(spec: CollectorSpec, notes: Notes, state: State) -> Source:
    kind = kind_of(spec.kind)
    if kind == TENSORBOARD:
        return TensorBoardSource(spec, time.time, notes, state)
    if kind == EMETRICS_FILE:
        return EmetricsSource(spec, time.time, notes, state)
    return RegexSource(spec, time.time, notes, state)


def _counts(state: State) -> Mapping[str, int]:
    counts = state.get("counts", {})
    return counts if isinstance(counts, Mapping) else {}


def print_event(event: Mapping[str, Any]) -> None:
    """Write one line to standard output. It need not have a reader."""
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(event) + "\n").encode())


def _failed(status: int, message: str) -> int:
    print_event({"event": "failed", "message": message})
    return status


if __name__ == "__main__":
    sys.exit(main())
