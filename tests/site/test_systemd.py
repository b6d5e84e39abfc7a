"""The spawner and its daemons as units of a real systemd, which boots once for this file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffdl_batch.domain.toml_text import toml_text
from tests.fakes.certificates import certificate_for
from tests.site.booted import SystemdHost
from tests.site.rig import ADA, BOB, EXPIRED, LIMITS, ROOT, until

SITE = """\
[spawner]
hub_user = "ffdl"
starts_per_minute = 60
environment = {FFDL_IDLE_EXIT_S = "%s"}
tenants = {vision = 300000}

[hub]
operators = ["ada"]
listen = "127.0.0.1:8443"
requests_per_minute = 1000000
wrong_tokens_per_minute = 1000000
"""
WRITE = "import sys; open('/etc/ffdl/site.toml', 'w').write(sys.argv[1])"
LOGIN_PAM = "account required pam_permit.so\nsession required pam_systemd.so\n"
LOGIN = """
import subprocess, sys
ask = [sys.executable, "-I", "-c", sys.argv[1], sys.argv[2]]
print(subprocess.run(ask, check=True, text=True, stdout=subprocess.PIPE).stdout, end="")
nowhere = subprocess.DEVNULL
left = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)
print(left.pid, "/session-" in open("/proc/self/cgroup").read())
"""
"""Asks for the daemon from a login session, and leaves a process in it."""
LEAVES = """
import os, subprocess, sys
for tree in ("", "/systemd", "/unified"):
    place = f"/sys/fs/cgroup{tree}{sys.argv[1]}/cgroup.procs"
    if os.path.exists(place):
        open(place, "w").write(str(os.getpid()))
nowhere = subprocess.DEVNULL
print(subprocess.Popen(["sleep", "1000"], stdin=nowhere, stdout=nowhere, stderr=nowhere).pid)
"""
"""Leaves a process in the cgroup of a unit, as a job of the backend `local`."""
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    s.settimeout(300)
    s.connect("/run/ffdl/spawner.sock")
    s.send(f"ensure {sys.argv[1]}\\n".encode())
    print(s.recv(600).decode(), end="")
"""
GET = """
import socket, struct, sys
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(300)
    s.connect(f"/run/ffdl/users/{sys.argv[1]}/daemon.sock")
    s.sendall(b"GET /api/v1/jobs HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    print(struct.unpack("=iII", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1], s.recv(15).decode())
"""
"""Prints whose process listens, and the status of the daemon's answer."""


class Site(SystemdHost):
    """A host with the units and the PAM service of slurm-configs, as they are rendered for a site."""

    def __init__(self, place: Path) -> None:
        files = place / "files"
        render = [
            sys.executable,
            str(ROOT / "slurm-configs/render.py"),
            "--values",
            str(ROOT / "slurm-configs/values.env"),
        ]
        values = place / "values.env"
        values.write_text(f"FFDL_BIN={Path(sys.executable).parent}\nACCOUNTING_STORAGE_HOST=db\n")
        subprocess.run([*render, "--values", str(values), "--out", str(place / "rendered")], check=True)
        (files / "systemd").mkdir(parents=True)
        (files / "systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\n")
        (files / "ffdl").mkdir()
        (files / "ffdl/site.toml").write_text(SITE % 1000)
        shutil.copytree(place / "rendered/systemd", files / "systemd/system")
        port = files / "systemd/system/ffdl-hub.socket.d/port.conf"
        port.parent.mkdir()
        port.write_text("[Socket]\nListenStream=127.0.0.1:8443\n")
        if any(Path(sys.base_prefix).is_relative_to(home) for home in ("/root", "/home")):
            for name in ("spawner", "hub"):
                own = files / f"systemd/system/ffdl-{name}.service.d/python.conf"
                own.parent.mkdir()
                own.write_text("[Service]\nProtectHome=read-only\n")
            sandbox = files / "systemd/system/ffdl-tenant-.service.d/20-python.conf"
            sandbox.write_text("[Service]\nProtectHome=read-only\n")
        super().__init__(place, files)

    def _wait(self) -> None:
        """Wait until the spawner listens."""
        argv = [sys.executable, "-I", "-c", ASK, "none"]
        until(lambda: self.finish(argv).returncode == 0, "the spawner")

    def _boot(self) -> list[str]:
        pam = self.place / "etc/pam.d"
        shutil.copy(self.place / "rendered/pam.d/ffdl-user", pam)
        (pam / "common-account").write_text("account required pam_unix.so\n")
        (pam / "login").write_text(LOGIN_PAM)
        (self.place / "etc/security/limits.conf").write_text(LIMITS)
        return super()._boot()

    def restart(self, idle_s: int = 1000) -> None:
        """Restart the spawner; daemons that it starts end when they are idle for so long."""
        self.python(WRITE, SITE % idle_s, uid=0)
        self.run("systemctl", "restart", "ffdl-spawner.service")
        self._wait()

    def ensure(self, uid: int) -> str:
        """The spawner's answer to a user who asks for the own daemon."""
        return self.python(ASK, str(uid), uid=uid).rstrip("\n")

    def units(self, uid: int, kind: str = "user") -> list[str]:
        """Units of a user's or tenant's daemons that systemd has loaded."""
        listed = self.run("systemctl", "list-units", "--all", "--plain", "--no-legend", f"ffdl-{kind}-{uid}-*")
        return [line.split()[0] for line in listed.splitlines()]

    def exists(self, pid: str) -> bool:
        """Whether a process of the host exists."""
        return self.finish(["test", "-e", f"/proc/{pid}"]).returncode == 0


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    place = Path(tempfile.mkdtemp(prefix="ffdl-site-"))
    made = Site(place)
    try:
        made.restart()
        yield made
    finally:
        made.close()
        shutil.rmtree(place)


@pytest.fixture(autouse=True)
def no_daemons(site: Site) -> None:
    """Stop the daemons of an earlier test."""
    site.run("systemctl", "stop", "ffdl-users.slice")


def main_pid(site: Site, uid: int) -> str:
    """The process of the user's daemon, which has to be the only one."""
    (unit,) = site.units(uid)
    return site.properties(unit)["MainPID"]


def test_daemon_runs_as_its_user_in_limited_slice_with_nothing_of_spawner(site: Site) -> None:
    assert site.ensure(ADA) == f"ok /run/ffdl/users/{ADA}/daemon.sock"
    assert site.python(GET, str(ADA), uid=ADA) == f"{ADA} HTTP/1.1 200 OK\n"
    (unit,) = site.units(ADA)
    found = site.properties(unit)
    slices = "/ffdl.slice/ffdl-users.slice"
    assert found["ControlGroup"] == f"{slices}/ffdl-users-{ADA}.slice/{unit}" and unit.startswith(f"ffdl-user-{ADA}-")
    pid = found["MainPID"]
    status = dict(line.split(":\t", 1) for line in site.run("cat", f"/proc/{pid}/status").splitlines())
    assert status["Uid"].split() == [f"{ADA}"] * 4 and set(status["Gid"].split()) == {"7100"}
    assert (int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "0")
    assert status["CapBnd"] == Path("/proc/self/status").read_text().split("CapBnd:\t")[1].split()[0]
    assert site.run("readlink", f"/proc/{pid}/ns/mnt") == site.run("readlink", "/proc/1/ns/mnt")
    assert site.run("cat", f"/proc/{pid}/oom_score_adj") == "0"
    assert "Max open files            3000                 4000" in site.run("cat", f"/proc/{pid}/limits")
    own = f"{slices}/ffdl-users-{ADA}.slice"
    memory = site.run("sh", "-c", f"cd /sys/fs/cgroup; cat memory{own}/memory.limit_in_bytes || cat .{own}/memory.max")
    assert memory == str(2**30)
    assert [site.properties(one)["TasksMax"] for one in ("ffdl-users.slice", f"ffdl-users-{ADA}.slice")] == [
        "20000",
        "512",
    ]


def test_daemon_of_tenant_without_account_runs_in_sandbox(site: Site) -> None:
    tenant = 300000
    assert site.ensure(tenant) == f"ok /run/ffdl/users/{tenant}/daemon.sock"
    assert site.python(GET, str(tenant), uid=tenant) == f"{tenant} HTTP/1.1 200 OK\n"
    (unit,) = site.units(tenant, "tenant")
    found = site.properties(unit)
    pid = found["MainPID"]
    assert unit.startswith(f"ffdl-tenant-{tenant}-") and f"/ffdl-users-{tenant}.slice/" in found["ControlGroup"]
    assert (found["PrivateTmp"], found["ProtectSystem"]) == ("yes", "strict")
    assert site.run("readlink", f"/proc/{pid}/ns/mnt") != site.run("readlink", "/proc/1/ns/mnt")
    status = dict(line.split(":\t", 1) for line in site.run("cat", f"/proc/{pid}/status").splitlines())
    assert (status["Uid"].split(), status["Groups"].split()) == ([f"{tenant}"] * 4, [f"{tenant}"])


def test_end_of_login_session_does_not_end_daemon(site: Site) -> None:
    options = ["--quiet", "--pipe", "--wait", "--collect", "--property=PAMName=login", f"--uid={ADA}"]
    login = ["systemd-run", *options, "--", sys.executable, "-I", "-c", LOGIN, ASK, str(ADA)]
    answer, left = site.run(*login).splitlines()
    pid, is_in_session = left.split()
    assert (answer, is_in_session) == (f"ok /run/ffdl/users/{ADA}/daemon.sock", "True")
    daemon = main_pid(site, ADA)
    until(lambda: not site.exists(pid), "the end of what the session left")
    site.run("loginctl", "terminate-user", "ada", check=False)
    assert main_pid(site, ADA) == daemon
    assert site.python(GET, str(ADA), uid=ADA) == f"{ADA} HTTP/1.1 200 OK\n"


def test_restart_of_spawner_ends_no_daemon(site: Site) -> None:
    assert site.ensure(ADA).startswith("ok ") and site.ensure(BOB).startswith("ok ")
    before = [main_pid(site, uid) for uid in (ADA, BOB)]
    site.restart()
    assert site.ensure(ADA).startswith("ok ")
    assert [main_pid(site, uid) for uid in (ADA, BOB)] == before
    assert site.python(GET, str(BOB), uid=BOB) == f"{BOB} HTTP/1.1 200 OK\n"


def test_idle_daemon_ends_and_returns_on_demand(site: Site) -> None:
    site.restart(idle_s=1)
    assert site.ensure(ADA).startswith("ok ")
    until(lambda: not site.units(ADA), "the end of the idle daemon")
    site.restart()
    assert site.ensure(ADA).startswith("ok ")
    assert site.python(GET, str(ADA), uid=ADA) == f"{ADA} HTTP/1.1 200 OK\n"


def test_processes_of_killed_daemon_stay_and_next_daemon_starts(site: Site) -> None:
    """Jobs of the backend `local` continue, and stay within the limits of their user."""
    assert site.ensure(ADA).startswith("ok ")
    (unit,) = site.units(ADA)
    found = site.properties(unit)
    left = site.python(LEAVES, found["ControlGroup"], uid=0).strip()
    site.run("kill", "-KILL", found["MainPID"])
    until(lambda: not site.exists(found["MainPID"]), "the daemon's end")
    assert site.ensure(ADA).startswith("ok ")
    assert site.python(GET, str(ADA), uid=ADA) == f"{ADA} HTTP/1.1 200 OK\n"
    assert site.exists(left)
    site.run("kill", left)


@contextmanager
def session_of(site: Site, module: str) -> Iterator[None]:
    """Add a module to the session part of the PAM service."""
    pam = site.place / "etc/pam.d/ffdl-user"
    text = pam.read_text()
    pam.write_text(f"{text}session requisite {module}\n")
    try:
        yield
    finally:
        pam.write_text(text)


def test_failure_before_daemon_listens_is_answered(site: Site) -> None:
    with session_of(site, "pam_deny.so"):
        answer = site.ensure(BOB)
    assert answer.startswith(f"refused the daemon of user {BOB} could not be started: Job for ffdl-user-{BOB}-")
    assert "PAM does not admit the account" in site.run("journalctl", "--no-pager", "--unit", f"ffdl-user-{BOB}-*")
    assert site.units(BOB) == []


def test_start_that_hangs_ends_and_can_be_requested_again(site: Site) -> None:
    with session_of(site, "pam_exec.so /bin/sleep 25"):
        assert site.ensure(BOB) == "later the daemon could not be started: it did not listen within 20 s"
    until(lambda: not site.units(BOB), "the end of the unit")
    assert site.ensure(BOB).startswith("ok ")


OPERATE = """
import http.client, socket, sys
connection = http.client.HTTPConnection("hub", timeout=300)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/ffdl-hub/hub.sock")
connection.request("GET", f"/users/{sys.argv[1]}/api/v1/jobs")
print(connection.getresponse().status)
"""


LOAD = """
import http.client, socket, sys, threading
over, statuses, failures = threading.Event(), [], []

def connect(place):
    connection = http.client.HTTPConnection("hub")
    connection.auto_open = False
    connection.sock = socket.socket(socket.AF_UNIX if place == "socket" else socket.AF_INET)
    connection.sock.settimeout(300)
    connection.sock.connect("/run/ffdl-hub/hub.sock" if place == "socket" else ("127.0.0.1", 8443))
    return connection

def ask(place, path, answered):
    connection = None
    while not over.is_set():
        for is_second in (False, True):
            try:
                connection = connection or connect(place)
                connection.request("GET", path)
                reply = connection.getresponse()
                reply.read()
                statuses.append((place, reply.status))
                answered.set()
                break
            except (OSError, http.client.HTTPException) as error:
                connection = None
                if is_second:
                    failures.append(f"{place}: {error!r}")

asked = [("socket", f"/users/{sys.argv[1]}/api/v1/jobs"), ("port", "/api/v1/jobs")]
events = [threading.Event() for _ in range(6)]
threads = [threading.Thread(target=ask, args=(*asked[n % 2], one)) for n, one in enumerate(events)]
for thread in threads:
    thread.start()
for one in events:
    one.wait(300)
print("answered", flush=True)
sys.stdin.read()
over.set()
for thread in threads:
    thread.join()
print(sorted(set(statuses)), failures)
"""
"""Six clients of the hub that repeat a request once if its connection breaks or is refused."""


def test_restarts_of_hub_fail_no_request_of_clients_that_repeat_it_once(site: Site) -> None:
    site.run("systemctl", "start", "ffdl-hub.socket")
    assert site.python(OPERATE, str(BOB), uid=ADA) == "200\n"
    pids = [site.properties("ffdl-hub.service")["MainPID"]]
    argv = site.inside([sys.executable, "-I", "-c", LOAD, str(BOB)], ADA)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as clients:
        assert clients.stdin is not None and clients.stdout is not None
        assert clients.stdout.readline() == "answered\n"
        for _ in range(3):
            site.run("systemctl", "restart", "ffdl-hub.service")
            assert site.python(OPERATE, str(BOB), uid=ADA) == "200\n"
            pids.append(site.properties("ffdl-hub.service")["MainPID"])
        clients.stdin.close()
        assert clients.stdout.read() == "[('port', 401), ('socket', 200)] []\n"
    assert len({*pids, "0"}) == 5
    site.run("systemctl", "stop", "ffdl-hub.socket", "ffdl-hub.service")
    assert site.finish(["test", "-e", "/run/ffdl-hub/hub.sock"]).returncode == 1


def test_hub_as_unit_reaches_daemon_of_user_through_spawner(site: Site) -> None:
    site.run("systemctl", "start", "ffdl-hub.service")
    assert site.units(BOB) == []
    assert site.python(OPERATE, str(BOB), uid=ADA) == "200\n"
    assert len(site.units(BOB)) == 1
    assert site.python(OPERATE, str(ADA), uid=BOB) == "403\n"
    site.run("systemctl", "reload", "ffdl-hub.service")
    site.run("systemctl", "stop", "ffdl-hub.service")
    assert site.finish(["test", "-e", "/run/ffdl-hub/hub.sock"]).returncode == 1
    audit = site.run("journalctl", "--no-pager", "--unit", "ffdl-hub.service", "--output=cat")
    assert f'"caller":{ADA},"from":"user {ADA}","user":{BOB},"role":"operator"' in audit


PROVIDER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.fakes.oidc_provider import OidcProvider
provider = OidcProvider(Path(sys.argv[2]), {}).start()
print(json.dumps(provider.settings()), flush=True)
for line in sys.stdin:
    provider.claims = {"preferred_username": line.strip()}
    print(flush=True)
"""
"""An OpenID provider. The user whose name it reads last has confirmed all logins."""


@contextmanager
def openid_provider(site: Site) -> Iterator[Callable[[str], None]]:
    """Start a provider and a hub that uses it; the function sets who has confirmed."""
    own = site.place / "provider"
    argv = site.inside([sys.executable, "-I", "-c", PROVIDER, str(ROOT), str(own)])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdin is not None and process.stdout is not None
        asked = json.loads(process.stdout.readline())
        certificate_for("127.0.0.1", site.place)
        for name, file in (("hub.pem", "cert.pem"), ("hub.key", "key.pem"), ("provider.pem", "provider/cert.pem")):
            site.run(
                "install",
                "-o",
                "ffdl",
                "-m",
                "0444" if file != "key.pem" else "0400",
                f"{site.place}/{file}",
                f"/etc/ffdl/{name}",
            )
        trust = {"trust_hub_sessions": asked.pop("trust_hub_sessions")}
        hub = asked | {
            "oidc_ca": "/etc/ffdl/provider.pem",
            "certificate": "/etc/ffdl/hub.pem",
            "key": "/etc/ffdl/hub.key",
        }
        before, after = ["".join(f"{k} = {toml_text(v)}\n" for k, v in one.items()) for one in (trust, hub)]
        site.python(WRITE, before + SITE % 1000 + after, uid=0)
        site.run("systemctl", "start", "ffdl-hub.service")

        def confirm_as(name: str) -> None:
            print(name, file=process.stdin, flush=True)
            assert process.stdout is not None and process.stdout.readline() == "\n"

        try:
            yield confirm_as
        finally:
            process.stdin.close()
            site.run("systemctl", "stop", "ffdl-hub.service")
            site.restart()


def test_login_by_openid_connect_through_hub_and_spawner_as_units(site: Site) -> None:
    nowhere = [f"{name}=/nonexistent" for name in ("FFDL_SITE_RUN", "FFDL_HUB_SOCKET", "PATH")]
    laptop = ["env", "--chdir=/mnt/bob", "-i", "HOME=/mnt/bob", *nowhere, str(Path(sys.executable).parent / "ffdl")]
    login = [*laptop, "login", "https://127.0.0.1:8443", "--ca", "/etc/ffdl/hub.pem"]
    with openid_provider(site) as confirm_as:
        for name, why in (("eve", "PAM does not admit the account"), ("root", "'root' is not the account of a user")):
            confirm_as(name)
            done = site.finish(login, BOB)
            assert (done.returncode, why in done.stderr) == (77, True), done
        confirm_as("ada")
        done = site.finish(login, BOB)
        assert (done.returncode, "logged in to https://127.0.0.1:8443 as ada" in done.stdout) == (0, True), done
        done = site.finish([*laptop, "list", "--json"], BOB)
        assert (done.returncode, json.loads(done.stdout)["jobs"]) == (0, []), done
        assert [len(site.units(uid)) for uid in (ADA, BOB)] == [1, 0]
    audit = site.run("journalctl", "--no-pager", "--unit", "ffdl-hub.service", "--output=cat")
    logins = [json.loads(line) for line in audit.splitlines() if "/device-logins/" in line]
    assert [(one["caller"], one["status"]) for one in logins] == [(EXPIRED, 403), (None, 403), (ADA, 200)]
    assert "eyJ" not in audit


def test_systemd_accepts_units_and_root_program_is_confined(site: Site) -> None:
    names = ("ffdl-spawner.service", "ffdl-users.slice", "ffdl-hub.service", "ffdl-hub.socket")
    units = [str(site.place / "rendered/systemd" / name) for name in names]
    done = site.finish(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = site.finish(["systemd-analyze", "security", "--offline=true", "--threshold=30", units[0]])
    assert done.returncode == 0, done.stdout[-200:]
    done = site.finish(["systemd-analyze", "security", "--offline=true", "--threshold=25", units[2]])
    assert done.returncode == 0, done.stdout[-200:]
    assert "/etc/systemd/system/ffdl-" not in site.run("journalctl", "--no-pager")  # as in `FILE:7: Unknown key name`


def test_spawner_does_not_start_without_limits_of_users(site: Site) -> None:
    limits = "/etc/systemd/system/ffdl-users-.slice.d/10-ffdl.conf"
    site.run("systemctl", "stop", "ffdl-spawner.service")
    site.run("mv", limits, f"{limits}.away")
    done = site.finish(["systemctl", "start", "ffdl-spawner.service"])
    site.run("mv", f"{limits}.away", limits)
    assert done.returncode != 0 and "Assertion failed" in done.stderr
    site.restart()
