"""Networks of jobs whose nodes are joined by WireGuard: the kernel's, or a program's where the kernel has none."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.overlay.nodes import ALICE, PYTHON, SECRET, WIREGUARD, Node, pairs
from tests.overlay.talking import (
    LONG_S,
    NO_ANSWER,
    PORT,
    SHORT_S,
    are_silent,
    ask,
    ask_all,
    heard,
    is_silent,
    listening,
    run_in,
)
from tests.overlay.test_firewall import firewall, shown
from tests.overlay.test_reach import (
    NO_LEARNERS,
    SECOND,
    A,
    Scene,
    scene,
    test_job_network_connects_learners_over_tcp_and_udp_within_and_across_nodes,
    test_job_network_isolates_jobs_with_same_addresses,
)
from tests.overlay.test_tools import call, other_program

__all__ = [
    "firewall",
    "scene",
    "test_job_network_connects_learners_over_tcp_and_udp_within_and_across_nodes",
    "test_job_network_isolates_jobs_with_same_addresses",
]
VALUES = {**WIREGUARD, "NETWORK_EGRESS_TO": "10.9.0.0/24"}
JOB = 99
LIST = "10.9.0.[1-2]"
UDP = 10000 + JOB
"""The port of that job's number."""
KEY = """
import sys; sys.path.insert(0, sys.argv[1])
from ffdl_network import layout, wireguard
job = layout.Job(99, 0, ("10.9.0.1", "10.9.0.2"), 0, 2)
print(wireguard.private_key(bytes.fromhex(sys.argv[2]), job, int(sys.argv[3])))
"""


def key_of(node: Node, rank: int, secret: bytes = SECRET) -> str:
    """The private key of a node of the job."""
    argv = [*PYTHON, "-c", KEY, str(node.libexec), secret.hex(), str(rank)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def public(key: str) -> str:
    return subprocess.run(["wg", "pubkey"], input=key, check=True, capture_output=True, text=True).stdout.strip()


def test_wireguard_network_sends_packets_only_to_known_learners(scene: Scene) -> None:
    scene.listen(scene.namespace(A, 1), "learner", SECOND, ALICE)
    inside, before = scene.namespace(A, 0), scene.nodes[0].sent()
    assert are_silent(inside, *(("broadcast", address) for address in ("255.255.255.255", "10.200.255.255")))
    assert are_silent(inside, *(("udp", address) for address in NO_LEARNERS))
    assert scene.nodes[0].sent() == before
    assert ask(inside, "udp", SECOND) == "learner"
    assert scene.nodes[0].sent() > before
    assert run_in(inside, ["ip", "-6", "addr"]) == ""
    assert "default" not in run_in(inside, ["ip", "route"])
    assert scene.nodes[0].facts(A)["mechanism"] == "wireguard"


def test_wireguard_network_passes_packets_up_to_mtu_unfragmented(nodes: tuple[Node, Node]) -> None:
    """With the last byte of it the outer packet has the size of the nodes' network, and no byte more."""
    for node in nodes:
        assert node.prolog(JOB, LIST) == ""
        assert node.facts(JOB)["mtu"] == "1420"
    before = _cut(nodes[0])
    with listening(nodes[1].namespace(JOB), "learner", SECOND, ALICE):
        for size, said in ((1420, "learner"), (1421, "Message too long")):
            argv = [*PYTHON, "-c", _LARGE, SECOND, str(PORT), str(size - 28)]
            assert run_in(nodes[0].namespace(JOB), argv).strip() == said
    assert _cut(nodes[0]) == before


_LARGE = """
import socket, sys
sender = socket.socket(type=socket.SOCK_DGRAM)
sender.settimeout(60)
sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: never cut it
try:
    sender.sendto(b"x" * int(sys.argv[3]), (sys.argv[1], int(sys.argv[2])))
    print(sender.recv(100).decode())
except OSError as error:
    print(error.strerror or error)
"""


def _cut(node: Node) -> str:
    """How many packets the node has fragmented."""
    names, values = (line.split() for line in Path(f"/proc/{node.pid}/net/snmp").read_text().splitlines()[:2])
    return dict(zip(names, values, strict=True))["FragCreates"]


def test_wireguard_nodes_with_different_secrets_cannot_communicate(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    file = second.place / "network.secret"
    prints = []
    for secret in (SECRET[::-1], SECRET):
        file.write_bytes(secret)
        for node in nodes:
            assert node.prolog(JOB, LIST) == ""
        prints.append([pairs(node.run_dir / "capabilities")["secret"] for node in nodes])
        with listening(second.namespace(JOB), "learner", SECOND, ALICE) as learner:
            wait_s = LONG_S if secret == SECRET else SHORT_S
            said = ask(first.namespace(JOB), "udp", SECOND, wait_s=wait_s)
            assert [text for _, text, _ in heard(learner)] == (["who"] if secret == SECRET else []), said
        for node in nodes:
            node.epilog(JOB)
    assert [a == b for a, b in prints] == [False, True]
    assert all(len(one) == 16 for pair in prints for one in pair)


STRANGER = """
name=$1; key=$2; peer=$3
ip link add "$name" type wireguard 2>/dev/null || wireguard-go "$name"
echo "$key" | wg set "$name" private-key /proc/self/fd/0 listen-port "$4" \\
    peer "$peer" allowed-ips 10.200.1.0/24 endpoint "10.9.0.2:$4"
ip addr add 10.200.0.1/24 dev "$name"; ip link set "$name" up; ip route replace 10.200.1.0/24 dev "$name"
"""


@pytest.mark.parametrize("own", [False, True], ids=["a key of its own", "the key of a node"])
def test_wireguard_network_admits_only_holder_of_node_key_after_rules_flush(
    nodes: tuple[Node, Node], own: bool
) -> None:
    """Root of another machine, at the address and port of a node: with VXLAN that is enough."""
    stranger, node = nodes
    assert node.prolog(JOB, LIST) == ""
    node.run(["nft", "flush", "ruleset"])
    key = key_of(node, 0, SECRET if own else bytes(32))
    with listening(node.namespace(JOB), "learner", SECOND, ALICE) as learner:
        try:
            stranger.run(["sh", "-euc", STRANGER, "sh", "strange", key, public(key_of(node, 1)), str(UDP)])
            said = ask(f"/proc/{stranger.pid}/ns/net", "udp", SECOND, wait_s=LONG_S if own else SHORT_S)
        finally:
            stranger.run(["ip", "link", "del", "strange"])
        texts = [text for _, text, _ in heard(learner)]
        assert (said.startswith(NO_ANSWER), texts) == ((False, ["who"]) if own else (True, [])), said
    assert f"the packet filter of job {JOB} was gone" in call(node, "check").stdout
    deadline = time.monotonic() + 60
    while stranger.programs() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_wireguard_keys_are_absent_from_files_and_command_lines(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    lines = node.place / "lines"
    with other_program(node, "wg", f'echo "$0 $@" >>{lines}; exec /usr/bin/wg "$@"'):
        assert node.prolog(JOB, LIST) == ""
    called = {line.partition("/wg ")[2] for line in lines.read_text().splitlines()}
    assert called == {"pubkey", "setconf ffdl-wg1 /proc/self/fd/0"}
    files = [lines, *(path for path in node.run_dir.rglob("*") if path.is_file() and path.name != "net")]
    told = "".join(path.read_text() for path in files)
    told += "".join(_line_of(pid) for pid in node.programs())
    for key in (*(key_of(node, rank) for rank in (0, 1)), SECRET.decode()):
        assert key not in told
    assert "PrivateKey" not in told


def _line_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()


def test_prolog_reports_wg_failure_without_keys(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with other_program(node, "wg", 'case "$1" in setconf) cat >&2; exit 1 ;; esac; exec /usr/bin/wg "$@"'):
        error = node.prolog(JOB, LIST)
    assert "wg setconf ffdl-wg1 /proc/self/fd/0 ended with 1: [Interface] PrivateKey = ... ListenPort = 10099" in error
    assert not any(key_of(node, rank) in error for rank in (0, 1))


def test_documented_firewall_rule_admits_wireguard_job_network(nodes: tuple[Node, Node], firewall: None) -> None:
    _, line = shown("ip")
    assert "udp dport 10000-26383 " in line
    for passes in (False, True):
        for node in nodes:
            assert node.prolog(JOB, LIST) == ""  # again: who was not answered asks again after five seconds
        with listening(nodes[1].namespace(JOB), "second", SECOND, ALICE):
            wait_s = LONG_S if passes else SHORT_S
            said = ask_all(nodes[0].namespace(JOB), ("tcp", SECOND), ("udp", SECOND), wait_s=wait_s)
        assert [text.startswith(NO_ANSWER) for text in said] == [not passes] * 2
        for node in nodes:
            node.run(["nft", "add", "rule", "inet", "site", "input", *line.split()])


def test_wireguard_network_reaches_egress_destination_and_learners(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    for node in nodes:
        assert node.prolog(JOB, LIST, f"ffdl-batch:egress/2/{second.name}:{PORT}") == ""
    inside = first.namespace(JOB)
    assert (first.facts(JOB)["mechanism"], first.facts(JOB)["level"]) == ("wireguard+nat", "egress")
    with ExitStack() as stack:
        stack.enter_context(listening(f"/proc/{second.pid}/ns/net", "host", second.name))
        stack.enter_context(listening(f"/proc/{second.pid}/ns/net", "other port", second.name, port=PORT + 1))
        stack.enter_context(listening(second.namespace(JOB), "learner", SECOND, ALICE))
        for kind in ("tcp", "udp"):
            assert ask(inside, kind, second.name) == "host"
            assert ask(inside, kind, SECOND) == "learner"
            assert is_silent(inside, kind, second.name, PORT + 1)
