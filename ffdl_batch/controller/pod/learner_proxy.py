"""Represent a learner that runs in another container of the pod: let the shim start it, and end with its exit status.

The learner's output goes into a pipe of the exchange directory, which the log writer reads, and not through this
process. Signals are sent to the learner's own processes, so this process ignores them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from typing import List, Sequence

from ffdl_batch.attempt.file_writer import read_text, write_text
from ffdl_batch.attempt.reader import find_text
from ffdl_batch.controller.learner.environment import single_quoted
from ffdl_batch.controller.learner.orphans import MARK
from ffdl_batch.controller.learner.pod_exchange import PodExchange, living
from ffdl_batch.domain.launch.pod_protocol import GO, NO_BASH, TAKEN
from ffdl_batch.host.permissions import read_umask
from ffdl_batch.host.signals import HANDLED

LOOK_S, LIVES_S = 0.05, 0.5
"""Seconds between two reads of the shim's report, and between two checks whether the shim is alive."""
KILLED = 128 + signal.SIGKILL
_ANSWER = 127
OF_KUBELET = (
    "HOSTNAME", "KUBERNETES_PORT", "KUBERNETES_PORT_443_TCP", "KUBERNETES_PORT_443_TCP_ADDR",
    "KUBERNETES_PORT_443_TCP_PORT", "KUBERNETES_PORT_443_TCP_PROTO", "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS",
)  # fmt: skip
"""Variables that a kubelet sets in every container even if the pod disables service links (kubernetes.io, "Accessing
the API from a Pod"; kubelet 1.36). Learners have them on no other backend."""


def main(arguments: Sequence[str]) -> int:
    """Run until the learner has ended. Return its exit status."""
    for number in HANDLED - {signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="ffdl-controller stand-in")
    parser.add_argument("--pod", required=True, help="the pod's own directory")
    parser.add_argument("--env-file", required=True, help="file with the learner's variables in shell syntax")
    parser.add_argument("--cwd", required=True, help="the learner's working directory in its container")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    seat = PodExchange(options.pod)
    start = f"{os.getpid()}-{os.urandom(6).hex()}"
    if not seat.shim:
        sys.stderr.write("ffdl-controller: the learner's container has ended, and is not started again\n")
        return _ANSWER
    text = go_text(start, read_text(options.env_file), options.cwd, options.command, seat.file(TAKEN), read_umask())
    write_text(seat.file(GO), text)
    seat.ring()
    try:
        return _await_end(seat, start)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(seat.file(GO))


def go_text(start: str, variables: str, directory: str, command: Sequence[str], taken: str, umask: int) -> str:
    """Return the script that the shim reads.

    `variables` are ``NAME='value'`` lines. `taken` is the path of the exchange's file on this side. `umask` is the
    learner's.
    """
    mark = os.environ.get(MARK, "")
    lines: List[str] = [
        f"# {start}",
        f'printf "%s\\n" {single_quoted(start)} >"$ffdl_seat"/{os.path.basename(taken)}',
        f"umask 0{umask:03o}",
        f"unset {' '.join(OF_KUBELET)}",  # before the user's variables are set, which may have these names
        "set -a",
        variables.rstrip("\n"),
        *([f"{MARK}={single_quoted(mark)}"] if mark else []),
        "set +a",
        "unset ffdl_seat ffdl_ran ffdl_start ffdl_word ffdl_kills",
        f"cd {single_quoted(directory)} || exit 126",
    ]
    program = command[0]
    if program == "bash":
        complaint = f"ffdl-controller: {NO_BASH}, which the contract with user code needs; add it to the image"
        lines.append(f"command -v bash >/dev/null 2>&1 || {{ printf '%s\\n' {single_quoted(complaint)}; exit 127; }}")
    lines.append("exec " + " ".join(single_quoted(word) for word in command))
    return "\n".join(lines) + "\n"


def _await_end(seat: PodExchange, start: str) -> int:
    lives_at, hides = time.monotonic() + LIVES_S, True
    while True:
        ended = seat.ended()
        if ended is not None and ended.start == start:
            return ended.status
        if hides and find_text(seat.file(TAKEN)).strip() == start:
            os.unlink(seat.file(GO))  # secrets are in it
            hides = False
        if time.monotonic() >= lives_at:
            if not seat.shim and not living(seat):
                ended = seat.ended()  # the shim may have reported it meanwhile
                if ended is not None and ended.start == start:
                    return ended.status
                sys.stderr.write("ffdl-controller: the learner's container was killed\n")
                return KILLED
            lives_at = time.monotonic() + LIVES_S
        time.sleep(LOOK_S)
