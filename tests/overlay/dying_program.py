"""The prolog or the epilog, killed at a point of its work: a program of tests, run as they are.

    dying_program.py LIBEXEC prolog|epilog COMMENT POINT

Its points are counted from 0: before and after each program that it runs, after each step of the prolog, and where one
that goes on has been started, or is expected to do something. At POINT it kills itself, as slurmd's time-out or a crash
would; it ends with 0 when it had fewer.
"""

from __future__ import annotations

import os
import signal
import sys
import time

sys.path.insert(0, sys.argv[1])

from ffdl_network import background, epilog, network, prolog, settings, tunnel  # type: ignore[import-not-found]

KIND, COMMENT, POINT = sys.argv[2], sys.argv[3], int(sys.argv[4])
passed = 0


def pass_point(name: str) -> None:
    """Die here if this is the point."""
    global passed  # noqa: PLW0603 - a program of one function
    if passed == POINT:
        print(name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    passed += 1


real_run = network.run


def run(argv: list[str], timeout_s: float, text: str | None = None) -> object:
    """A program, with a point on either side."""
    pass_point(f"before {argv[0]}")
    said = real_run(argv, timeout_s, text)
    pass_point(f"after {argv[0]}")
    return said


def wait(*words: object) -> None:
    """For a program that goes on."""
    pass_point("waiting")
    real_wait(*words)


real_wait = background._await
background._await = wait
network.run = tunnel.run = run
site = settings.load()
site.job(int(os.environ["SLURM_JOB_ID"])).mkdir(parents=True, exist_ok=True)
if KIND == "prolog":
    prolog.work(COMMENT, os.environ, site, pass_point)
else:
    sys.exit(epilog.main(os.environ))
