"""The daemons of a node: how each is started, how it is stopped, and how the accounting gets its first content.

Daemons detach themselves and become children of the node's process 1, so they live on when the rig's process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .errors import RigError
from .rootfs import USERS
from .topology import CLUSTER_NAME

_STOP_TIMEOUT_S = 90.0
"""As systemd's TimeoutStopSec by default, after which it kills; a slurmctld that is busy with RPCs may need it."""


class Service(StrEnum):
    """A daemon that tests may stop and start."""

    SLURMCTLD = "slurmctld"
    SLURMD = "slurmd"
    SLURMDBD = "slurmdbd"
    MARIADB = "mariadb"
    SSHD = "sshd"
    CRON = "cron"


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Shell text that starts a daemon, and its pid file; both as seen inside the node."""

    start: str
    pid_file: str


_RECIPES = {
    Service.SLURMCTLD: _Recipe("slurmctld </dev/null >>/var/log/slurm/start.log 2>&1", "/run/slurm/slurmctld.pid"),
    Service.SLURMD: _Recipe(
        "slurmd -N $(hostname) </dev/null >>/var/log/slurm/start.log 2>&1", "/run/slurm/slurmd.pid"
    ),
    Service.SLURMDBD: _Recipe("slurmdbd </dev/null >>/var/log/slurm/start.log 2>&1", "/run/slurm/slurmdbd.pid"),
    Service.MARIADB: _Recipe(
        # Two names for the socket's directory: Debian's client library changed its default after bookworm.
        """
        mkdir -p /run/mysqld; ln -sfn mysqld /run/mariadbd; chown mysql:mysql /run/mysqld /var/lib/mysql
        [ -d /var/lib/mysql/mysql ] || mariadb-install-db --user=mysql --datadir=/var/lib/mysql --skip-test-db \\
            --auth-root-authentication-method=normal >>/var/log/slurm/mariadb.log 2>&1
        setsid mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock \\
            --pid-file=/run/mysqld/mysqld.pid --skip-networking --innodb-buffer-pool-size=64M \\
            --innodb-log-file-size=16M --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 \\
            --innodb-lock-wait-timeout=900 </dev/null >>/var/log/slurm/mariadb.log 2>&1 &
        for _ in $(seq 3000); do
            mariadb -S /run/mysqld/mysqld.sock -e 'select 1' >/dev/null 2>&1 && break
            sleep 0.05
        done
        mariadb -S /run/mysqld/mysqld.sock -e "create database if not exists slurm_acct_db;
            create user if not exists slurm@localhost identified by ''; grant all on slurm_acct_db.* to slurm@localhost"
        """,
        "/run/mysqld/mysqld.pid",
    ),
    Service.SSHD: _Recipe("/usr/sbin/sshd </dev/null >>/var/log/slurm/start.log 2>&1", "/run/sshd.pid"),
    Service.CRON: _Recipe("cron </dev/null >>/var/log/slurm/start.log 2>&1", "/run/crond.pid"),
}

# high may preempt normal where the site says preempt/qos; with preempt/partition_prio it is only a priority.
_ACCOUNTS = f"""
for _ in $(seq 3000); do sacctmgr -n list cluster >/dev/null 2>&1 && break; sleep 0.05; done
sacctmgr -i add cluster {CLUSTER_NAME}
sacctmgr -i add account ffdl Description=ffdl Organization=ffdl
sacctmgr -i add qos high priority=1000 preempt=normal PreemptMode=requeue
sacctmgr -i modify qos normal set GraceTime=30
sacctmgr -i add user {",".join(USERS)} account=ffdl qos=normal,high defaultqos=normal
"""

# Runs a shell script in a node as root; raises RigError when it fails.
Shell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The daemons of one running node. `root` is the node's / as the host sees it (/proc/PID/root)."""

    node: str
    root: Path
    shell: Shell

    def start(self, service: Service) -> None:
        """Start a daemon; returns when it has detached, which is before it answers."""
        self.shell(_RECIPES[service].start)

    def pid(self, service: Service) -> int | None:
        """The daemon's process number inside the node, None when it does not run."""
        try:
            pid = int((self.root / _RECIPES[service].pid_file.lstrip("/")).read_text())
        except (OSError, ValueError):
            return None
        return pid if self._running(pid) else None

    def stop(self, service: Service, *, signal: str = "TERM") -> None:
        """Stop a daemon and wait until it is gone. With signal="KILL" it dies as in a crash; with another it is killed
        when it has not ended in good time, as a service manager would."""
        pid = self.pid(service)
        if pid is None:
            return
        for number in dict.fromkeys((signal, "KILL")):
            self.shell(f"kill -{number} {pid} 2>/dev/null || :")  # it may end just now
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            while self._running(pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            if not self._running(pid):
                return
            print(
                f"rig: {service} on {self.node} did not end within {_STOP_TIMEOUT_S:.0f} s of SIG{number}", flush=True
            )
        raise RigError(f"{service} on {self.node} does not end")

    def make_accounts(self) -> None:
        """Give a new accounting database its cluster, account, QOS and users. Waits for slurmdbd."""
        self.shell(_ACCOUNTS)

    def _running(self, pid: int) -> bool:
        try:
            state = (self.root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"
