"""A user of the cluster, who does what users do: types commands on a login node."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.rig import Cluster
from tests.slow_machine import without_waits

EXAMPLE = "/opt/ffdl/src/docs/examples/digits"
Completed = subprocess.CompletedProcess[str]
_FIELD = re.compile(r"(\S+?)=(.*?)(?= [A-Za-z][\w/:]*=|$)")


class Person:
    """`name` is a user of the cluster; commands run on login node `node`, with `env` on top of a bare login's."""

    def __init__(self, cluster: Cluster, name: str, env: Mapping[str, str] | None = None) -> None:
        self.cluster, self.name, self.env = cluster, name, dict(env or {})
        self.home = f"/home/{name}"
        self.state = self.env.get("FFDL_STATE_DIR", f"{self.home}/.local/state/ffdl")

    def at(self, place: str, config: str) -> Person:
        """The same user with a second daemon, in ``~/<place>``, and `config` over the usual configuration."""
        path = self.write(f"~/{place}/config.toml", config)
        base = f"{self.home}/{place}"
        return Person(
            self.cluster,
            self.name,
            {"FFDL_CONFIG": path, "FFDL_STATE_DIR": f"{base}/state", "FFDL_SOCKET": f"{base}/ffdl.sock"},
        )

    def run(
        self,
        *argv: str,
        node: str = "ctl",
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 300.0,
    ) -> Completed:
        """One command."""
        done = self.cluster.run(
            node,
            list(argv),
            user=self.name,
            check=check,
            env={**self.env, **(env or {})},
            cwd=cwd or self.home,
            timeout_s=timeout_s,
        )
        done.stderr = without_waits(done.stderr)
        return done

    def popen(self, *argv: str, node: str = "ctl", env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command and go on; both outputs come in one pipe. End it with `Cluster.kill`."""
        return self.cluster.popen(node, list(argv), user=self.name, env={**self.env, **(env or {})}, cwd=self.home)

    def write(self, path: str, text: str, *, executable: bool = False) -> str:
        """A file of theirs (``~/`` is the home); returns its path on the nodes."""
        absolute = path.replace("~", self.home, 1)
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1"' + (' && chmod +x "$1"' if executable else "")
        self.cluster.run("ctl", ["sh", "-c", script, "sh", absolute], user=self.name, input=text)
        return absolute

    def read(self, path: str) -> str:
        """The text of a file, as they may read it."""
        return self.run("cat", path).stdout

    def model(self, name: str, files: Mapping[str, str]) -> str:
        """A model directory with these files."""
        for file, text in files.items():
            self.write(f"~/models/{name}/{file}", text)
        return f"{self.home}/models/{name}"

    def manifest(self, name: str, command: str, extra: str = "", **fields: object) -> str:
        """A manifest for the python-numpy image with one GPU; `extra` is appended as it is."""
        values: dict[str, object] = {"cpus": 1, "gpus": 1, "memory": "256MiB", "learners": 1} | fields
        lines = [f"name: {json.dumps(name)}", *(f"{key}: {value}" for key, value in values.items())]
        lines += ["framework:", "  name: custom", "  version: python-numpy", f"  command: {json.dumps(command)}", extra]
        return self.write(f"~/manifests/{name}.yml", "\n".join(lines) + "\n")

    def submit(self, manifest: str, model: str, *options: str, node: str = "ctl") -> str:
        """The id of an accepted job."""
        result = self.run("ffdl-submit", "--parsable", *options, manifest, model, node=node)
        job_id = result.stdout.strip()
        assert re.fullmatch(r"training-[0-9a-z]{9}", job_id), result
        return job_id

    def submit_all(self, manifests: Sequence[str], model: str, *options: str) -> list[str]:
        """The ids of several accepted jobs that share one model, sent by one command."""
        ids = self.run("ffdl-submit", "--parsable", *options, *manifests, model).stdout.split()
        assert len(ids) == len(manifests), ids
        return ids

    def start(self, name: str, command: str, *options: str, extra: str = "", **fields: object) -> str:
        """Submit a one-line learner."""
        model = self.model("empty", {"README": "nothing here\n"})
        return self.submit(self.manifest(name, command, extra, **fields), model, *options)

    def show(self, job_id: str) -> dict[str, Any]:
        """What `ffdl show --json` prints of a job."""
        job: dict[str, Any] = json.loads(self.run("ffdl", "show", "--json", job_id).stdout)["job"]
        return job

    def finish(self, job_id: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait for the end and show it."""
        began = time.monotonic()
        self.run("ffdl", "wait", f"--timeout={timeout_s}", job_id, check=False, timeout_s=timeout_s + 60)
        left = max(1.0, timeout_s - (time.monotonic() - began))  # a daemon that is killed may end the waiting early
        return self.until(job_id, {"COMPLETED", "FAILED", "HALTED", "CANCELLED"}, left)

    def finish_all(self, job_ids: Sequence[str], timeout_s: float = 600.0) -> list[dict[str, Any]]:
        """Wait for the end of all of them and show them, in order."""
        argv = ["ffdl", "wait", f"--timeout={timeout_s}", *job_ids]
        waited = self.run(*argv, check=False, timeout_s=timeout_s + 60)
        shown = self.run("ffdl", "show", "--json", *job_ids).stdout.splitlines()
        jobs = [dict(json.loads(line)["job"]) for line in shown]
        assert all(job["ended_at"] for job in jobs), (waited, [(job["id"], job["state"]) for job in jobs])
        return jobs

    def until(self, job_id: str, states: set[str], timeout_s: float = 400.0) -> dict[str, Any]:
        """Wait until the job is in one of `states`; fails when it has ended in another."""
        deadline = time.monotonic() + timeout_s
        while (asked := time.monotonic()) < deadline:
            job = self.show(job_id)
            if job["state"] in states:
                return job
            if job["ended_at"]:
                break
            time.sleep(max(0.3, time.monotonic() - asked))  # half of the time at most: others need the cores
        raise AssertionError(f"{job_id} is {job['state']}, not {states}: {json.dumps(job, indent=1)}")

    def logs(self, job_id: str, *options: str) -> str:
        """The job's log."""
        return self.run("ffdl", "logs", *options, job_id).stdout

    def daemon(self) -> dict[str, Any] | None:
        """The lock file of the running daemon."""
        result = self.run("cat", f"{self.state}/daemon.lock", check=False)
        return dict(json.loads(result.stdout)) if result.returncode == 0 and result.stdout.strip() else None

    def kill_daemon(self, signal: str = "KILL") -> None:
        """End the daemon by its own process id on its own node."""
        holder = self.daemon()
        if holder is not None:
            self.cluster.run(str(holder["host"]), ["kill", f"-{signal}", str(holder["pid"])], check=False)

    def sacct(self, native_id: str, *fields: str) -> Sequence[str]:
        """Fields of the job in the accounting, once it is there."""
        argv = ["sacct", "-n", "-X", "-P", "-j", native_id, "-o", ",".join(fields)]
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            out = self.run(*argv).stdout.strip()
            if out:
                return out.splitlines()[0].split("|")
            time.sleep(0.5)
        raise AssertionError(f"sacct does not know {native_id}: {shlex.join(argv)}")

    def accounted(self, native_id: str, *fields: str) -> Sequence[str]:
        """Fields of a job that has ended, once the accounting has heard of that: it comes after Slurm's own word."""
        deadline = time.monotonic() + 300
        while (found := self.sacct(native_id, "End", *fields))[0] == "Unknown":
            assert time.monotonic() < deadline, f"sacct does not know of the end of {native_id}"
            time.sleep(0.5)
        return found[1:]

    def batch_fields(self, native_id: str) -> dict[str, str]:
        """What ``scontrol show job`` says, by field."""
        text = self.run("scontrol", "-o", "show", "job", native_id).stdout.strip()
        return dict(_FIELD.findall(text))

    def job_ids(self) -> set[str]:
        """The ids of all jobs that they ever submitted."""
        listed = self.run("ffdl", "list", "--limit=9999", "--json").stdout
        return set(re.findall(r"training-[0-9a-z]{9}", listed))

    def queue(self) -> set[str]:
        """The native ids of their jobs that Slurm holds as living."""
        return set(self.run("squeue", "-h", "-u", self.name, "-o", "%A").stdout.split())

    def host_path(self, path: str) -> Path:
        """Where the test process finds a file of the nodes."""
        return self.cluster.path("ctl", path)

    def leave(self) -> None:
        """Cancel what still runs, and end the daemon."""
        self.cluster.run("ctl", ["scancel", "-u", self.name], user=self.name, check=False)
        self.kill_daemon("TERM")
