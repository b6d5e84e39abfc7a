"""Sends what learners write to their stores while they run, in a thread of its own: a slow store holds up nobody."""

from __future__ import annotations

import sys
import threading

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.transfer_progress import notes_once, onto_errors
from ffdl_batch.controller.data.transfers import STORING, send_while_running
from ffdl_batch.domain.launch.launch_file import LaunchFile

END_S = 4.0


class _Stopped(Exception):
    """The learners have ended: all of it is sent anew."""


class Uploading:
    """Of one node. Begin after the learners were started: they are forked."""

    def __init__(self, launch: LaunchFile, node_rank: int) -> None:
        self._launch, self._node_rank = launch, node_rank
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploading", daemon=True)
        self._told = ""
        self._stored = ""
        self._tell = notes_once(onto_errors(STORING))

    def begin(self) -> None:
        """Start the thread, where there is something to send; call :func:`signals.hold_signals` before."""
        if self._launch.uploads:
            self._thread.start()

    def finish(self) -> None:
        """End it and its program. One that hangs in a file system is left behind."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.wait(self._launch.limits.upload_s):
            try:
                self._stored = send_while_running(self._launch, self._node_rank, self._go_on, self._tell, self._stored)
                self._told = ""
            except _Stopped:
                return
            except (PhaseFailed, OSError) as error:
                self._complain(str(error))

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _complain(self, why: str) -> None:
        if why != self._told and not self._stop.is_set():
            self._told = why
            every = self._launch.limits.upload_s
            sys.stderr.write(f"ffdl-controller: nothing can be stored now: {why}; tried again each {every:.0f} s\n")
