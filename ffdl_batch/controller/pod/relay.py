"""Print what this pod's controllers write (:mod:`ffdl_batch.domain.launch.pod_protocol`), in a thread of its own.

If the reader is slow, only this thread waits. Lines of events are printed whole, because the writer takes back a torn
last line. The claim is printed first and the final record last: a reader of the final record has everything before it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from dataclasses import replace
from typing import BinaryIO, Callable, Dict, List, Mapping, Optional, Tuple

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_paths import TRAINING_LOG, read_log_files
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, NO_FILE, find_object, open_regular, read_head
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import Frame, FrameKind, encode_frame, pieces
from ffdl_batch.domain.outcome.controller_events import HEAD, node_source
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.nonblocking_stderr import ErrorReporter

MISSES = 20
"""A file that this many reads in a row do not find is gone. Fewer may miss it while it is renamed."""


class LogReader:
    """Reads the log of one learner, which :mod:`ffdl_batch.controller.logs.rotated_log` writes."""

    def __init__(self, attempt: AttemptDir, learner_id: int) -> None:
        self._directory, self._cell = attempt.learner_logs(learner_id), attempt.log_files(learner_id)
        self._misses = 0

    def read(self, position: int, most: int) -> Tuple[int, bytes]:
        """Return where the data begin, and up to `most` bytes. They begin after `position` if older files are gone.

        Raises OSError.
        """
        entries = self._entries()
        if not entries:
            return position, b""
        later = [one for one in entries if one[0] > position]
        held = [one for one in entries if one[0] <= position]
        if not held:
            return self.read(later[0][0], most)
        base, inode = held[-1]
        room = min(most, later[0][0] - position) if later else most
        file = self._open(inode)
        if file is None:
            self._misses += 1
            if not later or self._misses < MISSES:
                return position, b""
            data = b""
        else:
            with file:
                data = os.pread(file.fileno(), room, position - base)
        self._misses = 0
        if not data and later:  # the rest of this file is gone
            return self.read(later[0][0], most)
        return position, data

    def _entries(self) -> List[Tuple[int, int]]:
        """Return the position and the inode of each file, oldest first."""
        numbers = sorted((file.base, file.inode) for file in read_log_files(self._cell))
        if numbers:
            return numbers
        try:  # no learner has printed yet, but there may be messages about loading
            return [(0, os.lstat(os.path.join(self._directory, TRAINING_LOG)).st_ino)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _open(self, inode: int) -> Optional[BinaryIO]:
        try:
            names = [name for name in os.listdir(self._directory) if name.startswith(TRAINING_LOG)]
        except (FileNotFoundError, NotADirectoryError):
            return None
        for name in sorted(names, key=len):
            try:
                file = open_regular(os.path.join(self._directory, name))
            except NO_FILE:
                continue
            if os.fstat(file.fileno()).st_ino == inode:
                return file
            file.close()
        return None


OFTEN_S, SELDOM_S, IDLE_S = 0.1, 0.5, 10.0
"""Seconds between two turns: while data arrive, and after none arrived for IDLE_S."""
SIZES_S, BEAT_S = 60.0, 20.0
MOVING_S = 5.0
"""Minimum seconds between two reports of moving data. Their end is reported at once."""
READ_BYTES = 256 * 1024
NOTHING = b"{}\n"
MEMORY = "said.json"
"""File in the pod's directory with the positions up to which logs and metrics were printed, for the next run."""
Stamp = Tuple[int, int, int]


class Relay:
    """Prints the files of one node."""

    def __init__(self, launch: LaunchFile, index: int, run: int, write: Callable[[str], None]) -> None:
        """`run` is the run of this program in the pod. `write` gets a line."""
        self._attempt, self._index, self._run, self._write = AttemptDir(launch.attempt_dir), index, run, write
        self._memory = os.path.join(launch.pod.directory if launch.pod else launch.job_dir, MEMORY)
        own = launch.learners_on(index)
        self._events = [f"events/{node_source(index)}.jsonl"]
        self._claims: List[str] = []
        self._last: List[str] = []
        if index == 0:
            self._events.insert(0, f"events/{HEAD}.jsonl")
            self._claims, self._last = ["claim/owner.json"], ["stop.json", "uploaded.json", "final.json"]
        self._growing = [f"metrics/usage-{index}.jsonl", *(f"metrics/learner-{number}.jsonl" for number in own)]
        self._logs = {f"logs/learner-{number}": LogReader(self._attempt, number) for number in own}
        if launch.pod is not None and launch.pod.uploads_pending:  # the attempt's own pods printed the other files
            self._events, self._growing, self._logs = [], [], {}
            self._claims, self._last = [], ["final.json", "uploaded.json"]
        moving = os.path.relpath(self._attempt.moving, self._attempt.path)
        self._moving = moving if index == 0 else ""
        self._moved_at = -math.inf
        self._heart = f"events/{node_source(index)}.heartbeat"
        self._at = self._remembered()
        self._stamps: Dict[str, Stamp] = {}
        self._n = 0
        self._sent_at = self._sizes_at = time.monotonic()
        self._turn = threading.Lock()
        self._done = threading.Event()
        self._errors = ErrorReporter()
        self._thread = threading.Thread(target=self._loop, name="relay", daemon=True)

    def begin(self) -> None:
        """Start the thread. Call this after the child was started."""
        self._thread.start()

    def finish(self) -> None:
        """Print what exists now, and nothing after that."""
        self._done.set()
        self.drain()
        self._send_sizes()

    def drain(self) -> None:
        """Print everything that exists now."""
        while self.look():
            continue

    def send_again(self, wanted: Mapping[str, int]) -> None:
        """Print these files again from the given positions, because the reader lacks the rest."""
        with self._turn:
            for name, offset in wanted.items():
                if name in self._at:
                    self._at[name] = min(self._at[name], max(0, offset))
                self._stamps.pop(name, None)

    def answer(self, look: str, data: bytes) -> None:
        """Print the answer to a request."""
        with self._turn:
            offset = 0
            for piece in pieces(data):
                self._send(Frame(self._run, 0, FrameKind.ANSWER, look, offset, piece, len(data)))
                offset += len(piece)

    def look(self) -> bool:
        """Do one turn. Return whether something was printed."""
        with self._turn:
            before = self._n
            try:
                self._claims_now()
                for name in self._claims:
                    self._cell(name)
                for name in (*self._events, *self._growing):
                    self._append(name)
                for name, printed in self._logs.items():
                    self._log(name, printed)
                self._move()
                if self._n == before:
                    for name in self._last:
                        self._cell(name)
            except OSError as error:
                self._errors.report(error)
            return self._n > before

    def _loop(self) -> None:
        news_at = time.monotonic()
        while not self._done.wait(OFTEN_S if time.monotonic() - news_at < IDLE_S else SELDOM_S):
            if self.look():
                news_at = time.monotonic()
            with self._turn:
                self._beat()
            if time.monotonic() - self._sizes_at >= SIZES_S:
                self._send_sizes()

    # ------------------------------------------------------------------------------------------------- the files

    def _claims_now(self) -> None:
        """Add the claims of later runs."""
        if self._index == 0:
            run = len(self._claims) + 1
            if os.path.isdir(self._attempt.run_claim(run)):
                self._claims.append(f"claim/run-{run}/owner.json")

    def _append(self, name: str) -> None:
        at = self._at.setdefault(name, 0)
        try:
            with open_regular(os.path.join(self._attempt.path, name), below=self._attempt.path) as file:
                file.seek(at)
                data = file.read(READ_BYTES)
        except NO_FILE:
            return
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == READ_BYTES:  # the controllers write no such long line, so it is printed as it is
            whole = data
        for piece in pieces(whole):
            self._send(Frame(self._run, 0, FrameKind.APPEND, name, at, piece))
            at += len(piece)
        self._at[name] = at

    def _log(self, name: str, printed: LogReader) -> None:
        at, data = printed.read(self._at.setdefault(name, 0), READ_BYTES)
        for piece in pieces(data):
            self._send(Frame(self._run, 0, FrameKind.LOG, name, at, piece))
            at += len(piece)
        self._at[name] = at

    def _cell(self, name: str) -> None:
        path = os.path.join(self._attempt.path, name)
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if not found.st_size or self._stamps.get(name) == stamp:
            return
        try:
            data = read_head(path, MAX_EVENT_BYTES, below=self._attempt.path)
        except NO_FILE:
            return
        offset = 0
        for piece in pieces(data):
            self._send(Frame(self._run, 0, FrameKind.CELL, name, offset, piece, len(data)))
            offset += len(piece)
        self._stamps[name] = stamp

    def _move(self) -> None:
        """Print what moves to or from stores, or an empty cell when that has ended."""
        if not self._moving:
            return
        if os.path.lexists(os.path.join(self._attempt.path, self._moving)):
            if time.monotonic() - self._moved_at >= MOVING_S:
                self._cell(self._moving)
                self._moved_at = time.monotonic()
        elif self._stamps.pop(self._moving, None):
            self._send(Frame(self._run, 0, FrameKind.CELL, self._moving, 0, NOTHING, len(NOTHING)))
            self._moved_at = -math.inf

    def _beat(self) -> None:
        """Print that the node is alive, if nothing was printed for a while."""
        if time.monotonic() - self._sent_at < BEAT_S:
            return
        try:
            found = os.lstat(os.path.join(self._attempt.path, self._heart))
        except OSError:
            return
        stamp = (found.st_ino, found.st_mtime_ns, 0)
        if self._stamps.get(self._heart) != stamp:
            self._stamps[self._heart] = stamp
            self._send(Frame(self._run, 0, FrameKind.CELL, self._heart))

    def _send_sizes(self) -> None:
        with self._turn:
            self._sizes_at = time.monotonic()
            self._send(Frame(self._run, 0, FrameKind.SIZES, sizes={name: at for name, at in self._at.items() if at}))
            kept = {name: at for name, at in self._at.items() if name not in self._events}
            try:
                write_text(self._memory, json.dumps({"said": kept}) + "\n")
            except OSError as error:
                sys.stderr.write(f"ffdl-controller: {error}\n")

    def _remembered(self) -> Dict[str, int]:
        said = find_object(self._memory).get("said")
        found = said.items() if isinstance(said, dict) else ()
        known = {*self._growing, *self._logs}
        return {name: at for name, at in found if name in known and isinstance(at, int) and at >= 0}

    def _send(self, frame: Frame) -> None:
        self._n += 1
        self._sent_at = time.monotonic()
        self._write(encode_frame(replace(frame, n=self._n)))


def to_standard_output(line: str) -> None:
    """Print the whole line. If the reader is gone, drop it; the training continues."""
    try:
        write_all(1, (line + "\n").encode("ascii"))
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: standard output: {error}\n")
