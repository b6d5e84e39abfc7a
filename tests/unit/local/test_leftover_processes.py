"""The supervisor's end of a job whose learners left many processes."""

from __future__ import annotations

import sys
import textwrap

from tests import preloaded

SOURCE = """
    import os, sys, time
    from ffdl_local import supervisor

    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    searches, search = 0, supervisor._descendants

    def counted(root):
        global searches
        searches += 1
        found = search(root)
        if searches > 1:
            time.sleep(0.2)  # let those that were killed end, as on a machine that is not busy
        return found

    supervisor._descendants = counted
    supervisor.kill_descendants()
    print(searches, len(search(os.getpid())))
"""


def test_supervisor_searches_few_times_for_many_processes_that_it_kills() -> None:
    argv = [sys.executable, "-c", textwrap.dedent(SOURCE), "60"]
    ended = preloaded.run(argv, check=True, capture_output=True, text=True, timeout=120)
    searches, left = map(int, ended.stdout.split())
    assert left == 0
    assert searches <= 20
