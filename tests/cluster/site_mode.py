"""Site mode on a cluster: hub and spawner on ctl, whose files there are in the memory of the node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.executions import wait_until
from tests.cluster.people import Completed, Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS
from tests.fakes.certificates import certificate_for

ADDRESS, PORT, HUB = "10.77.0.1", 8443, 990
URL = f"https://{ADDRESS}:{PORT}"
AUDIT = "/var/lib/ffdl-hub/audit"
SITE = """\
[spawner]
min_uid = 2000
systemd = false
state_dir = "{state_dir}"
environment = {{FFDL_HUB_SOCKET = "/run/ffdl-hub/hub.sock", PATH = "/opt/ffdl/venv/bin:/usr/local/bin:/usr/bin:/bin"}}

[hub]
listen = "{address}:{port}"
certificate = "/etc/ffdl/hub/cert.pem"
key = "/etc/ffdl/hub/key.pem"
audit_file = "{audit}"
operators = {operators}
"""
PREPARE = f"""
set -eu
grep -q '^ffdl:' /etc/passwd || {{
    echo 'ffdl:x:{HUB}:{HUB}::/nonexistent:/usr/sbin/nologin' >>/etc/passwd; echo 'ffdl:x:{HUB}:' >>/etc/group
    echo 'ffdl:*:19000:0:99999:7:::' >>/etc/shadow
}}
printf 'account required pam_unix.so\\nsession required pam_limits.so\\n' >/etc/pam.d/ffdl-user
install -d -o ffdl -g ffdl -m 755 /run/ffdl-hub; install -d -o ffdl -g ffdl -m 700 /var/lib/ffdl-hub
install -d -m 755 /etc/ffdl /etc/ffdl/hub; cat >/etc/ffdl/site.toml
"""
PUT = 'umask 077; cat >"$0"; chown ffdl "$0"'
LEAVE = """
if [ -e ~/.local/state/ffdl/taken-over-by-site ]; then
    cp "$0/$(id -u)/state/ffdl.sqlite3" ~/.local/state/ffdl/ffdl.sqlite3
    rm ~/.local/state/ffdl/taken-over-by-site
fi
rm -f ~/.config/ffdl/tokens.toml
"""
"""A user's way back to a personal daemon, as docs/site-mode.md has it, and no token for a hub that is gone."""
PYTHON = "/opt/ffdl/venv/bin/python3"
PROGRAMS = {
    "spawner": [PYTHON, "-I", "-m", "ffdl_batch.site.spawner"],
    "hub": [
        *("setpriv", f"--reuid={HUB}", f"--regid={HUB}", "--clear-groups"),
        *(PYTHON, "-I", "-m", "ffdl_batch.site.hub.main"),
    ],
}


class Site:
    """The programs that run on a login node."""

    def __init__(
        self, cluster: Cluster, place: Path, operators: Sequence[str] = ("bob",), audit: str = AUDIT,
        node: str = "ctl", address: str = ADDRESS, state_dir: str = "/var/lib/ffdl",
    ) -> None:  # fmt: skip
        """`state_dir` has the directories of users' daemons."""
        self.cluster, self.node, self.url, self._log = cluster, node, f"https://{address}:{PORT}", place / "log"
        self._address, self._state_dir = address, state_dir
        self._running: dict[str, subprocess.Popen[str]] = {}
        settings = {"address": address, "port": PORT, "audit": audit, "state_dir": state_dir}
        site = SITE.format(**settings, operators=json.dumps(list(operators)))
        cluster.run(node, ["sh", "-c", PREPARE], input=site)
        for file in certificate_for(address, place):
            cluster.run(node, ["sh", "-c", PUT, f"/etc/ffdl/hub/{file.name}"], input=file.read_text())

    def start(self, name: str) -> None:
        """Start the hub or the spawner, and wait until the hub answers."""
        with self._log.open("a") as output:
            self._running[name] = self.cluster.popen(self.node, PROGRAMS[name], stdout=output.fileno(), cwd="/")
        if name == "hub":
            listens = ["python3", "-c", f"import socket; socket.create_connection(('{self._address}', {PORT}))"]
            wait_until(lambda: self.cluster.run(self.node, listens, check=False).returncode == 0, self._log.read_text())

    def kill(self, name: str) -> None:
        """End one of them at once. What it has begun is not finished."""
        self.cluster.kill(self._running.pop(name))

    def lose(self) -> None:
        """End all programs and daemons at once, as the loss of the host does."""
        for name in list(self._running):
            self.kill(name)
        for name in USERS:
            for pid in self.daemons(name):
                self.cluster.run(self.node, ["kill", "-KILL", pid], check=False)

    def daemons(self, name: str) -> list[str]:
        """Process ids of the daemons of a user that the spawner has started."""
        found = self.cluster.run(self.node, ["pgrep", "-u", name, "-f", "ffdl_batch.daemon.main --site"], check=False)
        return found.stdout.split()

    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit; none if there is no file."""
        text = self.cluster.run(self.node, ["cat", AUDIT], check=False).stdout
        return [json.loads(line) for line in text.splitlines()]

    def log(self) -> str:
        """What hub and spawner have printed."""
        return self._log.read_text()

    def certificate(self, person: Person) -> str:
        """The hub's certificate in a file of the person's."""
        text = self.cluster.run(self.node, ["cat", "/etc/ffdl/hub/cert.pem"]).stdout
        return person.write(f"~/site-ca-{self.node}.pem", text)

    def as_hub(self, *argv: str) -> Completed:
        """Run a program of the installation as the hub's account, which has no login."""
        become = ["setpriv", f"--reuid={HUB}", f"--regid={HUB}", "--clear-groups"]
        program = [*become, f"/opt/ffdl/venv/bin/{argv[0]}", *argv[1:]]
        return self.cluster.run(self.node, program, env={"HOME": "/var/lib/ffdl-hub"}, cwd="/", check=False)

    def _has_no_daemon(self, name: str) -> bool:
        return not self.daemons(name)

    def close(self) -> None:
        """End all programs and daemons, remove their files, and lead the users back to personal daemons."""
        for name in list(self._running):
            self.kill(name)
        for name in USERS:
            for pid in self.daemons(name):
                self.cluster.run(self.node, ["kill", pid], check=False)
            wait_until(partial(self._has_no_daemon, name), f"the end of the daemon of {name}")
            self.cluster.run(self.node, ["sh", "-ec", LEAVE, self._state_dir], user=name)
        places = ["/etc/ffdl", "/run/ffdl", "/run/ffdl-hub", self._state_dir, "/var/lib/ffdl-hub"]
        self.cluster.run(self.node, ["rm", "-rf", *places])


@contextmanager
def running_site(cluster: Cluster, place: Path, **options: Any) -> Iterator[Site]:
    """Hub and spawner on ctl; `options` as for :class:`Site`."""
    site = Site(cluster, place, **options)
    try:
        site.start("spawner")
        site.start("hub")
        yield site
    finally:
        site.close()


def on_login2(person: Person, *argv: str, check: bool = True) -> Completed:
    """A command on the login node that has neither spawner nor hub."""
    return person.run(*argv, node="login2", check=check, env={"FFDL_HUB": URL})
