"""Two state directories with the same jobs: nothing runs twice."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import preloaded
from tests.crash.world import WorldOptions
from tests.faults.fault_rig import LIMIT_S, fault_world, typed

DAEMON = (sys.executable, "-m", "ffdl_batch.daemon.main", "--personal", "--foreground")


def test_commands_refuse_copied_state_directory(tmp_path: Path) -> None:
    """With all that it has, the directory of a job that runs among it."""
    with fault_world(tmp_path, WorldOptions("local"), tree=tmp_path / "state" / "tree") as world:
        world.start()
        running = world.submit_running()
        copy = tmp_path / "copy"
        with world.standing():  # cp fails over a file that goes meanwhile
            preloaded.run(["cp", "-a", world.state, copy], check=True)
        environ = world.environment() | {"FFDL_STATE_DIR": str(copy), "FFDL_JOBS_DIR": str(copy / "tree")}
        del environ["FFDL_SOCKET"], environ["FFDL_DATABASE_URL"]
        ffdl = typed("ffdl")
        for command in (DAEMON, (*ffdl, "list"), (*ffdl, "daemon", "status"), (*ffdl, "daemon", "stop")):
            done = preloaded.run(
                command, env=environ, cwd="/", text=True, capture_output=True, check=False, timeout=LIMIT_S
            )
            assert (done.returncode, done.stdout) == (78, ""), done
            assert f"{copy} is a copy of a state directory" in done.stderr, done
            assert f"remove {copy}/daemon.lock" in done.stderr, done
        world.tell()
        world.await_ends(running)
