"""A spawner on this machine: its socket and its answers, without its checks."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class FakeSpawner:
    """Answers each request by the next of `answers`, and by the last one when there are no more.

    "" closes the connection without an answer. `ok` alone names the socket of the caller's daemon; `on_ok` is called
    before.
    """

    def __init__(self, run_dir: Path, answers: list[str], on_ok: Callable[[], object] = lambda: None) -> None:
        self.run_dir, self.answers, self.on_ok = run_dir, answers, on_ok
        self.requests: list[str] = []
        self.own = run_dir / "users" / str(os.getuid()) / "daemon.sock"
        self.own.parent.mkdir(parents=True)
        run_dir.chmod(0o755)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(run_dir / "spawner.sock"))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection:
                self.requests.append(connection.recv(32).decode())
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer == "ok":
                    self.on_ok()
                    answer = f"ok {self.own}"
                if answer:
                    connection.send(f"{answer}\n".encode())

    def close(self) -> None:
        """Stop listening."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
