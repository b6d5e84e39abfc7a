"""Level `egress`: named destinations and nothing else, in either direction; and the node becomes no router."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.overlay.nodes import ALICE, BOB, Node, pairs, settings_with, two_nodes, wait_for_sleep
from tests.overlay.talking import NO_ANSWER, PORT, are_silent, ask_all, heard, is_silent, listening, run_in
from tests.overlay.test_life import die_at

JOB = 99
LIST = "10.9.0.[1-2]"
OTHER_PORT = PORT + 1
SERVER, ELSEWHERE = "10.9.0.7", "10.9.0.8"
"""Two more addresses of the second node, which is no node of most jobs here."""
HOSTS = f"127.0.0.1 localhost here\n{SERVER} data.example\n{ELSEWHERE} two.example\n{SERVER} two.example\n"
MARK = f"ffdl-batch:egress/2/{SERVER}:{PORT}"


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Node, Node]]:
    """Two nodes of a site that lets jobs name its network; the first one does not forward."""
    with two_nodes(NETWORK_EGRESS_TO="10.9.0.0/24, 10.201.0.0/16,127.0.0.0/8,0.0.0.0/1") as (first, second):
        names = first.place / "hosts"
        names.write_text(HOSTS)
        subprocess.run(["mount", "--bind", str(names), "/etc/hosts"], check=True)
        first.run(["sysctl", "-qw", "net.ipv4.ip_forward=0"])
        for address in (SERVER, ELSEWHERE):
            second.run(["ip", "addr", "add", f"{address}/24", "dev", "eth0"])
            peer = ["lladdr", "02:00:00:00:01:02", "dev", "eth0"]
            first.run(["ip", "neigh", "add", address, *peer])
        yield first, second
        assert [first.left(), second.left()] == [[], []]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def host(node: Node) -> str:
    """The namespace of a node itself."""
    return f"/proc/{node.pid}/ns/net"


def serve(
    stack: ExitStack, namespace: str, tag: str, address: str = "0.0.0.0", port: int = PORT
) -> subprocess.Popen[str]:
    return stack.enter_context(listening(namespace, tag, address, port=port))


def answers(namespace: str, address: str, port: int = PORT, uid: int = ALICE) -> list[str]:
    """What comes back over TCP and UDP; "" for nothing."""
    said = ask_all(namespace, ("tcp", address), ("udp", address), port=port, uid=uid)
    return ["" if text.startswith(NO_ANSWER) else text for text in said]


def silence(namespace: str, address: str, port: int = PORT, uid: int = ALICE) -> bool:
    """Whether nothing comes back over TCP and UDP."""
    return are_silent(namespace, ("tcp", address), ("udp", address), port=port, uid=uid)


def test_egress_reaches_only_named_destinations_over_tcp_and_udp(nodes: tuple[Node, Node], stack: ExitStack) -> None:
    first, second = nodes
    server = serve(stack, host(second), "server", SERVER)
    serve(stack, host(second), "other port", SERVER, OTHER_PORT)
    serve(stack, host(second), "elsewhere", ELSEWHERE)
    assert first.prolog(JOB, first.name, MARK) == ""
    assert first.prolog(JOB + 1, first.name, "ffdl-batch:job/2", BOB) == ""
    inside, without = first.namespace(JOB), first.namespace(JOB + 1)
    assert answers(inside, SERVER) == ["server", "server"]
    for address, port, tag in ((SERVER, OTHER_PORT, "other port"), (ELSEWHERE, PORT, "elsewhere")):
        assert answers(host(first), address, port) == [tag, tag]
        assert silence(inside, address, port)
    assert silence(without, SERVER)
    assert {peer for _, _, peer in heard(server)} == {first.name}  # under the node's address
    facts = first.facts(JOB)
    assert (facts["level"], facts["mechanism"], facts.get("names")) == ("egress", "vxlan+nat", None)
    assert "default" not in run_in(inside, ["ip", "route"])


def test_egress_reaches_own_node_only_if_it_is_a_destination(nodes: tuple[Node, Node], stack: ExitStack) -> None:
    first, _ = nodes
    serve(stack, host(first), "node", first.name)
    serve(stack, host(first), "other port", first.name, OTHER_PORT)
    assert first.prolog(JOB, first.name, f"ffdl-batch:egress/1/{first.name}:{PORT}") == ""
    inside = first.namespace(JOB)
    serve(stack, host(first), "way out", "10.201.1.1")
    assert answers(inside, first.name) == ["node", "node"]
    assert answers(host(first), first.name, OTHER_PORT) == ["other port", "other port"]
    assert silence(inside, first.name, OTHER_PORT)
    assert answers(host(first), "10.201.1.1") == ["way out", "way out"]
    assert silence(inside, "10.201.1.1")


def test_egress_interface_accepts_no_inbound_connections(nodes: tuple[Node, Node], stack: ExitStack) -> None:
    """Neither the node, nor another job there, nor another node with a route; those of the job do."""
    first, second = nodes
    assert first.prolog(JOB, LIST, MARK) == ""
    assert second.prolog(JOB, LIST, f"ffdl-batch:egress/2/{first.name}:{PORT}") == ""
    assert first.prolog(JOB + 1, first.name, MARK, BOB) == ""
    serve(stack, first.namespace(JOB), "learner")
    assert answers(second.namespace(JOB), "10.200.0.1") == ["learner", "learner"]
    assert answers(first.namespace(JOB), "10.201.1.2") == ["learner", "learner"]
    second.run(["ip", "route", "add", "10.201.0.0/16", "via", first.name])
    try:
        for stranger in (host(first), host(second), first.namespace(JOB + 1), second.namespace(JOB)):
            assert silence(stranger, "10.201.1.2", uid=0)
    finally:
        second.run(["ip", "route", "del", "10.201.0.0/16"])


def test_egress_prolog_resolves_destination_names_into_network_facts(
    nodes: tuple[Node, Node], stack: ExitStack
) -> None:
    first, second = nodes
    for address in (SERVER, ELSEWHERE):
        serve(stack, host(second), address, address)
    comment = f"ffdl-batch:egress/2/data.example:{PORT},two.example:{PORT},{ELSEWHERE}:{OTHER_PORT} and mine"
    assert first.prolog(JOB, first.name, comment) == ""
    assert first.facts(JOB)["names"] == f"data.example={SERVER},two.example={ELSEWHERE},two.example={SERVER}"
    for address in (SERVER, ELSEWHERE):
        assert answers(first.namespace(JOB), address) == [address, address]


@pytest.mark.parametrize(
    ("destination", "said"),
    [
        ("nowhere.example:80", "no IPv4 address for the destination nowhere.example"),
        ("here:80", "here (127.0.0.1) cannot be a destination: it is a loopback address"),
        ("127.1:80", "it is a loopback address"),
        ("169.254.169.254:80", "it is a link-local address"),
        ("224.0.0.1:80", "it is a multicast address"),
        ("255.255.255.255:80", "it is not a host address"),
        ("0.0.0.0:80", "it is not a host address"),
        ("10.200.1.1:80", "jobs' own networks have such addresses (NETWORK_PREFIX of values.env)"),
        ("10.201.1.1:80", "jobs' own networks have such addresses (NETWORK_EGRESS_PREFIX of values.env)"),
        ("192.0.2.1:80", "it is outside NETWORK_EGRESS_TO of values.env, 10.9.0.0/24"),
        ("$(id):80", "unreadable mark"),
    ],
)
def test_egress_prolog_rejects_invalid_destination_with_reason(
    nodes: tuple[Node, Node], destination: str, said: str
) -> None:
    node = nodes[0]
    assert said in node.prolog(JOB, node.name, f"ffdl-batch:egress/2/{destination}")
    assert not list((node.run_dir / "slots").glob("*"))


def test_egress_is_unavailable_without_valid_site_network(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with settings_with(node, "NETWORK_EGRESS_TO", ""):
        assert "this site offers no network level egress: NETWORK_EGRESS_TO" in node.prolog(JOB, node.name, MARK)
    with settings_with(node, "NETWORK_EGRESS_TO", "10.9.0.1/24"):
        assert "NETWORK_EGRESS_TO is '10.9.0.1/24': it must be IPv4 networks" in node.prolog(JOB, node.name, MARK)
        done = node.run([str(node.libexec / "check")], check=False)
        assert (done.returncode, "NETWORK_EGRESS_TO is '10.9.0.1/24'" in done.stderr) == (1, True)
        known = pairs(node.run_dir / "capabilities")
        assert (known["network"], known["egress"], "host bits" in known["egress_problem"]) == ("no", "no", True)
    assert node.run([str(node.libexec / "check")]).stdout.splitlines()[-1] == "ok    egress"
    known = pairs(node.run_dir / "capabilities")
    assert (known["egress"], "egress_problem" in known) == ("yes", False)


@contextmanager
def behind(node: Node, stack: ExitStack) -> Iterator[str]:
    """A machine on another side of the node, with a listener that answers whom the node forwards; its address."""
    argv = ["unshare", "--net", "sleep", "infinity"]
    with subprocess.Popen(argv) as process:
        try:
            wait_for_sleep(process.pid)
            inside = f"/proc/{process.pid}/ns/net"
            node.run(["ip", "link", "add", "side", "type", "veth", "peer", "name", "eth0", "netns", inside])
            node.run(["ip", "addr", "add", "10.8.0.1/24", "dev", "side"])
            node.run(["ip", "link", "set", "side", "up"])
            run_in(inside, ["ip", "addr", "add", "10.8.0.2/24", "dev", "eth0"])
            run_in(inside, ["ip", "link", "set", "eth0", "up"])
            run_in(inside, ["ip", "route", "add", "default", "via", "10.8.0.1"])
            serve(stack, inside, "behind")
            yield "10.8.0.2"
        finally:
            process.kill()
            node.run(["ip", "link", "del", "side"], check=False)


def test_egress_node_forwards_nothing_except_job_traffic(nodes: tuple[Node, Node], stack: ExitStack) -> None:
    first, second = nodes
    forget_forwarding(first)
    second.run(["ip", "route", "add", "10.8.0.0/24", "via", first.name])
    try:
        with behind(first, stack) as address:
            assert silence(host(second), address, uid=0)
            assert first.prolog(JOB, first.name, MARK) == ""
            assert first.run(["sysctl", "-n", "net.ipv4.ip_forward"]).stdout.strip() == "1"
            assert silence(host(second), address, uid=0)
            first.run(["nft", "flush", "ruleset"])
            assert answers(host(second), address, uid=0) == ["behind", "behind"]
            assert first.prolog(JOB + 1, first.name, "ffdl-batch:job/1", BOB) == ""
            assert silence(host(second), address, uid=0)
            first.run(["nft", "flush", "ruleset"])
            told = first.run([str(first.libexec / "check")]).stdout
            assert "note  the filter of what this node forwards was gone; it is there again" in told
            assert silence(host(second), address, uid=0)
    finally:
        second.run(["ip", "route", "del", "10.8.0.0/24"])


def test_egress_prolog_keeps_forwarding_on_existing_router(nodes: tuple[Node, Node], stack: ExitStack) -> None:
    first, second = nodes
    forget_forwarding(first)
    first.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"])
    second.run(["ip", "route", "add", "10.8.0.0/24", "via", first.name])
    try:
        with behind(first, stack) as address:
            assert first.prolog(JOB, first.name, MARK) == ""
            assert answers(host(second), address, uid=0) == ["behind", "behind"]
    finally:
        second.run(["ip", "route", "del", "10.8.0.0/24"])
        first.run(["sysctl", "-qw", "net.ipv4.ip_forward=0"])


def forget_forwarding(node: Node) -> None:
    """As after a reboot."""
    node.run(["sysctl", "-qw", "net.ipv4.ip_forward=0"])
    (node.run_dir / "forwarding").unlink(missing_ok=True)
    for verb in ("add", "delete"):
        node.run(["nft", verb, "table", "ip", "ffdl_node"])


def test_egress_stays_closed_after_node_rules_flush_and_check_restores_rules(
    nodes: tuple[Node, Node], stack: ExitStack
) -> None:
    """The filter in the job's namespace stays. What is gone with the node's rules is the way out itself."""
    first, second = nodes
    serve(stack, host(second), "server", SERVER)
    serve(stack, host(first), "node", first.name)
    serve(stack, host(first), "other port", first.name, OTHER_PORT)
    assert first.prolog(JOB, first.name, f"{MARK},{first.name}:{PORT},{second.name}:{PORT}") == ""
    inside = first.namespace(JOB)
    learner = serve(stack, inside, "learner", port=OTHER_PORT + 1)
    first.run(["nft", "flush", "ruleset"])
    assert answers(inside, first.name) == ["node", "node"]
    assert silence(inside, first.name, OTHER_PORT)
    assert answers(inside, "10.201.1.2", OTHER_PORT + 1) == ["learner", "learner"]
    second.run(["ip", "route", "add", "10.201.0.0/16", "via", first.name])
    try:
        for stranger in (host(first), host(second)):
            assert silence(stranger, "10.201.1.2", OTHER_PORT + 1, uid=0)
    finally:
        second.run(["ip", "route", "del", "10.201.0.0/16"])
    assert [peer for _, _, peer in heard(learner)] == ["10.201.1.2"]
    assert is_silent(inside, "tcp", SERVER, uid=ALICE)
    assert f"the packet filter of job {JOB} was gone" in first.run([str(first.libexec / "check")]).stdout
    assert answers(inside, SERVER) == ["server", "server"]


def test_egress_stays_closed_after_namespace_rules_flush(nodes: tuple[Node, Node], stack: ExitStack) -> None:
    """Each of the two filters does the whole work."""
    first, second = nodes
    serve(stack, host(first), "node", first.name)
    serve(stack, host(second), "server", SERVER)
    for where, address in ((first, first.name), (second, SERVER)):
        serve(stack, host(where), "other port", address, OTHER_PORT)
    # The second node is a destination by its own address, too: one that asks instead of answering.
    assert first.prolog(JOB, first.name, f"{MARK},{first.name}:{PORT},{second.name}:{PORT}") == ""
    inside = first.namespace(JOB)
    run_in(inside, ["nft", "flush", "ruleset"])
    learner = serve(stack, inside, "learner", port=OTHER_PORT + 1)
    assert (answers(inside, SERVER), answers(inside, first.name)) == (["server"] * 2, ["node"] * 2)
    for address in (SERVER, first.name):
        assert answers(host(first), address, OTHER_PORT) == ["other port", "other port"]
        assert silence(inside, address, OTHER_PORT)
    second.run(["ip", "route", "add", "10.201.0.0/16", "via", first.name])
    try:
        for stranger in (host(first), host(second)):
            assert silence(stranger, "10.201.1.2", OTHER_PORT + 1, uid=0)
    finally:
        second.run(["ip", "route", "del", "10.201.0.0/16"])
    assert answers(inside, "10.201.1.2", OTHER_PORT + 1) == ["learner", "learner"]
    assert [peer for _, _, peer in heard(learner)] == ["10.201.1.2"]


OTHER_THAN_JOB, BEHIND_JOB = (2, 11, 12, 13), 22
"""Points where the prolog does something else than for level `job` (test_life); from the last one on it always does."""


def test_egress_epilog_removes_everything_after_prolog_killed_at_each_step(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    died: list[str] = []
    for point in itertools.chain(OTHER_THAN_JOB, itertools.count(BEHIND_JOB)):
        place = die_at(node, point, comment=MARK)
        if not place:
            break
        died.append(place)
        node.epilog(JOB)
        assert node.left() == [], died
    assert died[:4] == ["destinations", "before nft", "after nft", "guard"]
    made = ["before ip", "after ip", "before nsenter", "after nsenter", "way out"]
    assert died[4:] == ["forwarding", *made, "access", "facts"]
    assert (node.job_dir(JOB) / "network").exists()
    assert "ffdl-out1" in node.run(["ip", "-o", "link"]).stdout


def test_boot_force_removes_egress_interface_without_slot_record(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    assert node.prolog(JOB, LIST, MARK) == ""
    (node.run_dir / "slots/1").unlink()  # nobody knows of it any more
    node.run([str(node.libexec / "boot"), "--force"])
    assert "ffdl-out" not in node.run(["ip", "-o", "link"]).stdout
    assert "ffdl_99" not in node.run(["nft", "list", "tables"]).stdout
    subprocess.run(["nsenter", f"--net={node.run_dir}/1/net", "ip", "link", "del", "eth0"], check=True)
    namespace = node.run_dir / "1"
    subprocess.run(["umount", str(namespace / "net")], check=True)
    (namespace / "net").unlink()
    namespace.rmdir()
