"""The fake Slurm on a host of site mode, where the hub runs it as its own account."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

FAKES = Path(__file__).parents[1] / "fakes/bin"


class SiteSlurm:
    """The state of the fake Slurm below `place`, which all users of the host may write."""

    def __init__(self, place: Path) -> None:
        self._state = place / "slurm"
        (self._state / "jobs").mkdir(parents=True)
        for directory in (self._state, self._state / "jobs"):
            directory.chmod(0o777)
        for name in ("slurm.conf", "lock", "calls.log"):
            (self._state / name).touch()
            (self._state / name).chmod(0o666)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the processes that run its commands."""
        path = os.pathsep.join((str(FAKES), os.environ["PATH"]))
        return {"PATH": path, "SLURM_CONF": str(self._state / "slurm.conf")}

    def add_job(self, number: int, uid: int, name: str = "training-0a1b2c3d4-1") -> None:
        """Let a job of a user run."""
        record = {"id": str(number), "uid": uid, "name": name, "state": "RUNNING", "reason": "None", "exit": "0:0",
                  "submit": int(time.time()), "start": int(time.time()), "end": 0, "nodes": "n1", "restarts": 0,
                  "options": {}, "excluded": "", "runner": 0}  # fmt: skip
        (self._state / "jobs" / f"{number}.json").write_text(json.dumps(record))

    def commands(self) -> list[list[str]]:
        """The commands that were run."""
        calls = map(json.loads, (self._state / "calls.log").read_text().splitlines())
        return [[call["command"], *call["argv"]] for call in calls]
