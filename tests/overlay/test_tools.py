"""A tool of the system that fails under boot and check: one sentence, the status, and the rest of the work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.overlay.nodes import Completed, Node, edited, pairs

JOB = 99
LIST = "10.9.0.[1-2]"
NO_LIST = 'case "$1" in list) echo "netlink: out of buffers" >&2; exit 1 ;; esac; exec /usr/sbin/nft "$@"'
NOT_THE_JOBS = """\
rules=$(cat); case "$rules" in *"table inet ffdl_99 "*) echo "no room" >&2; exit 1 ;; esac
printf '%s\\n' "$rules" | /usr/sbin/nft "$@\""""
CAUSE = "nft list tables ended with 1: netlink: out of buffers"
CURE = "mend nftables on this node, then run check"


@contextmanager
def other_program(node: Node, name: str, script: str, **more: str) -> Iterator[None]:
    """The node's programs find another one of that name first; `more` has scripts of other names."""
    place = node.place / "other"
    place.mkdir()
    try:
        for program, text in {name: script, **more}.items():
            (place / program).write_text(f"#!/bin/sh\n{text}\n")
            (place / program).chmod(0o755)
        with edited(node, "commands.py", '"PATH": "', f'"PATH": "{place}:'):
            yield
    finally:
        shutil.rmtree(place)


def call(node: Node, *argv: str) -> Completed:
    done = node.run([str(node.libexec / argv[0]), *argv[1:]], check=False)
    assert "Traceback" not in done.stderr
    return done


def test_check_fails_when_nft_cannot_list_tables(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    with other_program(node, "nft", NO_LIST):
        done = call(node, "check")
        assert (done.returncode, done.stderr) == (1, "")
        (said,) = (line for line in done.stdout.splitlines() if line.startswith("FAIL"))
        assert said.startswith(f"FAIL  filters of running jobs: {CAUSE}: ") and said.endswith(CURE)
        assert call(node, "check", "--quiet").stdout == f"{said}\n"
    assert call(node, "check", "--quiet").stdout == ""
    assert (call(node, "check").returncode, call(node, "check", "-q").returncode) == (0, 64)


def test_check_and_boot_fail_when_packet_filter_cannot_be_restored(nodes: tuple[Node, Node]) -> None:
    """Nothing else is wrong: nft makes the rules that check tries, and not those of the job."""
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    node.run(["nft", "flush", "ruleset"])
    with other_program(node, "nft", NOT_THE_JOBS):
        said = f"the packet filter of job {JOB} is gone and cannot be put back: nft -f - ended with 1: no room"
        done = call(node, "check", "--quiet")
        assert (done.returncode, done.stdout) == (1, f"FAIL  filters of running jobs: {said}\n")
        done = call(node, "boot")
        assert (done.returncode, done.stderr) == (1, f"boot: {said}\n")
    done = call(node, "boot")
    assert (done.returncode, done.stderr) == (0, f"boot: the packet filter of job {JOB} was gone; it is there again\n")


def test_check_quiet_prints_note_about_restored_packet_filter(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    node.run(["nft", "flush", "ruleset"])
    done = call(node, "check", "--quiet")
    assert (done.returncode, done.stdout) == (0, "note  the packet filter of job 99 was gone; it is there again\n")


def test_boot_reports_nft_failure_and_still_writes_capabilities(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    (node.run_dir / "capabilities").unlink()
    with other_program(node, "nft", NO_LIST):
        done = call(node, "boot")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith(f"boot: {CAUSE}: ") and done.stderr.endswith(f"{CURE}\n")
        assert pairs(node.run_dir / "capabilities")["network"] == "yes"
        done = call(node, "boot", "--force")
        assert (done.returncode, done.stderr.count("Traceback"), CAUSE in done.stderr) == (1, 0, True)
    assert node.left() == []  # what nft was not asked about first


def test_first_boot_removes_networks_when_nft_cannot_list_tables(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST) == ""
    (node.run_dir / "booted").write_text("another boot\n")
    with other_program(node, "nft", NO_LIST):
        assert (call(node, "boot").returncode, node.left()) == (1, [])


@pytest.mark.parametrize("script", ["echo no >&2; exit 3", "exec sleep 60"], ids=["fails", "hangs"])
def test_node_offers_no_network_when_nft_fails_or_hangs(nodes: tuple[Node, Node], script: str) -> None:
    node = nodes[0]
    assert (
        call(node, "boot").returncode == 0
    )  # the first boot asks nft what an earlier one left, and fails if it cannot
    hasty = edited(node, "commands.py", "timeout=timeout_s", 'timeout=1 if "nft" in argv else timeout_s')
    with hasty, other_program(node, "nft", script):
        for program in ("boot", "check"):
            done = call(node, program)
            assert done.returncode == int(program == "check"), done
        known = pairs(node.run_dir / "capabilities")
        assert (known["network"], "install nftables" in known["filter_problem"]) == ("no", True)
        error = node.prolog(JOB, LIST)  # the hook ends with 0: no node is drained
        assert error.startswith("no network for this job: ") and "nft -f - " in error


def test_check_and_prolog_report_nft_that_cannot_be_executed(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with other_program(node, "nft", NO_LIST):
        (node.place / "other/nft").write_text("neither a script nor a binary")
        done = call(node, "check")
        assert (done.returncode, "FAIL  filter: " in done.stdout) == (1, True)
        assert node.prolog(JOB, LIST) != ""


def test_boot_and_check_fail_when_run_directory_is_a_file(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    node.run_dir.mkdir(exist_ok=True)
    away = node.place / "run.away"
    node.run_dir.rename(away)
    node.run_dir.write_text("a file\n")
    try:
        for program in ("boot", "check"):
            done = call(node, program)
            assert done.returncode == 1
            assert f"{node.run_dir}/capabilities cannot be written" in done.stderr, done
            assert "FFDL_RUN of values.env must be a directory" in done.stderr
    finally:
        node.run_dir.unlink()
        away.rename(node.run_dir)
