"""What is read of /proc."""

from __future__ import annotations

from ffdl_batch.controller.machine.processes import Process, session_members


def test_members_of_a_session_come_parents_first_and_once() -> None:
    """The pids wrap around, a member makes a session of its own below, and one lost its parent."""
    table = {
        pid: Process(pid, "S", parent, session, session, 0)
        for pid, parent, session in ((900, 1, 900), (40, 900, 900), (30, 40, 30), (20, 30, 30), (50, 1, 900), (7, 1, 7))
    }
    found = session_members(900, table)
    assert sorted(found) == [20, 30, 40, 50, 900]
    assert [pid for pid in found if pid != 50] == [900, 40, 30, 20]
