"""What `make bench BENCH=leftovers` counts on a node: all parts of a job's network, and each leftover alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.leftovers_table import Count, named, news
from tests.benchmarks.nodeside import leftovers
from tests.overlay.nodes import UDP_PORT, Node, wait_for_sleep

JOB = 77
LIST = "10.9.0.[1-2]"
PLANTED = {
    "slots": ("mkdir $RUN/7", "rmdir $RUN/7", "7"),
    "claims": ("ln -s ../job-77 $RUN/slots/7", "rm $RUN/slots/7", "7"),
    "jobs' directories": ("mkdir $RUN/job-77", "rmdir $RUN/job-77", "job-77"),
    "filter tables": ("nft add table inet ffdl_77", "nft delete table inet ffdl_77", "inet ffdl_77"),
    "devices": ("ip link add left type vxlan id 77 dstport 298", "ip link del left", "left"),
    "addresses": ("ip address add 10.8.7.6/32 dev eth0", "ip address del 10.8.7.6/32 dev eth0", "eth0 10.8.7.6/32"),
    "UDP sockets": ("ip link add left up type vxlan id 77 dstport 298", "ip link del left", "00000000:012A"),
    "mounts": ("mkdir $RUN/m; mount -t tmpfs m $RUN/m", "umount $RUN/m; rmdir $RUN/m", "$RUN/m"),
}
"""What is planted on the node by a line of shell, what removes it, and what the counter calls it."""


def look(node: Node) -> Count:
    """What the program of the benchmark prints on this node."""
    printed = node.run([sys.executable, "-I", "-S", leftovers.__file__, str(node.run_dir)]).stdout
    return named("", json.loads(printed))


def shell(node: Node, script: str) -> None:
    node.run(["sh", "-euc", script], env={"RUN": str(node.run_dir)})


def test_leftovers_counter_lists_every_part_of_job_network(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    before = look(node)
    assert node.prolog(JOB, LIST) == ""
    net = node.namespace(JOB)
    space = f"net:[{Path(net).stat().st_ino}]"
    inside = subprocess.Popen(["nsenter", f"--net={net}", "sleep", "600"])
    try:
        wait_for_sleep(inside.pid)
        now = look(node)
    finally:
        inside.kill()
        inside.wait()
    expected = {
        "namespaces": space,
        "devices": f"{space} eth0",
        "addresses": f"{space} eth0 10.200.0.1/16",
        "mounts": net,
        "slots": "1",
        "claims": "1",
        "jobs' directories": f"job-{JOB}",
        "filter tables": f"inet ffdl_{JOB}",
        "UDP sockets": f"00000000:{UDP_PORT:04X}",
    }
    assert {kind for kind, name in expected.items() if f" {name}" not in now[kind]} == set()
    new = news(before, now)
    assert new.keys() - expected.keys() == {"processes"}
    assert any(name.startswith(f" {inside.pid} ") for name in new["processes"])
    node.epilog(JOB)
    after = look(node)
    # The kernel gives the number of a namespace that is gone to the next one, of whatever process.
    assert {kind for kind, name in expected.items() if space not in name and f" {name}" in after[kind]} == set()


@pytest.mark.parametrize("kind", PLANTED)
def test_leftovers_counter_names_each_planted_leftover(nodes: tuple[Node, Node], kind: str) -> None:
    node = nodes[0]
    plant, remove, called = PLANTED[kind]
    before = look(node)
    shell(node, f"mkdir -p $RUN/slots; {plant}")
    try:
        assert f" {called}".replace("$RUN", str(node.run_dir)) in news(before, look(node))[kind]
    finally:
        shell(node, remove)


def test_leftovers_counter_finds_namespace_held_by_process_or_mount(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with subprocess.Popen(["unshare", "--net", "sleep", "600"]) as process:
        try:
            held = _namespace_of(process.pid)
            shell(node, "mkdir -p $RUN; touch $RUN/n; unshare --net=$RUN/n true")
            mounted = f"net:[{(node.run_dir / 'n').stat().st_ino}]"
            counted = look(node)["namespaces"]
        finally:
            process.kill()
            shell(node, "umount $RUN/n; rm $RUN/n")
    assert {f" {held}", f" {mounted}"} <= counted


def _namespace_of(pid: int) -> str:
    """Of a process that unshare has turned into what it was told to start."""
    wait_for_sleep(pid)
    return str(Path(f"/proc/{pid}/ns/net").readlink())
