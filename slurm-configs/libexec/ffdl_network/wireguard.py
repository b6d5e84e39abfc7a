"""Nodes of a job joined by WireGuard, as the input of wg, ip and nft. Pure.

Every key of every job follows from the site's secret, so a prolog needs nothing of other nodes. A device takes from a
node what has that node's key and the addresses of its learners, and sends it nothing else (WireGuard calls it cryptokey
routing). The device is made on the node, where its UDP socket stays, and is moved into the job's namespace.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Sequence

from . import layout
from .layout import DEVICE, Job, Underlay
from .settings import Settings

# IPv4 20, UDP 8, WireGuard's header 16, its tag 16 bytes; and 15 that a program which has not heard of the device's MTU
# may fill packets up with. The sum gives the MTU that WireGuard devices have elsewhere, too.
OVERHEAD_BYTES = 80
OUTSIDE = "ffdl-wg"
"""The beginning of the names of devices as long as they are on the node; the slot's number follows. A program's socket
keeps the name."""
_KEY, _FINGERPRINT = b"ffdl_batch wireguard private key", b"ffdl_batch network secret fingerprint"


def device(slot: int) -> str:
    """A slot's device on the node."""
    return f"{OUTSIDE}{slot}"


def port(job: Job, settings: Settings) -> int:
    """Return the port of the job on all its nodes. If two jobs with the same port meet on a node, one is refused."""
    first, last = settings.wireguard_ports
    return first + job.job_id % (last - first + 1)


def private_key(secret: bytes, job: Job, rank: int) -> str:
    """The key of a node, as wg writes it. Another list of nodes has other keys, and so has another order of it."""
    context = "\0".join((str(job.job_id), str(rank), *job.nodes)).encode()
    key = bytearray(hmac.new(secret, _KEY + b"\0" + context, hashlib.sha256).digest())
    # What X25519 does to every private key (RFC 7748, section 5).
    key[0] &= 248
    key[31] = key[31] & 127 | 64
    return base64.b64encode(key).decode()


def fingerprint(secret: bytes) -> str:
    """By what nodes are compared; it says nothing of the secret."""
    return hmac.new(secret, _FINGERPRINT, hashlib.sha256).hexdigest()[:16]


def configuration(job: Job, settings: Settings, underlay: Underlay, private: str, public: Sequence[str]) -> str:
    """Input of ``wg setconf``; `private` is the key of this node, `public` are those of all, by rank."""
    lines = ["[Interface]", f"PrivateKey = {private}", f"ListenPort = {port(job, settings)}"]
    for rank in job.peers:
        lines += ["[Peer]", f"PublicKey = {public[rank]}", f"AllowedIPs = {_network(settings, rank)}"]
        lines.append(f"Endpoint = {underlay.addresses[rank]}:{port(job, settings)}")
    return "\n".join(lines) + "\n"


def guard_rules(job: Job, settings: Settings, underlay: Underlay) -> str:
    """Input of nft: the job's port hears the job's nodes alone. What strangers send is refused for want of a key
    anyway; this keeps them from making the node work for it."""
    ours = f"udp dport {port(job, settings)}"
    rules = [f"meta nfproto ipv6 {ours} drop", f"{ours} udp sport != {port(job, settings)} drop"]
    return layout.guard_table(job, underlay, [*rules, f"{ours} ip saddr != @peers drop"])


def inner_rules(job: Job, settings: Settings, more_chains: str = "") -> str:
    """Input of nft in the job's namespace: packets with peers' addresses alone, as the device has it, too."""
    peers = layout.elements_of([_network(settings, rank) for rank in job.peers])
    rule = f'iifname "{DEVICE}" ip saddr != @peers drop'
    return layout.inner_table(f"type ipv4_addr\n        flags interval\n        {peers}", rule, more_chains)


def moving_lines(slot: int, underlay: Underlay, namespace: str) -> str:
    """Input of ``ip -batch`` on the node."""
    name, mtu = device(slot), underlay.inner_mtu(OVERHEAD_BYTES)
    return f"link set {name} mtu {mtu}\nlink set {name} netns {namespace} name {DEVICE}\n"


def address_lines(job: Job, settings: Settings) -> str:
    """Input of ``ip -batch``: own addresses, and one route for each other node."""
    lines = ["link set lo up", f"link set {DEVICE} up", *layout.own_address_lines(job, settings)]
    own = f"{settings.prefix}.{job.rank}.1"
    lines += [f"route replace {_network(settings, rank)} dev {DEVICE} src {own}" for rank in job.peers]
    return "\n".join(lines) + "\n"


def _network(settings: Settings, rank: int) -> str:
    return f"{settings.prefix}.{rank}.0/24"
