"""What is removed when a node boots, what is swept up later, and what is left alone: the networks of running jobs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.overlay.nodes import ALICE, PYTHON, Node, pairs

JOB = 99
LIST = "10.9.0.[1-2]"


def test_boot_and_prolog_remove_networks_of_ended_jobs(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    for job in (301, 302, 303):
        assert node.prolog(job, LIST) == ""
    (node.job_dir(301) / "ended").touch()  # as the hook leaves it when the epilog failed
    assert node.prolog(304, LIST) == ""
    assert not node.job_dir(301).exists()
    assert re.findall(r"ffdl_\d+", node.run(["nft", "list", "tables"]).stdout) == ["ffdl_302", "ffdl_303", "ffdl_304"]
    node.run(["nft", "add", "table", "inet", "ffdl_305"])
    node.run([str(node.libexec / "boot"), "--force"])
    assert node.left() == []


def test_boot_cleans_once_per_node_boot_and_keeps_running_jobs(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    boot = [str(node.libexec / "boot")]
    assert node.run([*boot, "--fresh"], check=False).returncode == 64
    node.run(boot)
    assert node.prolog(JOB, LIST) == ""
    (node.run_dir / "capabilities").unlink()
    for _ in range(2):
        node.run(boot)  # systemctl restart ffdl-network
        assert Path(node.namespace(JOB)).is_file() and enters(node, JOB)
    assert pairs(node.run_dir / "capabilities")["network"] == "yes"
    (node.run_dir / "booted").write_text("another boot\n")
    node.run(boot)
    assert node.left() == []


def test_first_prolog_after_node_boot_removes_networks_of_previous_boot(nodes: tuple[Node, Node]) -> None:
    """The service may be started for the first time while jobs run."""
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    (node.run_dir / "booted").write_text("another boot\n")
    assert node.prolog(JOB + 1, LIST) == ""
    assert not node.job_dir(JOB).exists()  # of the boot before
    node.run([str(node.libexec / "boot")])
    assert enters(node, JOB + 1)


def test_first_prolog_after_node_boot_keeps_directories_of_waiting_prologs(nodes: tuple[Node, Node]) -> None:
    """Its own directory, where its words go, and those of prologs that wait for it."""
    node = nodes[0]
    (node.run_dir / "booted").write_text("another boot\n")
    for job in (401, 402, 403):
        node.job_dir(job).mkdir()
        (node.job_dir(job) / "prolog.log").touch()
    (node.job_dir(402) / "ended").touch()
    os.utime(node.job_dir(403), (0, 0))  # of the boot before
    assert node.prolog(JOB, LIST) == ""
    assert {path.name for path in node.run_dir.glob("job-*")} == {f"job-{JOB}", "job-401"}
    assert (node.job_dir(JOB) / "prolog.log").read_text().splitlines()[-1].endswith(" facts")
    (node.run_dir / "booted").write_text("another boot\n")
    assert "unreadable mark" in node.prolog(404, LIST, "ffdl-batch:job")
    assert "unreadable mark" in (node.job_dir(404) / "prolog.log").read_text()


def enters(node: Node, job: int) -> bool:
    """Whether the job's user gets into the job's network."""
    path = node.namespace(job)
    return subprocess.run(node.enter(["stat", "-L", path], uid=ALICE), capture_output=True, check=False).returncode == 0


def test_sweep_keeps_network_of_restarted_job(nodes: tuple[Node, Node]) -> None:
    """Its epilog had failed. What sweeps looks at the mark again when it has the lock."""
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    (node.job_dir(JOB) / "ended").touch()
    program = "import sys; sys.path.insert(0, sys.argv[1])\n"
    program += "from ffdl_network import epilog, locks, settings\n"
    program += "real = locks.held\n"
    program += "def held(*words, **more):\n"
    program += "    (settings.load().job(99) / 'ended').unlink()\n"  # as the hook of the new start does
    program += "    return real(*words, **more)\n"
    program += "epilog.locks.held = held\n"
    program += "epilog.sweep(settings.load())"
    node.run([*PYTHON, "-c", program, str(node.libexec)])
    assert enters(node, JOB)


@pytest.mark.parametrize(
    ("late", "work"),
    [("guard.slots = Late", "guard.reassert(site)"), ("epilog.locks = Late", "epilog.sweep(site)")],
    ids=["guard", "sweep"],
)
def test_guard_and_sweep_leave_no_lock_when_job_is_removed_concurrently(
    nodes: tuple[Node, Node], late: str, work: str
) -> None:
    """Between its look at what there is and its taking of the lock the job is removed."""
    node = nodes[0]
    program = "import shutil, sys; sys.path.insert(0, sys.argv[1])\n"
    program += "from ffdl_network import epilog, guard, locks, settings\n"
    program += "site, real = settings.load(), locks.held\n"
    program += "class Late:\n"
    program += "    claims = staticmethod(lambda settings: {1: 99})\n"  # as they were
    program += "    @staticmethod\n"
    program += "    def held(*words, **more):\n"
    program += "        shutil.rmtree(site.job(99))\n"
    program += "        return real(*words, **more)\n"
    program += f"{late}\n{work}\n"
    if "sweep" in work:
        node.job_dir(JOB).mkdir()
        (node.job_dir(JOB) / "ended").touch()
    node.run([*PYTHON, "-c", program, str(node.libexec)])
    assert node.left() == []


def test_lock_release_keeps_lock_file_of_new_holder(nodes: tuple[Node, Node]) -> None:
    """The epilog has removed the lock with the job; before it is done, somebody else makes and takes one."""
    node = nodes[0]
    program = "import sys; sys.path.insert(0, sys.argv[1])\n"
    program += "from ffdl_network import locks, settings\n"
    program += "site = settings.load()\n"
    program += "with locks.held(99, site):\n"
    program += "    locks.remove(99, site)\n"
    program += "    (site.run / 'locks/99').touch()\n"
    program += "print((site.run / 'locks/99').exists())\n"
    program += "locks.remove(99, site)\n"
    assert node.run([*PYTHON, "-c", program, str(node.libexec)]).stdout == "True\n"


def test_lock_is_exclusive_when_its_file_is_removed_concurrently(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    program = "import sys, threading, time; sys.path.insert(0, sys.argv[1])\n"
    program += "from ffdl_network import locks, settings\n"
    program += "site, inside, most = settings.load(), [], []\n"
    program += "def work():\n"
    program += "    for _ in range(20):\n"
    program += "        with locks.held(99, site):\n"
    program += "            inside.append(1); most.append(len(inside)); time.sleep(0.001); inside.pop()\n"
    program += "            locks.remove(99, site)\n"
    program += "workers = [threading.Thread(target=work) for _ in range(4)]\n"
    program += "[worker.start() for worker in workers]; [worker.join() for worker in workers]\n"
    program += "print(len(most), max(most))"
    assert node.run([*PYTHON, "-c", program, str(node.libexec)]).stdout.split() == ["80", "1"]
    assert (node.run_dir / "locks").stat().st_mode & 0o777 == 0o700


def test_prolog_limits_size_of_log_and_error_files(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    prolog = node.libexec / "prolog"
    whole = prolog.read_text()
    prolog.write_text("#!/bin/sh\nyes 'not a word'\n")
    try:
        assert node.prolog(JOB, LIST) != ""
    finally:
        prolog.write_text(whole)
    assert (node.job_dir(JOB) / "prolog.log").stat().st_size <= 2**18
    assert (node.job_dir(JOB) / "error").stat().st_size < 1000
    assert not list(node.job_dir(JOB).glob("core*"))
