"""Nodes whose own firewall drops what it does not know; the lines of docs/network.md let jobs' networks pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.overlay.nodes import ALICE, UDP_PORT, Node, settings_with
from tests.overlay.talking import PORT, ask, is_silent, listening
from tests.overlay.test_egress import forget_forwarding
from tests.overlay.test_tools import call, other_program

JOB = 99
LIST = "10.9.0.[1-2]"
SECOND = "10.200.1.1"
VALUES = {"NETWORK_EGRESS_TO": "10.9.0.0/24"}
PAGE = Path(__file__).resolve().parents[2] / "docs/network.md"


@pytest.fixture
def firewall(nodes: tuple[Node, Node]) -> Iterator[None]:
    """Both nodes drop what comes in and what is forwarded."""
    for node in nodes:
        node.run(["nft", "add", "table", "inet", "site"])
        for name in ("input", "forward"):
            chain = "{ type filter hook " + name + " priority 0; policy drop; }"
            node.run(["nft", "add", "chain", "inet", "site", name, chain])
    try:
        yield
    finally:
        for node in nodes:
            node.run(["nft", "delete", "table", "inet", "site"])


def shown(first_word: str) -> list[str]:
    """The lines of the page that begin so, for the nodes here."""
    found = re.findall(rf"^{first_word} .* accept$", PAGE.read_text(), re.MULTILINE)
    return [line.replace("192.0.2.0/24", "10.9.0.0/24") for line in found]


def test_documented_firewall_rule_admits_vxlan_job_network(nodes: tuple[Node, Node], firewall: None) -> None:
    line, _ = shown("ip")  # the other one is WireGuard's
    assert f"udp dport {UDP_PORT} " in line
    for node in nodes:
        assert node.prolog(JOB, LIST) == ""
    inside = nodes[0].namespace(JOB)
    with listening(nodes[1].namespace(JOB), "second", SECOND, ALICE):
        assert is_silent(inside, "udp", SECOND)
        for node in nodes:
            node.run(["nft", "add", "rule", "inet", "site", "input", *line.split()])
        assert [ask(inside, kind, SECOND) for kind in ("udp", "tcp")] == ["second", "second"]


def test_documented_firewall_rules_admit_egress_traffic(nodes: tuple[Node, Node], firewall: None) -> None:
    first, second = nodes
    outward, inward = shown("iifname"), shown("oifname")
    assert len(outward) == len(inward) == 1
    second.run(["nft", "add", "rule", "inet", "site", "input", "accept"])
    assert first.prolog(JOB, first.name, f"ffdl-batch:egress/2/{second.name}:{PORT}") == ""
    inside = first.namespace(JOB)
    with ExitStack() as stack:
        stack.enter_context(listening(f"/proc/{second.pid}/ns/net", "server", second.name, 0))
        assert is_silent(inside, "udp", second.name)
        for line in (*outward, *inward):
            first.run(["nft", "add", "rule", "inet", "site", "forward", *line.split()])
        assert [ask(inside, kind, second.name) for kind in ("udp", "tcp")] == ["server", "server"]


def test_check_fails_when_forward_filter_cannot_be_restored_after_egress_is_disabled(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    forget_forwarding(node)
    assert node.prolog(JOB, node.name, f"ffdl-batch:egress/2/{nodes[1].name}:{PORT}") == ""
    refuse = 'rules=$(cat); case "$rules" in *ffdl_node*) echo "no room" >&2; exit 1 ;; esac\n'
    refuse += 'printf "%s\\n" "$rules" | /usr/sbin/nft "$@"'
    node.run(["nft", "flush", "ruleset"])
    with settings_with(node, "NETWORK_EGRESS_TO", ""):
        with other_program(node, "nft", refuse):
            done = call(node, "check", "--quiet")
        said = "the filter of what this node forwards cannot be looked at or put back: nft -f - ended with 1: no room"
        assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"FAIL  filters of running jobs: {said}")
        assert "the filter of what this node forwards was gone; it is there again" in call(node, "check").stdout
