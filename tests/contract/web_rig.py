"""A real `ffdl web` beside a real daemon, and a client of its HTTP."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

from tests.contract.daemon_rig import LIMIT_S, until
from tests.contract.test_daemon_logs import Desk

ADDRESS = re.compile(r"http://localhost:(\d+)(/open\?token=\S+)")


SWEEP_PROGRAM = """\
import os
begin = float(os.environ["LR"]) + 2 * (os.environ["OPT"] == "sgd")
for step in range(4):
    print(f"step {step} loss={begin + 1 / (1 + step)}", flush=True)
"""
SWEEP = """\
name: sweep
framework: {name: custom, version: python-numpy, command: python3 sweep.py}
cpus: 1
memory: 100MB
evaluation_metrics:
  type: regex_extractor
  groups:
    train:
      regex: 'step (?P<step>\\d+) loss=(?P<loss>[0-9.]+)'
      scalars: {loss: {type: FLOAT, value: $loss}}
      etimes: {iteration: {type: INT, value: $step}}
batch:
  sweep: {OPT: [adam, sgd], LR: ['0.001', '1']}
"""


def run_sweep(desk: Desk) -> str:
    """The id of an array that has measured its loss: 1 more than the learning rate at first, and 2 more with sgd."""
    (desk.base / "model" / "sweep.py").write_text(SWEEP_PROGRAM)
    manifest = desk.base / "sweep.yml"
    manifest.write_text(SWEEP)
    array = desk.run("submit", "--parsable", str(manifest), str(desk.base / "model")).strip()
    desk.run("wait", array)
    return array


class Page:
    """A running `ffdl web` and the cookie of its page."""

    def __init__(self, desk: Desk, process: subprocess.Popen[bytes], output: Path) -> None:
        self.desk, self.process, self._output = desk, process, output
        self.cookie = ""

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def address(self) -> str:
        """The one-time address."""
        return str(ADDRESS.findall(self.said)[-1][1])

    @property
    def port(self) -> int:
        return int(ADDRESS.findall(self.said)[-1][0])

    @property
    def socket(self) -> Path:
        (found,) = re.findall(r"-L \d+:(\S+) ", self.said)
        return Path(found)

    def connect(self) -> http.client.HTTPConnection:
        if "-L " not in self.said:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection = http.client.HTTPConnection("localhost", 8470, timeout=LIMIT_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(LIMIT_S)
        connection.sock.connect(str(self.socket))
        return connection

    def ask(
        self, path: str, form: list[tuple[str, str]] | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Status, body and headers of the answer; with `form`, of a POST from the page itself."""
        with contextlib.closing(self.connect()) as connection:
            sent = {"Host": "localhost:8470", "Cookie": self.cookie, **(headers or {})}
            if form is None:
                connection.request("GET", path, headers=sent)
            else:
                own = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost:8470"}
                connection.request("POST", path, urlencode(form), {**own, **sent})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace"), answer.headers

    def sign_in(self) -> None:
        status, _, headers = self.ask(self.address)
        assert status == 303
        self.cookie = headers["Set-Cookie"].partition(";")[0]

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(LIMIT_S)


@contextlib.contextmanager
def page_of(desk: Desk, *options: str) -> Iterator[Page]:
    """`ffdl web` with these options, until the block ends."""
    output = desk.base / "web-output"
    argv = [sys.executable, "-c", "from ffdl_batch.cli.main import main; main()", "web", *options]
    environment = {**desk.site.environment(), "XDG_RUNTIME_DIR": str(desk.base)}
    with output.open("wb") as out:
        process = subprocess.Popen(
            argv, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    page = Page(desk, process, output)
    try:
        until(lambda: ADDRESS.search(page.said) or process.poll() is not None, lambda: f"an address: {page.said}")
        yield page
    finally:
        process.kill()
        process.wait()
