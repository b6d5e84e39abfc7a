"""A login node on loopback: a real sshd with keys of its own, a home directory of its own, and ffdl on its PATH.

Its user is this process's. What the node's shell knows comes from the profile of that home alone, as at a site where
modules bring Slurm and ffdl. Everything that is started there is ended by its pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests import preloaded
from tests.fakes.ssh_server import SshServer, make_key

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT_S = 180.0
_FFDL = "from ffdl_batch.entry import ffdl; ffdl()"
_ASK = """\
import json, os, socket, sys
to = socket.socket(socket.AF_UNIX)
to.connect(sys.argv[1])
request = {"words": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}
socket.send_fds(to, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(int(to.recv(16)))
"""
"""What the node runs as `ffdl daemon relay`."""


class _Relays:
    """Runs `ffdl daemon relay` of a node as forks of the preloaded server: each connection of a laptop starts one."""

    def __init__(self, path: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._run, args=(self._server.accept()[0],), daemon=True).start()

    def _run(self, asking: socket.socket) -> None:
        with asking, contextlib.suppress(OSError):
            data, streams, _, _ = socket.recv_fds(asking, 1 << 17, 3)
            request = json.loads(data)
            argv, (given, out, errors) = [sys.executable, "-c", _FFDL, *request["words"]], streams
            env, cwd = request["env"], request["cwd"]
            process = preloaded.Popen(argv, env=env, cwd=cwd, stdin=given, stdout=out, stderr=errors)
            for stream in streams:
                os.close(stream)
            asking.sendall(str(process.wait() % 256).encode())

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


class LoginNode:
    """sshd, and the home directory behind it. `name` is what ``ssh_config`` of the laptop calls it."""

    def __init__(self, directory: Path, name: str = "login", profile: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.name = directory, name
        self.home = directory / "home"
        self.bin = self.home / "bin"
        self.bin.mkdir(parents=True)
        self.state = self.home / "state"
        self.known: dict[str, str] = {
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "FFDL_STATE_DIR": str(self.state),
            "FFDL_SOCKET": str(directory / "s" / "ffdl.sock"),
            "FFDL_BACKEND": "",
            "PYTHONPATH": str(REPOSITORY),
            "FFDL_IDLE_EXIT_S": "30",
            "FFDL_DATA_MOUNT": "never",
            **(profile or {}),
        }
        relays, ask = directory / "relays", directory / "ask.py"
        ask.write_text(_ASK)
        self._relays = _Relays(relays)
        self.write_program(
            "ffdl",
            f'case "$*" in *"daemon relay") exec {sys.executable} -I -S {ask} {relays} "$@";; esac\n'
            f'exec {sys.executable} -c "{_FFDL}" "$@"',
        )
        self.write_profile("")
        self.server = SshServer(directory, f"SetEnv HOME={self.home} SHELL=/bin/bash\n")

    def write_program(self, name: str, text: str) -> None:
        """A program that its login shell finds first."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def write_profile(self, more: str) -> None:
        """What its shell does at login; `more` comes first."""
        lines = [f"export {name}='{value}'" for name, value in self.known.items()]
        (self.home / ".bash_profile").write_text("\n".join([more, *lines, ""]))

    def config(self, **options: str) -> str:
        """Its lines of the laptop's ssh_config."""
        values = {
            "HostName": "127.0.0.1",
            "Port": str(self.server.port),
            "User": self.server.user,
            "IdentityFile": str(self.server.key),
            "UserKnownHostsFile": str(self.server.known_hosts),
            "GlobalKnownHostsFile": "none",
            **options,
        }
        return "\n".join([f"Host {self.name}", *(f"  {key} {value}" for key, value in values.items()), ""])

    def processes(self) -> list[int]:
        """What runs there: processes whose environment or arguments name something below its home."""
        mark = f"{self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    def stop(self) -> None:
        """End the server and everything that was started behind it."""
        self._relays.stop()
        self.server.stop()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + 5
            while self.processes() and time.monotonic() < deadline:
                time.sleep(0.05)


class Laptop:
    """A machine without Slurm and without a daemon of its own: a home, an ssh_config, and ffdl."""

    def __init__(self, directory: Path, *configs: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.config = directory / "ssh_config"
        self.write_config(*configs)
        self.environ: dict[str, str] = {
            "HOME": str(directory),
            "PATH": os.environ["PATH"],
            "FFDL_SSH_CONFIG": str(self.config),
            "FFDL_STATE_DIR": str(directory / "state"),
            "FFDL_HOST": "login",
        }

    def write_config(self, *configs: str) -> None:
        """What its ssh knows."""
        self.config.write_text("\n".join(configs))

    def argv(self, program: str, words: Sequence[str]) -> list[str]:
        """One of our programs, as a process of its own."""
        entry = {"ffdl": "ffdl", "ffdl-submit": "ffdl_submit"}[program]
        return [sys.executable, "-c", f"from ffdl_batch.entry import {entry}; {entry}()", *words]

    @contextlib.contextmanager
    def start(self, *words: str, program: str = "ffdl") -> Iterator[subprocess.Popen[str]]:
        """A command that runs while the block does."""
        process = preloaded.Popen(
            self.argv(program, words),
            env=self.environ,
            cwd=self.directory,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

    def run(self, *words: str, program: str = "ffdl", text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return preloaded.run(
            self.argv(program, words),
            check=False,
            env=self.environ,
            cwd=self.directory,
            text=True,
            capture_output=True,
            timeout=LIMIT_S,
            **({"stdin": subprocess.DEVNULL} if text is None else {"input": text}),
        )


__all__ = ["LIMIT_S", "Laptop", "LoginNode", "make_key"]
