"""Unblock all signals and exec a command, after a controller has forked. Must run on Python 3.9.

Every transfer and restarted learner starts through this module, so it imports few modules, and none that define
dataclasses.
"""

from __future__ import annotations

import os
import sys

from ffdl_batch.host.signals import release_signals

VICTIM = "--victim"
"""Option: the kernel kills the command first if memory is exhausted."""
VICTIM_SCORE = 500
"""Added to ``oom_score_adj`` of learners: half of the memory limit counts as theirs on top of what they use (proc(5)).
Files in /dev/shm count for no process, so a controller can be the largest process of a job that fills /dev/shm."""


def main(argv: list[str]) -> int:
    """Become the command, which follows the options. Return only if that fails."""
    if argv[:1] == [VICTIM]:
        prefer_as_victim()
        argv = argv[1:]
    release_signals()
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the argv of the launch file, no shell wanted
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: cannot start {argv[0]!r}: {error}\n")
        return 127


def prefer_as_victim(proc: str = "/proc") -> None:
    """Raise oom_score_adj, so that the kernel kills this process and its children first when memory runs out. For a
    child between fork and exec. Any process may raise its own score (proc(5)); if it fails, the score stays."""
    try:
        with open(os.path.join(proc, "self/oom_score_adj"), "rb+", buffering=0) as file:
            score = int(file.read())
            file.seek(0)
            file.write(b"%d" % min(1000, score + VICTIM_SCORE))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"ffdl-controller: oom_score_adj of the learner cannot be raised: {error}\n")
