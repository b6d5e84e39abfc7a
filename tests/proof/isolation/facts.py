"""What the probes aim at, as root sees it on the nodes."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.rig import Cluster
from tests.proof.isolation.stage import BOUND, PROBER, Job, Stage, StageError
from tests.proof.isolation.values import ADDRESS, ATTACKER, FIRST, OTHER, SECOND, SOURCE, Facts, Tunnel

TUNNELLED = ("job", "egress")


def gather(stage: Stage, attacker: Job, other: Job, level: str = "") -> Facts:
    """All facts of one round. `level`: by which level the attacker is judged, if not by its own."""
    cluster, level = stage.cluster, level or attacker.level
    tunnel = tunnel_of(cluster, other) if other.level in TUNNELLED else None
    addresses = (ADDRESS[FIRST], ADDRESS[SECOND])
    if tunnel:
        prefix = prefix_of(cluster, other)
        addresses = (f"{prefix}.0.2", f"{prefix}.1.2")
    if attacker.level in TUNNELLED and not set(addresses).isdisjoint(_addresses(cluster, attacker)):
        raise StageError(f"the attacker's learners have an address of {addresses} themselves")
    number = cluster.run(FIRST, [*PROBER, "find", other.target], cwd=SOURCE)
    found = cluster.run(FIRST, ["find", "/tmp", "/dev/shm", "-name", other.label]).stdout.split()
    ready = json.loads((other.mailbox / "ready-1.json").read_text())
    if not json.loads(number.stdout) or not ready["devices"]:
        raise StageError(f"the other job has no process {other.target} or no GPU: {number.stdout} {ready}")
    names = ["127.0.0.1"] if attacker.learners == 1 else [f"learner-{attacker.job_id}-{i}" for i in (0, 1)]
    return Facts(
        level=level,
        other=other.level,
        label=other.label,
        secret=other.secret,
        node_secret=stage.secret,
        native=other.native,
        addresses=addresses,
        target=other.target,
        pid=json.loads(number.stdout)[0],
        scratch=tuple(found),
        secret_file=f"{other.job_dir}/checkpoints/{other.label}",
        devices=tuple(ready["devices"]),
        links={node: _link_address(cluster, node) for node in (FIRST, SECOND)},
        sockets={user: f"{stage.desks[user].base}/ffdl.sock" for user in (ATTACKER, OTHER)},
        own_label=attacker.label,
        own_names=tuple(names),
        bound=f"/mnt/data/{BOUND}/{BOUND}",
        tunnel=tunnel,
        own_ends=_node_ends(cluster, attacker) if attacker.level == "egress" else (),
    )


def namespace_of(cluster: Cluster, job: Job, node: str = FIRST) -> str:
    """The path of the job's namespace on a node."""
    return _facts_of(cluster, job, node)["netns"]


def prefix_of(cluster: Cluster, job: Job) -> str:
    """What all addresses of the job's network begin with, two numbers. The first node has rank 0, the second 1."""
    return _facts_of(cluster, job)["prefix"].rsplit(".", 2)[0]


def _facts_of(cluster: Cluster, job: Job, node: str = FIRST) -> dict[str, str]:
    text = cluster.run(node, ["cat", f"/run/ffdl/job-{job.native}/network"]).stdout
    return dict(line.split("=", 1) for line in text.splitlines())


def _addresses(cluster: Cluster, job: Job) -> set[str]:
    """Those of the job's network on both nodes."""
    devices = (_devices(cluster, node, namespace_of(cluster, job, node)) for node in (FIRST, SECOND))
    return {address["local"] for found in devices for one in found for address in one["addr_info"]}


def tunnel_of(cluster: Cluster, job: Job) -> Tunnel:
    """A job's network."""
    namespace = namespace_of(cluster, job)
    device, *others = _devices(cluster, FIRST, namespace)
    more = tuple(address["local"] for other in others for address in other["addr_info"])
    if _facts_of(cluster, job)["mechanism"].startswith("wireguard"):
        enter, name = place_of_wireguard(cluster, job)
        port, key = (
            cluster.run(FIRST, [*enter, "wg", "show", name, what]).stdout.strip()
            for what in ("listen-port", "public-key")
        )
        return Tunnel(namespace, int(port), int(port), public_key=key, more=more)
    peer, *_ = _devices(cluster, SECOND, namespace_of(cluster, job, SECOND))
    data, macs = device["linkinfo"]["info_data"], (device["address"], peer["address"])
    return Tunnel(namespace, data["port"], data["port_range"]["low"], data["id"], macs, more=more)


def place_of_wireguard(cluster: Cluster, job: Job) -> tuple[list[str], str]:
    """How to enter where wg knows the job's device on the first node, and its name there. A program is asked on the
    node by the name that the device had first, the kernel in the namespace."""
    slot = namespace_of(cluster, job).rpartition("/")[0]
    if cluster.run(FIRST, ["test", "-e", f"{slot}/wireguard"], check=False).returncode == 0:
        return [], f"ffdl-wg{slot.rpartition('/')[2]}"
    return ["nsenter", f"--net={slot}/net"], "eth0"


def _node_ends(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """The node's addresses on the links that go into the job's namespace: inside they are .2, outside .1."""
    return tuple(address.rpartition(".")[0] + ".1" for address in tunnel_of(cluster, job).more)


def _devices(cluster: Cluster, node: str, namespace: str) -> list[dict[str, Any]]:
    """The interfaces of a namespace but for the loopback one, the tunnel first."""
    listed = json.loads(cluster.run(node, ["nsenter", f"--net={namespace}", "ip", "-d", "-j", "address"]).stdout)
    wires = [one for one in listed if one["ifname"] != "lo"]
    return sorted(wires, key=lambda one: one["ifname"] != "eth0")


def _link_address(cluster: Cluster, node: str) -> str:
    listed = json.loads(cluster.run(node, ["ip", "-6", "-j", "address", "show", "dev", "eth0", "scope", "link"]).stdout)
    found = [address["local"] for one in listed for address in one.get("addr_info", ())]
    if not found:
        raise StageError(f"{node} has no IPv6 link-local address")
    return str(found[0])
