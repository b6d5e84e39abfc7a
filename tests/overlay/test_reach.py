"""Who reaches whom from inside a job's network. A refusal counts because the same question is answered elsewhere."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product

import pytest

from tests.overlay.nodes import ALICE, BOB, PYTHON, UDP_PORT, Node
from tests.overlay.talking import PORT, are_silent, ask, ask_all, heard, is_silent, listening, run_in

A, B = 4711, 4712
LIST = "10.9.0.[1-2]"
FIRST, SECOND = "10.200.0.1", "10.200.1.1"


@dataclass
class Scene:
    """Two jobs, each on both nodes: A of alice with two learners a node, B of bob with three."""

    nodes: tuple[Node, Node]
    stack: ExitStack
    listeners: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def namespace(self, job: int, rank: int) -> str:
        return self.nodes[rank].namespace(job)

    def host(self, rank: int) -> str:
        return f"/proc/{self.nodes[rank].pid}/ns/net"

    def listen(self, namespace: str, tag: str, address: str = "0.0.0.0", uid: int = 0) -> None:
        self.listeners[tag] = self.stack.enter_context(listening(namespace, tag, address, uid))


@pytest.fixture
def scene(nodes: tuple[Node, Node]) -> Iterator[Scene]:
    jobs = ((A, LIST, "ffdl-batch:job/2", ALICE), (B, LIST, "ffdl-batch:job/3", BOB))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda one: one[0].prolog(*one[1]), product(nodes, jobs))) == [""] * 4
    with ExitStack() as stack:
        yield Scene(nodes, stack)


def test_job_network_connects_learners_over_tcp_and_udp_within_and_across_nodes(scene: Scene) -> None:
    for rank in (0, 1):
        for learner in (1, 2):
            address = f"10.200.{rank}.{learner}"
            scene.listen(scene.namespace(A, rank), address, address, ALICE)
    for rank in (0, 1):
        for kind in ("tcp", "udp"):
            questions = [(kind, address) for address in scene.listeners]
            assert ask_all(scene.namespace(A, rank), *questions, uid=ALICE) == list(scene.listeners)


def test_job_network_isolates_jobs_with_same_addresses(scene: Scene) -> None:
    for rank in (0, 1):
        scene.listen(scene.namespace(A, rank), f"a{rank}", f"10.200.{rank}.1", ALICE)
        scene.listen(scene.namespace(B, rank), f"b{rank}", f"10.200.{rank}.3", BOB)
    of_a, of_b = ([(kind, f"10.200.{n}.{k}") for kind in ("tcp", "udp") for n in (0, 1)] for k in (1, 3))
    for rank in (0, 1):
        in_a, in_b = scene.namespace(A, rank), scene.namespace(B, rank)
        assert (ask_all(in_a, *of_a), ask_all(in_b, *of_b)) == (["a0", "a1"] * 2, ["b0", "b1"] * 2)
        assert are_silent(in_a, *of_b) and are_silent(in_b, *of_a)


def test_job_network_is_isolated_from_node_addresses_in_both_directions(scene: Scene) -> None:
    for rank in (0, 1):
        scene.listen(scene.host(rank), f"host{rank}")
    scene.listen(scene.namespace(A, 1), "learner", SECOND, ALICE)
    learner, itself, *hosts = (
        [("tcp", address), ("udp", address)] for address in (SECOND, "127.0.0.1", *(node.name for node in scene.nodes))
    )
    assert ask_all(scene.namespace(A, 0), *learner) == ["learner"] * 2
    assert are_silent(scene.namespace(A, 0), *itself, *hosts[0], *hosts[1])
    assert are_silent(scene.namespace(A, 1), *hosts[0], *hosts[1])
    for rank, node in enumerate(scene.nodes):
        assert ask_all(scene.host(1 - rank), *hosts[rank]) == [f"host{rank}"] * 2
        assert ask_all(scene.host(rank), *itself) == [f"host{rank}"] * 2
        assert are_silent(scene.host(rank), *learner)
        # Not even root, with a route that leads there.
        node.run(["ip", "route", "add", "10.200.0.0/16", "dev", "eth0"])
        assert are_silent(scene.host(rank), *learner)
        node.run(["ip", "route", "del", "10.200.0.0/16"])


def test_job_network_isolates_abstract_unix_sockets(scene: Scene) -> None:
    scene.listen(scene.host(0), "host")
    scene.listen(scene.namespace(B, 0), "b", "10.200.0.3", BOB)
    assert ask(scene.host(0), "unix", "host") == "host"
    assert ask(scene.namespace(B, 0), "unix", "b") == "b"
    for tag in ("host", "b"):
        assert is_silent(scene.namespace(A, 0), "unix", tag)


NO_LEARNERS = ("10.200.7.1", "10.9.0.2", "8.8.8.8", "224.0.0.1", "fe80::1%eth0", "ff02::1%eth0")


def test_vxlan_network_sends_packets_only_to_known_learners(scene: Scene) -> None:
    """Broadcasts, ARP, unknown addresses and IPv6 make no packet on the cable; a question to a learner does."""
    scene.listen(scene.namespace(A, 1), "learner", SECOND, ALICE)
    inside = scene.namespace(A, 0)
    before = scene.nodes[0].sent()
    assert are_silent(inside, *(("broadcast", to) for to in ("255.255.255.255", "10.200.255.255", "10.200.1.255")))
    assert are_silent(inside, *(("udp", address) for address in NO_LEARNERS))
    for destination in (b"\xff" * 6, b"\x33\x33\0\0\0\1", bytes.fromhex("02ffffffff01")):
        send_frame(inside, destination + bytes.fromhex("020000000009") + b"\x08\x06" + b"\0" * 40)
    said = scene.nodes[0].sent() - before
    assert said <= 1  # 10.200.1.255 belongs to a node that is there, and is refused there
    assert ask(inside, "udp", SECOND) == "learner"
    assert scene.nodes[0].sent() > before + said
    assert run_in(inside, ["ip", "-6", "addr"]) == ""
    assert "default" not in run_in(inside, ["ip", "route"])


def test_vxlan_network_does_not_answer_arp_request(scene: Scene) -> None:
    """It comes to the other node, as any frame for it does, with a sender to whom an answer would find its way."""
    inside = scene.namespace(A, 0)
    neighbours = run_in(inside, ["ip", "neigh"])
    assert [(line.split()[0], line.split()[-1]) for line in neighbours.splitlines()] == [(SECOND, "PERMANENT")]
    own, peer = mac_after("link/ether", run_in(inside, ["ip", "link", "show", "eth0"])), mac_after("lladdr", neighbours)
    request = (
        struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + own + bytes([10, 200, 0, 1]) + b"\0" * 6 + bytes([10, 200, 1, 1])
    )
    before = [node.sent() for node in scene.nodes]
    send_frame(inside, peer + own + b"\x08\x06" + request + b"\0" * 18)
    deadline = time.monotonic() + 60
    while scene.nodes[0].sent() == before[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    assert [node.sent() for node in scene.nodes] == [before[0] + 1, before[1]]


def mac_after(word: str, text: str) -> bytes:
    """The MAC address that follows a word."""
    return bytes.fromhex(text.partition(f"{word} ")[2].split()[0].replace(":", ""))


def test_vxlan_network_drops_frames_forged_by_unprivileged_user(scene: Scene) -> None:
    """VXLAN believes anybody; the packet filter asks for a node's address and for a port that only root opens."""
    scene.listen(scene.namespace(A, 1), "learner", SECOND, ALICE)
    frame = forged_frame(scene.namespace(A, 0), A)
    target = scene.nodes[1].name
    assert send_udp(scene.host(0), target, frame, uid=BOB) == "sent"
    assert send_udp(scene.host(1), target, frame, uid=BOB) == "sent"
    assert send_udp(scene.host(1), "127.0.0.1", frame, uid=BOB) == "sent"
    assert "Permission" in send_udp(scene.host(0), target, frame, port=700, uid=BOB)
    assert send_udp(scene.host(1), "127.0.0.1", frame, port=700) == "sent"  # root, and yet no other node
    assert ask(scene.namespace(A, 0), "udp", SECOND) == "learner"
    assert send_udp(scene.host(0), target, frame, port=700) == "sent"
    assert ask(scene.namespace(A, 0), "udp", SECOND) == "learner"
    texts = [text for _, text, _ in heard(scene.listeners["learner"])]
    assert texts == ["who", "forged", "who"]


def test_vxlan_network_drops_foreign_frames_after_rules_flush_and_hooks_restore_rules(scene: Scene) -> None:
    """After `nft flush ruleset` the device itself still asks for the node that a MAC address belongs to."""
    node = scene.nodes[1]
    scene.listen(scene.namespace(A, 1), "learner", SECOND, ALICE)
    scene.nodes[0].run(["ip", "addr", "add", "10.9.0.99/24", "dev", "eth0"])
    node.run(["nft", "flush", "ruleset"])

    def forge(text: str, host: int = 0, source: str = "0.0.0.0", *, uid: int = 0, mac: bytes = b"") -> None:
        frame = forged_frame(scene.namespace(A, 0), A, text.encode(), mac)
        assert (
            send_udp(scene.host(host), node.name, frame, port=700 if uid == 0 else 0, uid=uid, source=source) == "sent"
        )

    try:
        forge("a stranger", source="10.9.0.99")
        forge("a user of the learner's own node", 1, uid=BOB)
        forge("no node of the job", mac=b"\x02\0\0\0\0\7")
        forge("a user of the peer's node", uid=BOB)  # what the packet filter is for
        assert node.run([str(node.libexec / "check")]).stdout.splitlines()[-2:] == [
            f"note  the packet filter of job {job} was gone; it is there again" for job in (A, B)
        ]
        forge("a user of the peer's node, with the filter", uid=BOB)
        forge("the peer")
        for again in ("boot", "prolog"):
            node.run(["nft", "flush", "ruleset"])
            if again == "boot":
                node.run([str(node.libexec / "boot")])
            else:
                assert node.prolog(B + 1, LIST, "ffdl-batch:job/1", BOB) == ""
            forge(f"a user, after {again}", uid=BOB)
        assert ask(scene.namespace(A, 0), "udp", SECOND) == "learner"
    finally:
        scene.nodes[0].run(["ip", "addr", "del", "10.9.0.99/24", "dev", "eth0"])
    texts = [text for _, text, _ in heard(scene.listeners["learner"])]
    assert texts == ["a user of the peer's node", "the peer", "who"]


def forged_frame(inside: str, job: int, text: bytes = b"forged", source: bytes = b"") -> bytes:
    """A VXLAN packet with a datagram to the learner on the second node that seems to come from the first."""
    datagram = struct.pack("!HHHH", 9, PORT, 8 + len(text), 0) + text
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), 1, 0, 64, 17, 0, b"\x0a\xc8\0\1", b"\x0a\xc8\1\1"
    )
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + header[12:]
    mac = mac_after("lladdr", run_in(inside, ["ip", "neigh"]))
    vni = job % (2**24 - 1) + 1
    source = source or mac_after("link/ether", run_in(inside, ["ip", "link", "show", "eth0"]))
    return struct.pack("!II", 0x08000000, vni << 8) + mac + source + b"\x08\x00" + header + datagram


_SEND = """
import socket, sys
payload, address, port, source = bytes.fromhex(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
own = sys.argv[5]
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    sender.bind((own, source))
    sender.sendto(payload, (address, port))
    print("sent")
except OSError as error:
    print(error)
"""
_FRAME = """
import socket, sys
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("eth0", 0))
sender.send(bytes.fromhex(sys.argv[1]))
"""


def send_udp(
    namespace: str, address: str, payload: bytes, *, port: int = 0, uid: int = 0, source: str = "0.0.0.0"
) -> str:
    argv = [*PYTHON, "-c", _SEND, payload.hex(), address, str(UDP_PORT), str(port), source]
    return run_in(namespace, argv, uid).strip()


def send_frame(namespace: str, frame: bytes) -> None:
    """As root: a learner has no raw sockets."""
    run_in(namespace, [*PYTHON, "-c", _FRAME, frame.hex()])
