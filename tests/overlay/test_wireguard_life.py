"""How networks of jobs by WireGuard come and go: killed at each point, never made, found when nobody knows of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command_lines import command_lines
from tests.overlay.nodes import ALICE, PYTHON, SECRET, WIREGUARD, Node, edited, pairs, settings_with, wait_for_sleep
from tests.overlay.talking import ask, is_silent, listening
from tests.overlay.test_life import die_at, kill_session_of_prolog
from tests.overlay.test_reach import FIRST, SECOND
from tests.overlay.test_tools import call, other_program

VALUES = {**WIREGUARD, "NETWORK_EGRESS_TO": "10.9.0.0/24"}
JOB = 99
LIST = "10.9.0.[1-2]"
UDP = 10000 + JOB
"""The port of that job's number."""
AS_WITH_VXLAN = 10
"""So many points of a prolog, which come first, are tried where the nodes are joined by VXLAN."""
NO_KERNEL = """case "$*" in *"type wireguard"*) echo "Error: Unknown device type." >&2; exit 2 ;; esac
exec /usr/sbin/ip "$@\""""


def test_epilog_cleans_up_after_prolog_killed_at_each_step(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    died: list[str] = []
    with other_program(node, "ip", NO_KERNEL):
        while place := die_at(node, AS_WITH_VXLAN + len(died)):
            died.append(place)
            assert not (node.job_dir(JOB) / "network").exists() or place == "facts"
            node.epilog(JOB)
            assert node.left() == [], place
    assert died[0] == "before nft"
    steps = ["guard", "keys", "waiting", "device", "moved", "addresses"]
    steps += ["port", "access", "facts"]
    assert [place for place in dict.fromkeys(died) if place in steps] == steps
    assert {"before wg", "after wg", "before ip", "after ip", "before /bin/sh"} <= set(died)


def test_next_epilog_or_prolog_completes_epilog_killed_at_each_step(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    died: list[str] = []
    while True:
        assert node.prolog(JOB, LIST) == ""
        place = die_at(node, len(died), "epilog")
        if not place:
            break
        died.append(place)
        if len(died) % 2:
            (node.job_dir(JOB) / "ended").touch()
            node.run([str(node.libexec / "prolog"), ""], env=node.environment(JOB + 1, LIST))  # another job's sweeps
        else:
            node.epilog(JOB)
        assert node.left() == [], place
    assert {"after nsenter", "before umount", "after umount", "before nft", "after nft"} <= set(died)
    assert node.left() == []


@pytest.mark.parametrize("late", [False, True], ids=["before the program works", "when it has"])
def test_epilog_stops_wireguard_program_after_prolog_session_killed(nodes: tuple[Node, Node], late: bool) -> None:
    """It lives in a session of its own, and is found all the same."""
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""  # looks at the node as a whole, once
    node.epilog(JOB)
    for program, words, step in (("wg", "setconf*", "device"), ("nsenter", "*ip?-batch*", "moved")):
        kill_session_of_prolog(node, program, words, late=late, ip=NO_KERNEL)
        assert (node.job_dir(JOB) / "prolog.log").read_text().split()[-1] == step
        assert len(node.programs()) == 1, step
        node.epilog(JOB)
        assert node.left() == [], step


def test_wireguard_program_outlives_prolog_session_and_its_death_stops_traffic(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        with other_program(node, "ip", NO_KERNEL):
            assert node.prolog(JOB, LIST) == ""
    first, second = nodes
    (pid,) = first.programs()
    own = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split())[3]
    assert own == str(pid)  # the session's number
    assert not [file for file in Path(f"/proc/{pid}/fd").iterdir() if "/locks/" in str(file.readlink())]
    with listening(second.namespace(JOB), "learner", SECOND, ALICE):
        assert ask(first.namespace(JOB), "udp", SECOND) == "learner"
        os.kill(pid, signal.SIGKILL)
        assert is_silent(first.namespace(JOB), "udp", SECOND)
    first.epilog(JOB)
    assert first.left() == []


def test_epilog_spares_process_that_reuses_recorded_pid(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with other_program(node, "ip", NO_KERNEL), subprocess.Popen(["sleep", "600"]) as bystander:
        assert node.prolog(JOB, LIST) == ""
        record = node.run_dir / "1/wireguard"
        assert record.stat().st_mode & 0o777 == 0o600
        line = record.read_text()
        record.write_text(line.replace(line.split()[0], str(bystander.pid), 1))
        node.epilog(JOB)
        assert bystander.poll() is None
        bystander.kill()
    assert node.left() == []  # by its socket


_HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit(2), of this thread alone
"""
_STOP = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ffdl_network import background
background.stop(Path(sys.argv[2]), 60)
"""


def test_background_stop_kills_program_after_its_main_thread_exited(nodes: tuple[Node, Node]) -> None:
    """The device goes with that one, and nobody else can remove it while it goes."""
    node, record = nodes[0], nodes[0].place / "record"
    with subprocess.Popen([*PYTHON, "-c", _HEADLESS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        stat, deadline = Path(f"/proc/{process.pid}/stat"), time.monotonic() + 60
        while ") Z " not in stat.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        record.write_text(stat.read_text())
        node.run([*PYTHON, "-c", _STOP, str(node.libexec), str(record)])
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert not record.exists()


def test_boot_removes_devices_and_programs_without_records(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with other_program(node, "ip", NO_KERNEL):
        assert node.prolog(JOB, LIST) == ""
    node.run(["ip", "tuntap", "add", "ffdl-wg7", "mode", "tun"])  # one that was not moved
    # Somebody in the namespace keeps it, and so the device and its program.
    with subprocess.Popen(["nsenter", f"--net={node.namespace(JOB)}", "sleep", "600"]) as inside:
        wait_for_sleep(inside.pid)
        subprocess.run(["umount", node.namespace(JOB)], check=True)
        for path in (node.run_dir / "slots/1", *(node.run_dir / "1").iterdir()):
            path.unlink()
        (node.run_dir / "1").rmdir()
        assert len(node.programs()) == 1
        node.run([str(node.libexec / "boot"), "--force"])
        assert node.left() == []
        inside.kill()


def test_boot_keeps_running_jobs_and_removes_jobs_of_previous_boot(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        assert node.prolog(JOB, LIST) == ""
        node.run([str(node.libexec / "boot")])
    with listening(nodes[1].namespace(JOB), "learner", SECOND, ALICE):
        assert ask(nodes[0].namespace(JOB), "tcp", SECOND) == "learner"
    for node in nodes:
        (node.run_dir / "booted").write_text("another boot\n")
        node.run([str(node.libexec / "boot")])
        assert node.left() == []


SECRETS = {
    "missing": ("rm $S", "cannot be read (No such file or directory)"),
    "for others": ("chmod 640 $S", "is not a file that root alone can read"),
    "another's": ("chown games $S", "is not a file that root alone can read"),
    "a link": ("mv $S $S.real; ln -s $S.real $S", "is a symbolic link"),
    "a pipe": ("rm $S; mkfifo -m 600 $S", "is not a file that root alone can read"),
    "too short": ("truncate -s 31 $S", "must have 32 to 4096 random bytes"),
}


def test_prolog_and_check_name_unusable_network_secret(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    file = node.place / "network.secret"
    for kind, (script, said) in SECRETS.items():
        node.run(["sh", "-euc", script], env={"S": str(file)})
        done = call(node, "check", "--quiet")
        assert (done.returncode, f"FAIL  wireguard: {file} {said}" in done.stdout) == (1, True), kind
        known = pairs(node.run_dir / "capabilities")
        assert (known["network"], "secret" in known) == ("no", False), kind
        error = node.prolog(JOB, LIST)
        assert f"{file} {said}" in error and "NETWORK_SECRET of values.env" in error, kind
        file.unlink(missing_ok=True)
        file.write_bytes(SECRET)
        file.chmod(0o600)
        os.chown(file, 0, 0)
    node.epilog(JOB)
    assert node.left() == []
    assert call(node, "check").returncode == 0


PROGRAMS = {
    "": "the kernel needs the module wireguard (modprobe wireguard), or values.env a NETWORK_WIREGUARD_PROGRAM",
    "/bin/false": "`/bin/false -f ffdl-wg1` ended with 1",
    "sleeper": "sleeper made no device ffdl-wg1 within 1 s",
    "/nowhere/wireguard-go": "(NETWORK_WIREGUARD_PROGRAM of values.env) cannot be started: ",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_prolog_fails_closed_without_working_wireguard(nodes: tuple[Node, Node], program: str) -> None:
    node, sleeps = nodes[0], program == "sleeper"
    sleeper = node.place / "sleeper"
    sleeper.write_text('#!/bin/sh\n[ "$1" = --version ] || exec sleep 60.06\n')
    sleeper.chmod(0o755)
    with (
        other_program(node, "ip", NO_KERNEL),
        settings_with(node, "NETWORK_WIREGUARD_PROGRAM", str(sleeper) if sleeps else program),
        edited(node, "tunnel.py", r"record, settings\.command_timeout_s", f"record, {1 if sleeps else 60}"),
    ):
        done = call(node, "check", "--quiet")
        assert (done.returncode, "FAIL  wireguard: " in done.stdout) == ((0, False) if sleeps else (1, True))
        error = node.prolog(JOB, LIST)
    assert PROGRAMS[program] in error, error
    assert error.startswith("no network for this job: ")
    assert set(node.left()) == {f"job-{JOB}", f"locks/{JOB}"}
    assert not [place for place, line in command_lines() if b"60.06" in line]


def test_prolog_reports_udp_port_in_use(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    program = f"import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', {UDP})); "
    program += "print('taken', flush=True); input()"
    argv = node.enter([*PYTHON, "-c", program], uid=ALICE)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "taken\n"
        error = node.prolog(JOB, LIST)
        assert f"UDP port {UDP}, which this job has by its number, is taken on this node" in error
        assert node.prolog(JOB + 1, LIST) == ""
        process.communicate("\n")
    assert node.prolog(JOB, LIST) == ""


def test_prolog_and_check_reject_ports_in_ephemeral_range(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    file = "net.ipv4.ip_local_port_range"
    before = node.run(["sysctl", "-n", file]).stdout.strip()
    node.run(["sysctl", "-qw", f"{file}=20000 60999"])
    try:
        said = "ip_local_port_range is 20000-60999, from which programs draw their ports"
        assert said in node.prolog(JOB, LIST) and said in call(node, "check").stdout
    finally:
        node.run(["sysctl", "-qw", f"{file}={before}"])
    assert call(node, "check").returncode == 0


def test_check_prints_each_capability_and_failing_command(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    done = node.run([sys.executable, "-I", "-S", str(node.libexec / "check")])
    names = ("wireguard", "filter", "acl", "ports", "hooks", "apptainer", "egress")
    assert done.stdout.splitlines() == [f"ok    {name}" for name in names]
    known = pairs(node.run_dir / "capabilities")
    assert (known["mechanism"], known["wireguard"], len(known["secret"])) == ("wireguard", "yes", 16)
    with other_program(node, "wg", "echo broken >&2; exit 1"):
        assert "FAIL  wireguard: wg pubkey ended with 1: broken" in call(node, "check").stdout
    assert FIRST.startswith(known["prefix"])
