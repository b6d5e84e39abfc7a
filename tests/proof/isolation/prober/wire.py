"""Ways to somebody else over a network. Each says whether it came through, and what was said."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 1.5
"""How long an answer may take, where no shot says `patience_s`; refusals that say nothing take as long."""
# <linux/rtnetlink.h>: messages and flags.
_NEW_ROUTE, _NEW_NEIGHBOUR = 24, 28
_REQUEST_AND_ACK, _CREATE_OR_REPLACE = 0x1 | 0x4, 0x400 | 0x100
_TABLE_OF_NOBODY = 99
_ETH_ARP, _ETH_IPV4 = 0x0806, 0x0800
_ALL_NODES = "ff02::1"
Answer = tuple[bool, str]


def tcp(host: str, port: int, expect: str = "", patience_s: float = PATIENCE_S, **_: object) -> Answer:
    """Connect, and hear the listener say `expect`; to a link-local address through each interface."""
    if ":" not in host:
        return _stream(socket.AF_INET, (host, port), expect, patience_s)
    said = "there is no interface"
    for index, _name in socket.if_nameindex():
        try:
            through, said = _stream(socket.AF_INET6, (host, port, 0, index), expect, patience_s)
        except OSError as error:
            through, said = False, str(error)
        if through:
            return True, said
    return False, said


def unix(path: str, expect: str = "", patience_s: float = PATIENCE_S, **_: object) -> Answer:
    """Connect to a Unix socket; a leading @ is an abstract one's."""
    return _stream(socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path, expect, patience_s)


def _stream(family: int, address: Any, expect: str, patience_s: float) -> Answer:
    with socket.socket(family, socket.SOCK_STREAM) as asked:
        asked.settimeout(patience_s)
        asked.connect(address)
        if not expect:
            return True, "connected"
        said = asked.recv(200).decode(errors="replace")
        return expect in said, f"heard {said!r}"


def udp(
    id: str, hosts: Sequence[str], port: int, expect: str = "", patience_s: float = PATIENCE_S, **_: object
) -> Answer:
    """Send a datagram to each address, broadcast ones too, and hear `expect` from any."""
    return _datagrams(socket.AF_INET, [(host, port) for host in hosts], id, expect, patience_s)


def udp6(
    id: str, port: int, expect: str = "", host: str = _ALL_NODES, patience_s: float = PATIENCE_S, **_: object
) -> Answer:
    """The same to a link-local address, or to all nodes, through each interface."""
    addresses = [(host, port, 0, index) for index, _ in socket.if_nameindex()]
    return _datagrams(socket.AF_INET6, addresses, id, expect, patience_s)


def _datagrams(family: int, addresses: Sequence[Any], payload: str, expect: str, patience_s: float) -> Answer:
    said, deadline = "nothing came back", time.monotonic() + patience_s
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        while time.monotonic() < deadline:
            for address in addresses:
                try:
                    asked.sendto(payload.encode(), address)
                except OSError as error:
                    said = str(error)
            asked.settimeout(PATIENCE_S / 4)
            with contextlib.suppress(OSError):
                while True:
                    said = f"heard {asked.recv(200).decode(errors='replace')!r}"
                    if expect in said:
                        return True, said
    return False, said


def ping(hosts: Sequence[str], patience_s: float = PATIENCE_S, **_: object) -> Answer:
    """Send an ICMP echo to each, by the socket that users may have where the kernel's settings say so, or a raw one."""
    try:
        echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    except PermissionError:
        echo = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    said = "nobody answered"
    with echo:
        for host in hosts:
            deadline = time.monotonic() + patience_s / 4
            try:
                echo.sendto(struct.pack(">BBHHH", 8, 0, 0xF7FE, 0, 1), (host, 0))  # the checksum of just these
                while time.monotonic() < deadline:
                    echo.settimeout(patience_s / 4)
                    reply, peer = echo.recvfrom(100)
                    if peer[0] == host and reply[-8] == 0:
                        return True, f"{host} answered"
            except OSError as error:
                said = str(error)
    return False, said


def arp(targets: Sequence[str], patience_s: float = PATIENCE_S, **_: object) -> Answer:
    """Ask on the wire, from a raw socket, whose these addresses are; through each interface."""
    said = "nobody answered"
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_ARP)) as raw:
        raw.settimeout(patience_s / 4)
        for interface in _wires():
            raw.bind((interface, _ETH_ARP))
            for target in targets:
                own = raw.getsockname()[4]
                frame = b"\xff" * 6 + own + struct.pack(">HHHBBH", _ETH_ARP, 1, _ETH_IPV4, 6, 4, 1)
                raw.send(frame + own + bytes(4) + bytes(6) + socket.inet_aton(target))
                with contextlib.suppress(OSError):
                    while True:
                        reply = raw.recv(100)
                        if reply[20:22] == b"\0\2" and reply[28:32] == socket.inet_aton(target):
                            return True, f"{target} is at {reply[22:28].hex(':')}"
    return False, said


def packet(**_: object) -> Answer:
    """Open a raw socket."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_ARP)):
        return True, "a raw socket opens"


def neighbour(target: str, **_: object) -> Answer:
    """Write down a hardware address for `target` (a permanent neighbour), by netlink."""
    attributes = _attribute(1, socket.inet_aton(target)) + _attribute(2, b"\2\0\0\0\0\1")
    return _netlink(
        _NEW_NEIGHBOUR, lambda index: struct.pack("=BxxxiHBB", socket.AF_INET, index, 0x80, 0, 0), attributes
    )


def route(target: str, **_: object) -> Answer:
    """Make a route to `target` by netlink, in a table that no rule leads to."""
    header = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, _TABLE_OF_NOBODY, 4, 253, 1, 0)
    attributes = _attribute(1, socket.inet_aton(target))
    return _netlink(_NEW_ROUTE, lambda index: header + _attribute(4, struct.pack("=i", index)), attributes)


def _netlink(kind: int, header: Callable[[int], bytes], attributes: bytes) -> Answer:
    """Make something for each interface until the kernel takes it; then it is taken away again."""
    said = "there is no interface"
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(PATIENCE_S)
        for name in _wires():
            body = header(socket.if_nametoindex(name)) + attributes
            code = _asked(kernel, kind, _REQUEST_AND_ACK | _CREATE_OR_REPLACE, body)
            said = os.strerror(code) if code else "the kernel took it"
            if not code:
                _asked(kernel, kind + 1, _REQUEST_AND_ACK, body)
                return True, said
    return False, said


def _asked(kernel: socket.socket, kind: int, flags: int, body: bytes) -> int:
    kernel.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    return -int(struct.unpack("=i", kernel.recv(4096)[16:20])[0])


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def vxlan(id: str, host: str, port: int, vni: int, macs: Sequence[str], inner: Sequence[Any], **more: Any) -> Answer:
    """Send a frame into a network of jobs from outside. Whether it came there only the listener inside can say.

    `macs` are those of the frame's target and source. `inner` is source address, target address and port of the
    datagram in it. `source_port` 0: any. `forged`: the address that the outer packet pretends to come from.
    """
    source, target, inner_port = inner
    frame = b"".join(bytes.fromhex(mac.replace(":", "")) for mac in macs) + struct.pack(">H", _ETH_IPV4)
    packet = struct.pack(">II", 0x08000000, vni << 8) + frame + _ipv4(source, target, 40000, inner_port, id.encode())
    source_port, forged = int(more.get("source_port", 0)), str(more.get("forged", ""))
    kind, protocol = (socket.SOCK_RAW, socket.IPPROTO_RAW) if forged else (socket.SOCK_DGRAM, 0)
    with socket.socket(socket.AF_INET, kind, protocol) as out:
        if forged:
            out.sendto(_ipv4(forged, host, source_port, port, packet), (host, 0))
        else:
            out.bind(("", source_port))
            out.sendto(packet, (host, port))
    return False, "sent"


def unsealed(id: str, host: str, port: int, inner: Sequence[Any], forged: str, **_: object) -> Answer:
    """Send a WireGuard data packet whose content nobody has sealed. `inner` and `forged` are as those of `vxlan`."""
    source, target, inner_port = inner
    packet = struct.pack("<IIQ", 4, 1, 0) + _ipv4(source, target, 40000, inner_port, id.encode()) + bytes(16)
    kind, protocol = (socket.SOCK_RAW, socket.IPPROTO_RAW) if forged else (socket.SOCK_DGRAM, 0)
    with socket.socket(socket.AF_INET, kind, protocol) as out:
        if forged:
            out.sendto(_ipv4(forged, host, port, port, packet), (host, 0))
        else:
            out.sendto(packet, (host, port))
    return False, "sent"


def bind(port: int, **_: object) -> Answer:
    """Take a UDP port of the node by one of its own addresses, as nobody's socket for all addresses would get it."""
    address = socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            taken.setsockopt(socket.SOL_SOCKET, option, 1)
        taken.bind((address, port))
    return True, f"port {port} of {address} was taken"


def _ipv4(source: str, target: str, source_port: int, port: int, payload: bytes) -> bytes:
    """An IPv4 packet with a UDP datagram, whose checksum IPv4 lets be 0."""
    datagram = struct.pack(">HHHH", source_port, port, 8 + len(payload), 0) + payload
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0)
    header += socket.inet_aton(source) + socket.inet_aton(target)
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return header[:10] + struct.pack(">H", total) + header[12:] + datagram


def _wires() -> list[str]:
    """The interfaces that are up, but for the loopback one."""
    return [n for _, n in socket.if_nameindex() if int(Path(f"/sys/class/net/{n}/flags").read_text(), 16) & 9 == 1]
