"""The spawner as root, with real accounts, PAM and user ids: who gets a daemon, what it starts, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.site.rig import ADA, BOB, EXPIRED, GONE, HUB, OUTSIDER, Host, Spawner, daemon_socket, ensure, until

GET = """
import socket, struct, sys
path, headers = sys.argv[2:] or ("jobs", "")
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(300)
    s.connect(sys.argv[1])
    print(struct.unpack("=iII", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    s.sendall(f"GET /api/v1/{path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n{headers}\\r\\n".encode())
    answer = b""
    while part := s.recv(65536):
        answer += part
print(answer.decode())
"""
"""Prints whose process listens, and the daemon's answer."""
HOLDS = """
import socket, sys, time
held = []
for _ in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    held.append(s)
print("held", flush=True)
time.sleep(600)
"""
"""Connects and sends nothing."""


def field(pid: int, name: str) -> list[str]:
    """A line of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))


def test_spawner_starts_daemon_as_its_user_with_nothing_of_root(host: Host, spawner: Spawner) -> None:
    assert ensure(host, ADA) == f"ok {daemon_socket(host, ADA)}"
    (pid,) = spawner.daemons()
    owner, head = host.python(GET, str(daemon_socket(host, ADA)), uid=ADA).split("\n", 1)
    assert (owner, head.split("\n")[0]) == (str(ADA), "HTTP/1.1 200 OK")
    assert field(pid, "Uid") == [str(ADA)] * 4 and set(field(pid, "Gid")) == {"7100"} == set(field(pid, "Groups"))
    assert {field(pid, f"Cap{name}")[0].strip("0") for name in ("Inh", "Prm", "Eff", "Amb")} == {""}
    assert field(pid, "NoNewPrivs") == ["1"]
    limits = {line[:26].strip(): line[26:].split()[:2] for line in Path(f"/proc/{pid}/limits").read_text().splitlines()}
    assert (limits["Max open files"], limits["Max core file size"]) == (["3000", "4000"], ["0", "0"])
    known = dict(text.split("=", 1) for text in Path(f"/proc/{pid}/environ").read_text().split("\0") if text)
    assert {name: known[name] for name in ("HOME", "USER", "SHELL", "SLURM_CONF", "FFDL_HUB_UID")} == {
        "HOME": "/mnt/ada", "USER": "ada", "SHELL": "/bin/bash", "SLURM_CONF": "/etc/slurm/slurm.conf",
        "FFDL_HUB_UID": str(HUB),
    }  # fmt: skip
    assert not set(known) & {"SUDO_USER", "PYTHONPATH", "VIRTUAL_ENV"}
    files = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [file for file in files if "spawner" in file or file.endswith(("/lock", "/starts"))]
    state = host.place / f"state/{ADA}"
    assert [(path.stat().st_uid, path.stat().st_mode & 0o777) for path in (state, state / "state")] == [
        (0, 0o711), (ADA, 0o700)
    ]  # fmt: skip


def test_users_reach_no_daemon_but_their_own(host: Host, spawner: Spawner) -> None:
    assert ensure(host, ADA).startswith("ok ")
    for uid in (BOB, OUTSIDER):
        with pytest.raises(subprocess.CalledProcessError):  # the socket's mode
            host.python(GET, str(daemon_socket(host, ADA)), uid=uid)
    for uid, status in ((0, "403 Forbidden"), (HUB, "401 Unauthorized")):  # admitted by the mode, refused by the daemon
        assert status in host.python(GET, str(daemon_socket(host, ADA)), uid=uid)


def test_daemon_reads_role_from_hub_only(host: Host, spawner: Spawner) -> None:
    assert ensure(host, ADA).startswith("ok ")
    auditor = f"FfDL-Role: auditor\r\nFfDL-Actor: {BOB}\r\n"

    def ask(uid: int, path: str, headers: str) -> str:
        answer = host.python(GET, str(daemon_socket(host, ADA)), path, headers, uid=uid)
        return answer.splitlines()[1].split()[1]

    found = [ask(HUB, "jobs", auditor), ask(HUB, "secrets", auditor), ask(HUB, "whoami", "Authorization: Bearer x\r\n")]
    assert found == ["200", "403", "401"]
    assert [ask(0, "jobs", auditor), ask(ADA, "secrets", auditor)] == ["403", "200"]


def test_second_request_finds_running_daemon_and_starts_none(host: Host, spawner: Spawner) -> None:
    first = ensure(host, ADA)
    assert ensure(host, ADA) == ensure(host, ADA, by=HUB) == first
    assert len(spawner.daemons()) == 1


@pytest.mark.parametrize(
    ("by", "request_text", "why"),
    [
        (BOB, f"ensure {ADA}\n", f"user {BOB} may not ask for the daemon of user {ADA}"),
        (0, f"ensure {ADA}\n", "user 0 may not ask"),
        (HUB, "ensure 0\n", "the request is not"),
        (HUB, "ensure 500\n", "uid 500 is not a user account: reserved, below min_uid"),
        (HUB, "ensure 65534\n", "uid 65534 is not a user account"),
        (HUB, "ensure 4294967295\n", "uid 4294967295 is not a user account"),
        (HUB, f"ensure {HUB}\n", f"uid {HUB} is not a user account"),
        (HUB, "ensure 100005\n", "or in a range of /etc/subuid"),
        (HUB, f"ensure {GONE}\n", "uid not found"),
        (EXPIRED, f"ensure {EXPIRED}\n", "PAM does not admit the account: User account has expired"),
        (OUTSIDER, f"ensure {OUTSIDER}\n", "is in none of the groups users"),
        (ADA, f"ensure {ADA}", "the request is not"),
        (ADA, f"ensure 0{ADA}\n", "the request is not"),
        (ADA, f"ensure {ADA}\nensure {BOB}\n", "the request is not"),
        (ADA, f"ENSURE {ADA}\n", "the request is not"),
        (ADA, f"ensure {ADA}\0\n", "the request is not"),
        (ADA, "e" * 5000, "the request is not"),
    ],
)
def test_spawner_refuses_request_and_starts_nothing(
    host: Host, spawner: Spawner, by: int, request_text: str, why: str
) -> None:
    answer = host.ask(by, request_text)
    assert answer.startswith("refused ") and why in answer
    assert spawner.daemons() == []


def test_daemon_that_is_killed_or_hangs_costs_its_user_alone(host: Host, spawner: Spawner) -> None:
    assert ensure(host, ADA).startswith("ok ") and ensure(host, BOB).startswith("ok ")
    ada, bob = spawner.daemons()
    os.kill(ada, signal.SIGSTOP)
    assert "200 OK" in host.python(GET, str(daemon_socket(host, BOB)), uid=BOB)
    os.kill(ada, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{ada}").exists(), "the daemon's end")
    assert ensure(host, ADA).startswith("ok ")
    assert "200 OK" in host.python(GET, str(daemon_socket(host, ADA)), uid=ADA)
    assert Path(f"/proc/{bob}").exists()


def test_spawner_puts_off_start_when_daemon_started_too_often(host: Host, spawner: Spawner) -> None:
    for _ in range(6):
        assert ensure(host, ADA).startswith("ok ")
        os.kill(spawner.daemons()[-1], signal.SIGKILL)
    assert ensure(host, ADA) == (
        "later the daemon could not be started: it was started 6 times within a minute; read its log"
    )
    assert ensure(host, BOB).startswith("ok ")


def starting(host: Host, uid: int) -> list[int]:
    """Processes of the spawner that are to become the daemon of a user."""
    words = f"{host.place}/site.toml\0{uid}\0".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes().endswith(words):
                found.append(int(place.parent.name))
    return found


def test_start_that_a_signal_ends_can_be_requested_again(host: Host, spawner: Spawner) -> None:
    """As the kernel ends it if memory runs out."""
    pam = host.place / "etc/pam.d/ffdl-user"
    text = pam.read_text()
    pam.write_text(f"{text}session requisite pam_exec.so /bin/sleep 15\n")
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ensure, host, BOB)
            until(lambda: starting(host, BOB), "the start")
            os.kill(starting(host, BOB)[0], signal.SIGKILL)
            assert answer.result() == "later the daemon could not be started: signal 9 ended it"
    finally:
        pam.write_text(text)
    assert ensure(host, BOB).startswith("ok ")


@pytest.mark.parametrize("holder", [BOB, HUB], ids=["user", "hub"])
def test_slow_and_many_clients_do_not_delay_another_user(host: Host, spawner: Spawner, holder: int) -> None:
    argv = host.inside(["python3", "-c", HOLDS, str(host.place / "run/spawner.sock"), "100"], holder)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as slow:
        assert slow.stdout is not None and slow.stdout.readline() == b"held\n"
        assert ensure(host, ADA).startswith("ok ")
        slow.kill()


def test_uid_of_another_person_does_not_inherit_state(host: Host, spawner: Spawner) -> None:
    """As after an account was removed, and its number given to somebody else."""
    assert ensure(host, BOB).startswith("ok ")
    (pid,) = spawner.daemons()
    os.kill(pid, signal.SIGKILL)
    passwd = host.place / "etc/passwd"
    text = passwd.read_text()
    passwd.write_text(text.replace("bob:", "ben:"))  # in place, because it is mounted
    (host.place / "etc/shadow").write_text((host.place / "etc/shadow").read_text().replace("bob:", "ben:"))
    try:
        until(lambda: not Path(f"/proc/{pid}").exists(), "the daemon's end")
        assert "had another name before" in ensure(host, BOB)
    finally:
        passwd.write_text(text)
        (host.place / "etc/shadow").write_text((host.place / "etc/shadow").read_text().replace("ben:", "bob:"))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("mode", "can be changed by users other than root"),
        ("key", "[spawner] has no key colour"),
        ("type", "min_uid in [spawner] must be like 1000"),
        ("toml", "(at line 1, column 9)"),
        ("path", "run_dir in [spawner] must be like '/run/ffdl'"),
    ],
)
def test_spawner_does_not_start_with_bad_site_file(host: Host, fault: str, why: str) -> None:
    host.configure(**{"key": {"colour": "red"}, "type": {"min_uid": "many"}, "path": {"run_dir": "run"}}.get(fault, {}))
    file = host.place / "site.toml"
    if fault == "mode":
        file.chmod(0o666)
    if fault == "toml":
        file.write_text("[spawner\n")
    done = subprocess.run(host.inside(Spawner.argv(host)), stderr=subprocess.PIPE, text=True, check=False, cwd="/")
    file.chmod(0o644)
    assert (done.returncode, str(file) in done.stderr) == (78, True) and why in done.stderr


def test_idle_daemon_ends_and_returns_on_demand(host: Host) -> None:
    host.configure(environment={"FFDL_IDLE_EXIT_S": "1"})
    spawner = Spawner(host)
    try:
        assert ensure(host, ADA).startswith("ok ")
        (first,) = spawner.daemons()
        until(lambda: not Path(f"/proc/{first}").exists(), "the idle daemon's end")
        assert ensure(host, ADA).startswith("ok ")
        assert "200 OK" in host.python(GET, str(daemon_socket(host, ADA)), uid=ADA)
        log = (host.place / f"state/{ADA}/state/daemon.log").read_text()
        assert "idle for 1 s" in log and "ERROR" not in log and "Traceback" not in log
    finally:
        spawner.close()
