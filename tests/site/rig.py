"""A host of its own for the spawner: accounts, groups, PAM and directories in a mount namespace, with real uids."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from ffdl_batch.domain.toml_text import toml_text
from tests.fakes.certificates import certificate_for

ADDRESS = "127.0.0.1"
ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
"""Time for what takes seconds, on a machine however busy."""
HUB, ADA, BOB, EXPIRED, OUTSIDER, GONE = 7000, 7001, 7002, 7003, 7004, 7005
"""Uids. OUTSIDER is in no allowed group; GONE has no account."""
CROWD = 8000
"""The first uid of the further users of a host."""
USERS, OTHERS = 7100, 7101
"""Groups."""
PASSWD = f"""\
root:x:0:0::/root:/bin/sh
ffdl:x:{HUB}:{HUB}::/nonexistent:/usr/sbin/nologin
ada:x:{ADA}:{USERS}::/mnt/ada:/bin/bash
bob:x:{BOB}:{USERS}::/mnt/bob:/bin/bash
eve:x:{EXPIRED}:{USERS}::/mnt/eve:/bin/bash
oskar:x:{OUTSIDER}:{OTHERS}::/mnt/oskar:/bin/bash
kid:x:500:{USERS}::/mnt/kid:/bin/bash
mapped:x:100005:{USERS}::/mnt/mapped:/bin/bash
"""
GROUP = f"root:x:0:\nffdl:x:{HUB}:\nusers:x:{USERS}:\nothers:x:{OTHERS}:\n"
SHADOW = "".join(
    f"{line.partition(':')[0]}:*:19000:0:99999:7::{10 if line.startswith('eve') else ''}:\n"
    for line in PASSWD.splitlines()
)
PAM = "account required pam_unix.so\nsession required pam_limits.so conf=/etc/security/ffdl-limits.conf\n"
LIMITS = "* hard nofile 4000\n* soft nofile 3000\n"
ASK = """
import socket, struct, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
    s.connect(sys.argv[1])
    s.send(bytes.fromhex(sys.argv[2]))
    print(s.recv(600).decode(), end="")
"""


class Host:
    """Files of the host below `place`, and the mount namespace of a process that sees them as its own. It has `crowd`
    users more than those above. `environment` is given to all daemons."""

    def __init__(self, place: Path, crowd: int = 0, environment: Mapping[str, str] | None = None) -> None:
        self.place, self.environment = place, dict(environment or {})
        self._tables: dict[str, str] = {}
        place.chmod(0o755)
        etc = place / "etc"
        etc.mkdir()
        people = {f"u{uid}": uid for uid in range(CROWD, CROWD + crowd)}
        passwd = PASSWD + "".join(f"{name}:x:{uid}:{USERS}::/mnt/{name}:/bin/bash\n" for name, uid in people.items())
        shadow = SHADOW + "".join(f"{name}:*:19000:0:99999:7:::\n" for name in people)
        for name, text in (("passwd", passwd), ("group", GROUP), ("shadow", shadow), ("subuid", "ada:100000:65536\n")):
            (etc / name).write_text(text)
        (etc / "shadow").chmod(0o600)
        for name, text in (("pam.d/ffdl-user", PAM), ("security/ffdl-limits.conf", LIMITS)):
            (etc / name).parent.mkdir()
            (etc / name).write_text(text)
        for name in ("run", "state", "home"):
            (place / name).mkdir()
        for name, uid in {"ada": ADA, "bob": BOB, **people}.items():
            (place / "home" / name).mkdir(mode=0o700)
            os.chown(place / "home" / name, uid, USERS)
        self.configure()
        self._init = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._boot()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._init.stdout is not None and self._init.stdout.read(1) == b"\n"

    def _boot(self) -> list[str]:
        """The command that creates the host, prints an empty line, and stays."""
        script = self._mounts() + "echo; exec sleep 100000"
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]

    def _enter(self) -> list[str]:
        """The command that runs another on this host."""
        return ["nsenter", f"--mount=/proc/{self._init.pid}/ns/mnt"]

    def _mounts(self) -> str:
        """The script that mounts. The interpreter and the project may be below a directory that only root enters."""
        lines = []
        for place in {closed for path in (ROOT, Path(sys.base_prefix), Path(sys.prefix)) for closed in _closed(path)}:
            copy = self.place / f"open{str(place).replace('/', '-')}"
            copy.mkdir(mode=0o755)
            for entry in place.iterdir():
                if any(path.is_relative_to(entry) for path in (ROOT, Path(sys.base_prefix), Path(sys.prefix))):
                    (copy / entry.name).mkdir()
                    lines.append(f"mount --rbind {entry} {copy / entry.name}\n")
            lines.append(f"mount --rbind {copy} {place}\n")
        etc = self.place / "etc"
        for name in ("passwd", "group", "shadow"):
            lines.append(f"mount --bind {etc / name} /etc/{name}\n")
        lines.append(f"mount --bind {self.place / 'home'} /mnt\n")
        lines.append(f"[ -e /etc/subuid ] || : >/etc/subuid; mount --bind {etc / 'subuid'} /etc/subuid\n")
        for name in ("pam.d", "security"):
            lines.append(f"mount --bind {etc / name} /etc/{name}\n")
        return "".join(lines)

    def configure(self, **changes: object) -> None:
        """Write the site file."""
        values: dict[str, object] = {
            "hub_user": "ffdl",
            "allowed_groups": ["users"],
            "run_dir": str(self.place / "run"),
            "state_dir": str(self.place / "state"),
            "systemd": False,
            "environment": {"SLURM_CONF": "/etc/slurm/slurm.conf", "FFDL_HUB_SOCKET": str(self.place / "hub/hub.sock")}
            | self.environment,
            **changes,
        }
        self._write("spawner", values)

    def configure_hub(self, **changes: object) -> None:
        """Write the site file of the hub; it is a file of its own here."""
        values: dict[str, object] = {
            "socket": str(self.place / "hub/hub.sock"),
            "database_url": f"sqlite:///{self.place}/hub/hub.db",
            "audit_file": str(self.place / "hub/audit"),
            **changes,
        }
        self._write("hub", values)

    def _write(self, name: str, values: Mapping[str, object]) -> None:
        """Replace one table of the site file."""
        self._tables[name] = f"[{name}]\n" + "".join(f"{k} = {toml_text(v)}\n" for k, v in values.items())
        (self.place / "site.toml").write_text("".join(self._tables.values()))

    def inside(self, argv: Sequence[str], uid: int = 0) -> list[str]:
        """The command that runs `argv` on this host, as a user."""
        groups = ["--regid", str(HUB if uid == HUB else USERS), "--clear-groups"]
        user = ["setpriv", "--reuid", str(uid), *groups] if uid else []
        return [*self._enter(), *user, *argv]

    def python(self, code: str, *arguments: str, uid: int) -> str:
        """The output of a program of a user."""
        argv = self.inside([sys.executable, "-I", "-c", code, *arguments], uid)
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, cwd="/").stdout

    def ask(self, uid: int, request: str) -> str:
        """The spawner's answer to a user."""
        return self.python(ASK, str(self.place / "run/spawner.sock"), request.encode().hex(), uid=uid).rstrip("\n")

    def close(self) -> None:
        """End the namespace's first process."""
        self._init.kill()
        self._init.wait()
        assert self._init.stdout is not None
        self._init.stdout.close()


class Spawner:
    """A spawner that runs on a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.log = host.place / "spawner.log"
        self.log.unlink(missing_ok=True)
        for starts in host.place.glob("run/users/*/starts"):
            starts.unlink()
        with self.log.open("ab") as output:
            argv = host.inside(self.argv(host))
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=output, cwd="/")
        deadline = time.monotonic() + LIMIT_S
        while "serving" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    @staticmethod
    def argv(host: Host) -> list[str]:
        """The command."""
        return [sys.executable, "-I", "-m", "ffdl_batch.site.spawner", str(host.place / "site.toml")]

    def daemons(self) -> list[int]:
        """Process ids of all daemons that it has started, in order."""
        return [int(number) for number in re.findall("started process ([0-9]+) ", self.log.read_text())]

    def close(self) -> None:
        """End it and the daemons."""
        for pid in self.daemons():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def daemon_socket(host: Host, uid: int) -> Path:
    """The socket of a user's daemon."""
    return host.place / f"run/users/{uid}/daemon.sock"


def ensure(host: Host, uid: int, by: int | None = None) -> str:
    """Ask the spawner for a user's daemon, as another user if `by` is given; return its reply."""
    return host.ask(uid if by is None else by, f"ensure {uid}\n")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Hub:
    """A hub that runs on a host as its own account, with HTTPS on loopback."""

    def __init__(self, host: Host, **settings: object) -> None:
        self.host = host
        own = host.place / "hub"
        own.mkdir(exist_ok=True)
        os.chown(own, HUB, HUB)
        own.chmod(0o755)
        self.certificate, key = certificate_for(ADDRESS, own)
        os.chown(key, HUB, HUB)
        with socket.create_server((ADDRESS, 0)) as free:
            self.port = free.getsockname()[1]
        host.configure_hub(listen=f"{ADDRESS}:{self.port}", certificate=str(self.certificate), key=str(key), **settings)
        self.log = host.place / "hub.log"
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self.log.open("wb") as output, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            place = self.host.place / "hub/ready"
            place.unlink(missing_ok=True)
            ready.bind(str(place))
            place.chmod(0o777)
            program = [sys.executable, "-I", "-m", "ffdl_batch.site.hub.main"]
            argv = [*program, "--site-file", f"{self.host.place}/site.toml"]
            self.process = subprocess.Popen(
                self.host.inside(argv, HUB), stdin=subprocess.DEVNULL, stderr=output, cwd="/",
                env={**os.environ, **self.host.environment, "NOTIFY_SOCKET": str(place)},
            )  # fmt: skip
            # Not by connections to the port: while no process listens there, one may connect to itself.
            deadline = time.monotonic() + LIMIT_S
            while not select.select([ready], [], [], 0.1)[0]:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            assert ready.recv(100) == b"READY=1"

    def ask(self, token: str, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Send a request over HTTPS; the status and the reply."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = HTTPSConnection(ADDRESS, self.port, timeout=LIMIT_S, context=context)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        text = json.dumps(body) if body is not None else None
        try:
            connection.request(method, path, text, headers | ({"Content-Type": "application/json"} if text else {}))
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit."""
        return [json.loads(line) for line in (self.host.place / "hub/audit").read_text().splitlines()]

    def close(self) -> None:
        """End it in order."""
        self.process.terminate()
        assert self.process.wait(LIMIT_S) == 0, self.log.read_text()


def _closed(path: Path) -> list[Path]:
    """The directories above a path that users other than root cannot enter."""
    return [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
