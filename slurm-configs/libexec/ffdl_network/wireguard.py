"""Writes the input of wg, ip and nft that connects the nodes of a job by WireGuard. Pure.

The keys of all jobs are derived from the site's secret, so a prolog needs no data of other nodes. A device exchanges
only packets with the key of a node and the addresses of its learners (WireGuard calls this cryptokey routing). The
device is made on the node, where its UDP socket stays, and then moved into the job's namespace.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Sequence

from . import layout
from .layout import DEVICE, Job, Underlay
from .settings import Settings

# IPv4 20, UDP 8, WireGuard's header 16, its tag 16 bytes, and up to 15 bytes of padding by a program that does not know
# the device's MTU. The result is the usual MTU of WireGuard devices.
OVERHEAD_BYTES = 80
OUTSIDE = "ffdl-wg"
"""The beginning of the names of devices while they are on the node. The number of the slot follows. The socket of a
program keeps this name."""
_KEY, _FINGERPRINT = b"ffdl_batch wireguard private key", b"ffdl_batch network secret fingerprint"


def device(slot: int) -> str:
    """Return the name of a slot's device on the node."""
    return f"{OUTSIDE}{slot}"


def port(job: Job, settings: Settings) -> int:
    """Return the port of the job on all its nodes. If two jobs with the same port are on a node, one is refused."""
    first, last = settings.wireguard_ports
    return first + job.job_id % (last - first + 1)


def private_key(secret: bytes, job: Job, rank: int) -> str:
    """Return the private key of a node in the format of wg. Another list or order of nodes gives other keys."""
    context = "\0".join((str(job.job_id), str(rank), *job.nodes)).encode()
    key = bytearray(hmac.new(secret, _KEY + b"\0" + context, hashlib.sha256).digest())
    # X25519 does this to every private key (RFC 7748, section 5).
    key[0] &= 248
    key[31] = key[31] & 127 | 64
    return base64.b64encode(key).decode()


def fingerprint(secret: bytes) -> str:
    """Return the fingerprint by which nodes are compared. It does not reveal the secret."""
    return hmac.new(secret, _FINGERPRINT, hashlib.sha256).hexdigest()[:16]


def configuration(job: Job, settings: Settings, underlay: Underlay, private: str, public: Sequence[str]) -> str:
    """Return the input of ``wg setconf``. `private` is the key of this node, `public` has those of all nodes."""
    lines = ["[Interface]", f"PrivateKey = {private}", f"ListenPort = {port(job, settings)}"]
    for rank in job.peers:
        lines += ["[Peer]", f"PublicKey = {public[rank]}", f"AllowedIPs = {_network(settings, rank)}"]
        lines.append(f"Endpoint = {underlay.addresses[rank]}:{port(job, settings)}")
    return "\n".join(lines) + "\n"


def guard_rules(job: Job, settings: Settings, underlay: Underlay) -> str:
    """Return the input of nft that accepts packets on the job's port only from its nodes.

    WireGuard refuses other senders anyway, because they have no key. These rules save the node that work.
    """
    ours = f"udp dport {port(job, settings)}"
    rules = [f"meta nfproto ipv6 {ours} drop", f"{ours} udp sport != {port(job, settings)} drop"]
    return layout.guard_table(job, underlay, [*rules, f"{ours} ip saddr != @peers drop"])


def inner_rules(job: Job, settings: Settings, more_chains: str = "") -> str:
    """Return the input of nft in the job's namespace, which accepts only addresses of peers, as the device does."""
    peers = layout.elements_of([_network(settings, rank) for rank in job.peers])
    rule = f'iifname "{DEVICE}" ip saddr != @peers drop'
    return layout.inner_table(f"type ipv4_addr\n        flags interval\n        {peers}", rule, more_chains)


def moving_lines(slot: int, underlay: Underlay, namespace: str) -> str:
    """Return the input of ``ip -batch`` on the node, which moves the device into the namespace."""
    name, mtu = device(slot), underlay.inner_mtu(OVERHEAD_BYTES)
    return f"link set {name} mtu {mtu}\nlink set {name} netns {namespace} name {DEVICE}\n"


def address_lines(job: Job, settings: Settings) -> str:
    """Return the input of ``ip -batch``: own addresses, and one route for each other node."""
    lines = ["link set lo up", f"link set {DEVICE} up", *layout.own_address_lines(job, settings)]
    own = f"{settings.prefix}.{job.rank}.1"
    lines += [f"route replace {_network(settings, rank)} dev {DEVICE} src {own}" for rank in job.peers]
    return "\n".join(lines) + "\n"


def _network(settings: Settings, rank: int) -> str:
    return f"{settings.prefix}.{rank}.0/24"
