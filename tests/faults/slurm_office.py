"""A user's day with a real daemon and the commands, over the fake Slurm's executables, which misbehave on demand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.daemon_health import BackendHealth
from tests import preloaded
from tests.crash.driver import LIMIT_S
from tests.crash.world import World
from tests.preloaded import FFDL, FFDL_SUBMIT

DAEMON = (sys.executable, "-m", "ffdl_batch.daemon.main", "--personal")
COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo")
SAVES = "trap 'echo saved > $CHECKPOINT_DIR/saved; exit 0' USR2; "
STAYS = "echo $TRAINING_ID >> {base}/runs; while true; do sleep 0.2; done"


class Office(World):
    """One user of one world. `daemon` is the process, once :meth:`start` was called."""

    daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        (self.slurm / "accounts").mkdir(exist_ok=True)
        with (self.base / "daemon.err").open("ab") as errors:
            self.daemon = preloaded.PopenDaemon(
                DAEMON, env=self.environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        self.wait(self.is_served, "a daemon")

    def stop(self) -> None:
        """End the daemon by its id."""
        assert self.daemon is not None
        self.daemon.terminate()
        self.daemon.wait(LIMIT_S)

    def close(self) -> None:
        """As the parent."""
        super().close()
        if self.daemon is not None:
            self.daemon.wait(LIMIT_S)

    def run(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """One `ffdl` to its end."""
        return self._run(FFDL, *arguments, env=env)

    def submit(self, command: str = "", *options: str) -> subprocess.CompletedProcess[str]:
        """One `ffdl-submit` of a learner that runs `command`, else as the world's do."""
        model = self.base / "model"
        model.mkdir(exist_ok=True)
        (model / "train.py").write_text("")
        text = (self.base / "manifest.yml").read_text()
        if command:
            line = f"command: {json.dumps(command.format(base=self.base))}"
            text = re.sub(r"command: .*", lambda _: line, text)
        manifest = self.base / "submitted.yml"
        manifest.write_text(text)
        return self._run(FFDL_SUBMIT, "--parsable", *options, manifest, model)

    def accept(self, command: str = "", *options: str) -> str:
        """The id of a job that is surely accepted."""
        done = self.submit(command, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _run(
        self, program: tuple[str, ...], *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return preloaded.run(
            [*program, *map(str, arguments)],
            env={**self.environment(), "TZ": "UTC", **(env or {})}, cwd=self.base, capture_output=True, text=True,
            check=False, timeout=LIMIT_S,
        )  # fmt: skip

    def show(self, job_id: str) -> dict[str, Any]:
        """The job as `ffdl show --json` has it."""
        with self.client() as client:
            found = to_plain(client.get(job_id))
        assert isinstance(found, dict)
        return found

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of `states`."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            job = self.show(job_id)
            if job["state"] in states:
                return job
            assert time.monotonic() < deadline, f"{job_id} is {job}; {self.diagnosis()}"
            time.sleep(0.1)

    def outages(self) -> tuple[BackendHealth, ...]:
        """Those that a list tells of."""
        with self.client() as client:
            client.list()
            return client.outages

    def spoil_all(self, fault: str) -> None:
        """All commands go wrong from now on; "" = none does."""
        for command in COMMANDS:
            self.spoil(command, *([f"{fault}:always"] if fault else []))

    def asked(self) -> Counter[str]:
        """How often each command was run so far."""
        return Counter({command: len(self.calls(command)) for command in COMMANDS if self.calls(command)})
