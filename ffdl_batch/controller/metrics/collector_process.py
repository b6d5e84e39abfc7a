"""Run one learner's metrics collector: start it, restart it if it was killed, and read its output."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Callable, Dict, List, Optional

from ffdl_batch.attempt.file_writer import create_empty, remove, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.metrics.records import REGEX, CollectorSpec, encode_spec
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.backoff import growing_pause

MAX_BYTES = 256 * 1024**2
"""Maximum size of a learner's file of records."""
STARTS_MAX, PAUSE_S, WELL_S = 6, 1.0, 60.0
"""Maximum starts in a row without running for WELL_S seconds, and the pause before the second start, which doubles."""
REPORTER = 1
"""The learner whose reports of throughput count."""
KILL_S = 1.0
SAID_BYTES, NOTES_MAX = 64 * 1024, 8
EXIT_TAKEN, EXIT_CANNOT_WRITE, EXIT_CANNOT_READ = 75, 73, 74
"""Exit statuses after which a restart may help, as after a signal: the collector of a killed controller ends soon, and
file servers recover."""
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""Variables of the node's environment that an interpreter may need."""


def make_spec(launch: LaunchFile, learner_id: int) -> Optional[CollectorSpec]:
    """Return the spec of the learner's collector; None if there is nothing to collect."""
    metrics = launch.metrics
    if metrics is None or not launch.collectors:
        return None
    if metrics.kind == REGEX and not metrics.groups and learner_id != REPORTER:
        return None  # it collects only reports, and only one learner's reports count
    attempt = AttemptDir(launch.attempt_dir)
    return CollectorSpec(
        kind=metrics.kind,
        training_id=launch.job_id,
        learner_id=learner_id,
        log_dir=attempt.learner_logs(learner_id),
        out=attempt.learner_metrics(learner_id),
        stop_file=attempt.collector_stop(learner_id),
        groups=metrics.groups,
        line_lookahead=metrics.line_lookahead,
        max_bytes=MAX_BYTES,
        marks=attempt.marks(learner_id),
        log_files=attempt.log_files(learner_id),
    )


class Collector:
    """The collector of one learner. Nothing here waits except for the file system."""

    def __init__(self, launch: LaunchFile, spec: CollectorSpec, report: Callable[[int, str], None]) -> None:
        """`report` gets a learner and an error."""
        self._argv, self.spec, self._report, self._umask = launch.collectors, spec, report, launch.umask
        self._spec_path = AttemptDir(launch.attempt_dir).collector_spec(spec.learner_id)
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._starts, self._started_at, self._start_at = 0, 0.0, 0.0
        self._output = b""
        self._notes = 0
        self._failure = self._last_line = ""
        self.is_stopping = self.is_over = False

    @property
    def pid(self) -> int:
        """Return its process id; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    def prepare(self) -> None:
        """Write its spec, and remove the stop file of an earlier run. Raises OSError."""
        remove(self.spec.stop_file)
        write_text(self._spec_path, encode_spec(self.spec))

    def stop(self) -> None:
        """Let it read the rest and end, because the learner has ended. Raises OSError."""
        if not self.is_stopping:
            create_empty(self.spec.stop_file)
            self.is_stopping = True
            self._start_at = 0.0

    def kill(self) -> None:
        """Kill it. What it has written stays."""
        self.is_over = True
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in a file system
                self._process.wait(KILL_S)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def look(self, now: float) -> None:
        """Start it if it should run and does not."""
        if self.is_over:
            return
        if self._process is None:
            if now >= self._start_at:
                self._start(now)
            return
        self._listen()
        status = self._process.poll()
        if status is not None:
            self._listen()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None
            self._ended(status, now)

    def _start(self, now: float) -> None:
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._starts, self._started_at, self._output = self._starts + 1, now, b""
        self._failure = self._last_line = ""
        try:
            self._process = subprocess.Popen(
                [*self._argv, self._spec_path],
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=self._umask,
            )
        except OSError as error:
            self._give_up(f"their collector cannot be started: {error}")
            return
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def _ended(self, status: int, now: float) -> None:
        if self._output:
            self._take(self._output)
        if status == 0:
            self.is_over = True
            return
        if now - self._started_at >= WELL_S:
            self._starts = 0
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        reason = self._failure or self._last_line or how
        if status < 0 or status in (EXIT_TAKEN, EXIT_CANNOT_WRITE, EXIT_CANNOT_READ):
            if self._starts < STARTS_MAX:
                self._start_at = now if self.is_stopping else now + growing_pause(max(1, self._starts), PAUSE_S, WELL_S)
                return
            reason = f"{reason} ({self._starts} times in a row)"
        self._give_up(f"their collector ended: {reason}")

    def _give_up(self, message: str) -> None:
        self.is_over = True
        self._report(self.spec.learner_id, f"metrics are not collected any more: {message}")

    def _listen(self) -> None:
        """Read what it printed, and report its notes."""
        assert self._process is not None
        stream = self._process.stdout
        while stream is not None and (chunk := stream.read(SAID_BYTES)):
            *lines, rest = (self._output + chunk).split(b"\n")
            self._output = rest[-SAID_BYTES:]
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        event = _event_of(line)
        if event.get("event") == "note" and self._notes < NOTES_MAX:
            self._notes += 1
            self._report(self.spec.learner_id, event.get("message", ""))
        elif event.get("event") == "failed":
            self._failure = event.get("message", "")
        elif not event:
            self._last_line = line.decode("utf-8", "replace").strip()[-300:] or self._last_line


def _event_of(line: bytes) -> Dict[str, str]:
    try:
        body = parse_json(line)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in body.items()} if isinstance(body, dict) else {}


def all_over(collectors: List[Collector]) -> bool:
    """Return whether all of them have finished."""
    return all(collector.is_over for collector in collectors)
