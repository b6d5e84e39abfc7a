"""A real SFTP server on loopback: sshd as a process of its own, with keys of its own, and a wire to it that breaks."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

from tests.fakes.s3_server import free_port

START_S = 120
_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host_key
PidFile none
AuthorizedKeysFile {directory}/key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
UsePAM no
StrictModes no
MaxStartups 100
Subsystem sftp internal-sftp
"""


class SshServer:
    """The server, which lets in the user of this process by the key in `key`. `more_config`: lines of sshd_config.
    `under`: a command that starts it."""

    def __init__(self, directory: Path, more_config: str = "", under: tuple[str, ...] = ()) -> None:
        program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            raise FileNotFoundError("no sshd is installed: `apt-get install openssh-server`")
        self.port, self.user, self.key = free_port(), pwd.getpwuid(os.getuid()).pw_name, directory / "key"
        for name in ("host_key", "key", "other_key"):
            make_key(directory / name)
        self.known_hosts = directory / "known_hosts"
        self.write_known_hosts(self.known_hosts, directory / "host_key.pub", self.port)
        self.other_key = directory / "other_key"
        config = directory / "sshd_config"
        config.write_text(_CONFIG.format(port=self.port, directory=directory) + more_config)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd of root goes before it knows a user
        self._log = directory / "sshd.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*under, program, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        self._wait()

    @property
    def pid(self) -> int:
        """Of the process that listens."""
        return self._process.pid

    @staticmethod
    def write_known_hosts(file: Path, public_key: Path, port: int) -> None:
        """A file that knows the server at this port by that key."""
        kind, text, *_ = public_key.read_text().split()
        file.write_text(f"[127.0.0.1]:{port} {kind} {text}\n")

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            if f"Server listening on 127.0.0.1 port {self.port}." in self._log.read_text():
                return  # a connection to a port at which no process listens yet may be one to itself
            time.sleep(0.05)
        raise TimeoutError(self._log.read_text())

    def stop(self) -> None:
        """End it; connections that are open end with their clients."""
        self._process.terminate()
        self._process.wait()


class BreakingWire:
    """Passes bytes on to a port of loopback; each of the first `breaks` connections breaks off after `after_bytes`."""

    def __init__(self, port: int, breaks: int, after_bytes: int) -> None:
        self._target, self.breaks, self._after_bytes = port, breaks, after_bytes
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.connections += 1
                limit = self._after_bytes if self.connections <= self.breaks else 1 << 62
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._join, args=(client, server, limit), daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket, limit: int) -> None:
        with client, server:
            back = threading.Thread(target=self._pass_on, args=(server, client, limit), daemon=True)
            back.start()
            self._pass_on(client, server, limit)
            back.join()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket, left: int) -> None:
        with contextlib.suppress(OSError):
            while left > 0 and (data := one.recv(min(left, 65536))):
                other.sendall(data)
                left -= len(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take no more connections: closing alone would not wake who waits for one."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def make_key(path: Path) -> None:
    """A pair of keys without a passphrase: the file, and the file with .pub."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
