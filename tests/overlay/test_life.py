"""How a job's network comes and goes: killed at each point, twice, never made, two at once, hundreds in a row."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.overlay.nodes import (
    ALICE,
    BOB,
    PYTHON,
    STRANGER,
    UDP_PORT,
    Node,
    configure_apptainer,
    pairs,
    settings_with,
    wait_for_sleep,
)
from tests.overlay.talking import ask, listening
from tests.overlay.test_tools import other_program

JOB = 99
LIST = "10.9.0.[1-2]"
ROUNDS = int(os.environ.get("NETWORKS", "6"))
"""How many networks are made and removed in a row; NETWORKS=200 for the long form."""
DYING = str(Path(__file__).with_name("dying_program.py"))


def die_at(node: Node, point: int, kind: str = "prolog", comment: str = "ffdl-batch:job/2") -> str:
    """Where the program died; "" when it came to its end."""
    argv = [*PYTHON, DYING, str(node.libexec), kind, comment, str(point)]
    done = node.run(argv, env=node.environment(JOB, LIST), check=False)
    assert done.returncode in {0, 128 + signal.SIGKILL, -signal.SIGKILL}, done
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def test_epilog_removes_everything_after_prolog_killed_at_each_step(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    died: list[str] = []
    while place := die_at(node, len(died)):
        died.append(place)
        assert not (node.job_dir(JOB) / "network").exists() or place == "facts"
        node.epilog(JOB)
        assert node.left() == [], place
    steps = ["claim", "slot", "namespace", "filter", "guard", "device", "addresses", "forwarding", "access", "facts"]
    assert [place for place in died if " " not in place and place in steps] == steps
    assert {"before unshare", "after unshare", "before nft", "after nft", "after ip", "after nsenter"} <= set(died)
    assert (node.job_dir(JOB) / "network").exists()  # the one that was not killed


def test_next_hook_finishes_epilog_killed_at_each_step(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    died: list[str] = []
    while True:
        assert node.prolog(JOB, LIST) == ""
        place = die_at(node, len(died), "epilog")
        if not place:
            break
        died.append(place)
        assert not (node.job_dir(JOB) / "network").exists()
        if len(died) % 2:
            node.epilog(JOB)
        else:
            (node.job_dir(JOB) / "ended").touch()
            assert node.prolog(JOB + 1, LIST) == ""  # another job's, which sweeps
            node.epilog(JOB + 1)
        assert node.left() == [], place
    assert {"after nsenter", "before umount", "after umount", "before nft", "after nft"} <= set(died)
    assert node.left() == []


def test_prolog_succeeds_on_restart_after_killed_prolog(nodes: tuple[Node, Node]) -> None:
    node, point = nodes[0], 0
    while die_at(node, point):
        assert node.prolog(JOB, LIST) == ""
        assert node.facts(JOB)["netns"] == str(node.run_dir / "1" / "net")
        node.epilog(JOB)
        point += 3
    assert point > 9


MOMENTS = [
    ("unshare", "--net=*", "slot"),
    ("nsenter", "*nft*", "namespace"),
    ("ip", "*type?vxlan*", "guard"),
    ("nsenter", "*ip?-batch*", "device"),
    ("nsenter", "*bridge*", "addresses"),
]
"""A program that the prolog runs, words of its command line, and the step that is done then."""


@pytest.mark.parametrize("late", [False, True], ids=["before the program works", "when it has"])
def test_epilog_removes_everything_after_prolog_session_killed_while_program_runs(
    nodes: tuple[Node, Node], late: bool
) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""  # looks at the node as a whole, once
    node.epilog(JOB)
    for program, words, step in MOMENTS:
        kill_session_of_prolog(node, program, words, late=late)
        assert (node.job_dir(JOB) / "prolog.log").read_text().split()[-1] == step
        assert (node.run_dir / "slots/1").is_symlink()
        node.epilog(JOB)
        assert node.left() == [], step


def kill_session_of_prolog(node: Node, program: str, words: str, *, late: bool, **more: str) -> None:
    """Kill the hook with all that it started, as slurmd's time-out does, once it runs a program with such words: it
    does nothing yet, or (`late`) it has done its work. `more` are other programs, for `other_program`."""
    held, log = node.place / "held", node.job_dir(JOB) / "prolog.log"
    work = f'{program} "$@"; ' if late else ""
    script = f'PATH=/usr/sbin:/usr/bin; case "$*" in {words}) {work}touch {held}; exec sleep 600 ;; esac\n'
    hook = node.enter([str(node.place / "etc/prolog.d/50-ffdl")])
    environment = node.environment(JOB, LIST, "ffdl-batch:job/2")
    with (
        other_program(node, program, f'{script}exec {program} "$@"', **more),
        subprocess.Popen(hook, env=environment, start_new_session=True) as process,
    ):
        deadline = time.monotonic() + 120
        while not held.exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        kill_session(process.pid)
    held.unlink()


def kill_session(leader: int) -> None:
    """Every process of a session; `timeout` makes a process group of its own."""
    for _ in range(3):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _session(entry) == leader:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(int(entry.name), signal.SIGKILL)


def _session(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_epilog_waits_for_child_process_of_killed_prolog(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    node, mark = nodes[0], tmp_path / "ended"
    program = "import os, sys; sys.path.insert(0, sys.argv[1])\n"
    program += "from ffdl_network import commands, locks, settings\n"
    program += f"kill = f'kill -KILL {{os.getpid()}}; sleep 1; touch {mark}'\n"  # whoever started it
    program += "with locks.held(99, settings.load()): commands.run(['sh', '-c', kill], 60)\n"
    node.job_dir(JOB).mkdir()
    done = node.run([*PYTHON, "-c", program, str(node.libexec)], check=False)
    assert done.returncode == -signal.SIGKILL or done.returncode == 128 + signal.SIGKILL
    node.epilog(JOB)
    assert mark.exists()
    assert node.left() == []


def test_epilog_is_idempotent_and_accepts_unknown_job(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    node.epilog(JOB)
    assert node.prolog(JOB, LIST) == ""
    for _ in range(2):
        node.epilog(JOB)
        assert node.left() == []
    done = node.run([str(node.libexec / "epilog")], env={"SLURM_JOB_ID": str(JOB)})  # as an operator would
    assert (done.stdout, node.left()) == ("", [])


def test_epilog_kills_processes_in_job_network_despite_open_external_socket(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        assert node.prolog(JOB, LIST) == ""
    first, second = (node.namespace(JOB) for node in nodes)
    with listening(second, "learner", "10.200.1.1", ALICE) as learner, open_socket(first) as (holder, sender):
        assert ask(first, "udp", "10.200.1.1", uid=ALICE) == "learner"
        assert sender.poll() is None
        nodes[0].epilog(JOB)
        assert sender.wait(timeout=300) == -signal.SIGKILL
        assert nodes[0].left() == []
        assert holder.poll() is None  # it sits elsewhere and holds the socket
        nodes[1].epilog(JOB)
        assert learner.wait(timeout=300) == -signal.SIGKILL


class open_socket:  # noqa: N801 - a context manager
    """A socket of a namespace in the hands of a process outside, and a process inside."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __enter__(self) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        inside = ["nsenter", f"--net={self.namespace}"]
        enter = "import ctypes, os, socket, time\n"
        enter += f"fd = os.open({self.namespace!r}, os.O_RDONLY)\nown = os.open('/proc/self/ns/net', os.O_RDONLY)\n"
        enter += "libc = ctypes.CDLL(None)\nassert libc.setns(fd, 0) == 0\nheld = socket.socket()\n"
        enter += "assert libc.setns(own, 0) == 0\nos.close(fd)\nprint('ready', flush=True)\ntime.sleep(600)\n"
        self.holder = subprocess.Popen([*PYTHON, "-c", enter], stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        self.inside = subprocess.Popen([*inside, "sleep", "600"])
        wait_for_sleep(self.inside.pid)
        return self.holder, self.inside

    def __exit__(self, *_: object) -> None:
        for process in (self.holder, self.inside):
            process.kill()
            with process:
                process.wait()


def test_concurrent_prologs_get_distinct_slots_and_fail_when_all_are_taken(nodes: tuple[Node, Node]) -> None:
    node, jobs = nodes[0], range(200, 210)
    with settings_with(node, "NETWORK_SLOTS", "8"), ThreadPoolExecutor(len(jobs)) as pool:
        errors = list(pool.map(lambda job: node.prolog(job, node.name), jobs))
        refused = [error for error in errors if error]
        assert len(refused) == len(jobs) - 8
        assert all("all 8 slots of this node are taken: set NETWORK_SLOTS" in error for error in refused)
        made = [job for job, error in zip(jobs, errors, strict=True) if not error]
        assert len({node.namespace(job) for job in made}) == 8
        list(pool.map(node.epilog, jobs))
    assert node.left() == []


def test_slot_directory_admits_only_the_job_user(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, node.name, uid=ALICE) == ""
    look = ["stat", "-L", node.namespace(JOB)]
    assert subprocess.run(node.enter(look, uid=ALICE), capture_output=True, check=False).returncode == 0
    kind = ["stat", "-f", "-c", "%t", node.namespace(JOB)]  # as ffdl-admin doctor asks
    assert subprocess.run(node.enter(kind, uid=ALICE), capture_output=True, check=True).stdout == b"6e736673\n"
    refused = subprocess.run(node.enter(look, uid=BOB), capture_output=True, text=True, check=False)
    assert (refused.returncode, "Permission denied" in refused.stderr) == (1, True)
    directory = str(Path(node.namespace(JOB)).parent)
    acl = node.run(["getfacl", "--numeric", "--omit-header", "--absolute-names", directory]).stdout.split()
    assert acl == ["user::rwx", f"user:{ALICE}:--x", "group::---", "mask::--x", "other::---"]
    listed = subprocess.run(node.enter(["ls", directory], uid=ALICE), capture_output=True, check=False)
    assert listed.returncode != 0


_TAKE = """
import socket, sys
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    taken.bind(("0.0.0.0", int(sys.argv[1])))
except PermissionError:
    print("refused", flush=True)
else:
    print("taken", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("uid", [0, ALICE])
def test_network_port_can_be_taken_by_root_only(nodes: tuple[Node, Node], uid: int) -> None:
    """Root can, and then there is no network: that is what would be wrong."""
    node = nodes[0]
    argv = node.enter([*PYTHON, "-c", _TAKE, str(UDP_PORT)], uid=uid)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        said = process.stdout.readline().strip()
        error = node.prolog(JOB, LIST)
        process.stdin.close()
    assert (said, "Address already in use" in error) == (("refused", False) if uid else ("taken", True)), error
    assert bool(error) == (uid == 0)


@pytest.mark.parametrize("comment", ["ffdl-batch:", "ffdl-batch: my run"])
def test_prolog_makes_no_network_for_mark_without_network_request(nodes: tuple[Node, Node], comment: str) -> None:
    node = nodes[0]
    (node.run_dir / "capabilities").unlink(missing_ok=True)
    assert node.prolog(JOB, LIST, comment) == ""
    assert not (node.job_dir(JOB) / "network").exists()
    assert not list((node.run_dir / "slots").glob("*"))
    assert pairs(node.run_dir / "capabilities")["network"] == "yes"


def test_prolog_rejects_malformed_mark_and_makes_no_network(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert "unreadable mark 'ffdl-batch:" in node.prolog(JOB, LIST, "ffdl-batch:job/2\nmore")
    assert not (node.job_dir(JOB) / "network").exists()
    assert not list((node.run_dir / "slots").glob("*"))


def test_prolog_ignores_user_comment_after_mark(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST, "ffdl-batch:job/3 job/9; $(id) 'x") == ""
    assert (node.facts(JOB)["learners"], node.facts(JOB)["level"]) == ("3", "job")
    assert "names" not in node.facts(JOB)


def test_prolog_error_names_missing_prerequisite_and_file_to_change(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    configuration = node.place / "apptainer.conf"
    whole = configuration.read_text()
    configuration.write_text(whole.replace(f"allow netns paths = {node.run_dir}/7/net\n", ""))
    error = node.prolog(JOB, LIST)
    assert f"{configuration}: 1 of 32 slots are not listed" in error
    assert f"'allow netns paths = {node.run_dir}/7/net'" in error
    configuration.write_text(whole.replace("allow net groups = games,news\n", ""))
    assert "add 'allow net groups = <groups>'" in node.prolog(JOB, LIST)
    configuration.write_text(whole)
    assert "uucp is neither in 'allow net users' nor in a group" in node.prolog(JOB, LIST, uid=STRANGER)
    assert "this node knows no user 54321" in node.prolog(JOB, LIST, uid=54321)
    starter = node.place / "starter-suid"
    configure_apptainer(node)
    starter.chmod(0o755)
    assert "Apptainer has no setuid starter" in node.prolog(JOB, LIST)
    starter.chmod(0o4755)
    assert "this node is 10.9.0.1, which is not in the job's nodes" in node.prolog(JOB, "10.9.0.[2-3]")
    node.run(["sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0"])
    assert "ip_unprivileged_port_start is 0" in node.prolog(JOB, LIST)
    node.run(["sysctl", "-qw", f"net.ipv4.ip_unprivileged_port_start={UDP_PORT}"])
    assert f"any user may open port {UDP_PORT}, which the networks need" in node.prolog(JOB, LIST)
    node.run(["sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=1024"])
    assert node.prolog(JOB, LIST) == ""


def test_check_prints_problem_and_writes_capabilities_file(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    check = [str(node.libexec / "check")]
    done = node.run(check)
    assert done.stdout.splitlines() == [
        *(f"ok    {name}" for name in ("vxlan", "filter", "acl", "ports", "hooks", "apptainer")),
        "-     egress: not offered: NETWORK_EGRESS_TO of values.env is empty",
    ]
    known = pairs(node.run_dir / "capabilities")
    assert (known["network"], known["slots"], known["apptainer"]) == ("yes", "32", "yes")
    assert (known["egress"], "NETWORK_EGRESS_TO" in known["egress_problem"]) == ("no", True)
    configuration = node.place / "apptainer.conf"
    configuration.rename(configuration.with_suffix(".away"))
    done = node.run(check, check=False)
    assert done.returncode == 1
    assert f"FAIL  apptainer: {configuration} cannot be read" in done.stdout
    known = pairs(node.run_dir / "capabilities")
    assert (known["network"], known["vxlan"], known["apptainer"]) == ("no", "yes", "no")
    assert "APPTAINER_CONF in values.env" in known["problem"]
    configuration.with_suffix(".away").rename(configuration)
    assert node.run(check).returncode == 0


def test_check_fails_when_apptainer_allows_other_networks(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    configuration, check = node.place / "apptainer.conf", [str(node.libexec / "check")]
    with configuration.open("a") as file:
        file.write("# allow net networks = dmz\nallow net networks = NULL\n")
    assert node.run(check).returncode == 0
    with configuration.open("a") as file:
        file.write("allow net networks = bridge, ptp\n")
    done = node.run(check, check=False)
    said = f"{configuration}: 'allow net networks' lists bridge, ptp"
    assert (done.returncode, f"FAIL  apptainer: {said}" in done.stdout) == (1, True), done
    assert pairs(node.run_dir / "capabilities")["network"] == "no"
    assert said in node.prolog(JOB, LIST)
    configure_apptainer(node)
    assert node.run(check).returncode == 0


@pytest.mark.parametrize("folder", ["prolog.d", "epilog.d"])
def test_check_fails_when_hook_is_missing_or_not_executable(nodes: tuple[Node, Node], folder: str) -> None:
    node = nodes[0]
    place, check = node.place / "etc" / folder, [str(node.libexec / "check")]
    hook, keep = place / "50-ffdl", place / "00-keep"
    away = hook.rename(node.place / "away")
    done = node.run(check, check=False)
    assert (done.returncode, f"FAIL  hooks: {hook} is not there" in done.stdout) == (1, True), done
    away.rename(hook)
    for file in (hook, keep):
        file.chmod(0o644)
        done = node.run(check, check=False)
        assert (done.returncode, f"FAIL  hooks: {file} cannot be executed" in done.stdout) == (1, True), done
        file.chmod(0o755)
    assert node.run(check).returncode == 0


def test_epilog_removes_everything_for_many_networks_in_a_row(nodes: tuple[Node, Node]) -> None:
    times: dict[str, list[float]] = {"prolog": [], "epilog": []}
    for number in range(ROUNDS):
        node = nodes[number % 2]
        began = time.monotonic()
        assert node.prolog(1000 + number, LIST) == ""
        middle = time.monotonic()
        node.epilog(1000 + number)
        times["prolog"].append(middle - began)
        times["epilog"].append(time.monotonic() - middle)
        assert node.left() == []
    for name, taken in times.items():
        taken.sort()
        print(f"{name}: median {taken[len(taken) // 2] * 1000:.0f} ms, most {taken[-1] * 1000:.0f} ms of {len(taken)}")
