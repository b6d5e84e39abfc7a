"""The table: every probe, by what it aims at. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tests.proof.isolation.outside import HARMLESS, PROBER, from_outside
from tests.proof.isolation.values import (
    ADDRESS,
    ATTACKER,
    BEHIND,
    FIRST,
    GATEWAY,
    HOST_PORT,
    IMAGE,
    LEARNER,
    LEARNER_2,
    NAMED,
    OTHER,
    OUTSIDE,
    OWNER,
    OWNER_STEP,
    PLAIN,
    ROOT,
    SAME_GROUP,
    SECOND,
    SOURCE,
    SPARE_PORT,
    SRUN,
    STEP,
    THIRD,
    VICTIM,
    VICTIM_3,
    Facts,
    Probe,
    Shot,
    Tunnel,
    learner_port,
)

SERVICES = (
    ("slurmctld", "ctl", 6817),
    ("slurmdbd", "ctl", 6819),
    ("sshd", "ctl", 22),
    *((f"slurmd of {node}", node, 6818) for node in (FIRST, SECOND, THIRD)),
)
BROADCASTS = ["255.255.255.255", "10.200.255.255", "10.77.0.255"]
SAME_USER = "processes of one user are not kept apart"
NOT_OF_THE_CONTAINER = "what does not run in the container is on the node's network"
UNWATCHED = "Slurm confines what it started; sites refuse or adopt logins on compute nodes (pam_slurm_adopt)"
GPU_MAJOR = 240
"""Of the test cluster's device files; no driver serves it."""
UNUSED = "192.0.2.77"
RIGHTS = ("unshare", "--user", "--map-root-user")
"""With all rights over a namespace of one's own one has none over a network that was there before."""
ENTERED = (*RIGHTS, "--net", "nsenter", "--net=/proc/self/ns/net", *PROBER)
"""A network that is one's own can be entered."""
BOUND_SOCKET = "a Unix socket in a directory that is bound in knows no networks"


def probes(facts: Facts) -> list[Probe]:
    """All probes of one round."""
    return [
        *_own_job(facts),
        *_learners(facts),
        *_hosts(facts),
        *_beyond(facts),
        *_one_wire(facts),
        *(_tunnel(facts, facts.tunnel) if facts.tunnel else ()),
        *(_egress(facts) if facts.level == "egress" else ()),
        *_sockets(facts),
        *_files(facts),
        *_processes(facts),
        *_devices(facts),
        *_slurm(facts),
    ]


def tcp(place: str, host: str, port: int, expect: str = "") -> Shot:
    """Connect."""
    return Shot(place, "tcp", {"host": host, "port": port, "expect": expect})


def udp(place: str, host: str, port: int, expect: str) -> Shot:
    """Send and hear."""
    return Shot(place, "udp", {"hosts": [host], "port": port, "expect": expect})


def _own_job(facts: Facts) -> Iterator[Probe]:
    """The learners of one job talk; one that is alone talks to itself."""
    for number, name in enumerate(facts.own_names, 1):
        label = f"{facts.own_label}-{number}"
        port = learner_port(ATTACKER, number)
        for shot in (tcp(LEARNER, name, port, label), udp(LEARNER, name, port, label)):
            yield Probe(f"own job: {shot.kind} to its learner {number}", shot, refuse=False)


def _learners(facts: Facts) -> Iterator[Probe]:
    """The other job's learners, on the same node and on the other, by addresses that none of the attacker's has. What
    is sent to the other node's goes over the wire, where the attacker's network has that node."""
    places = (LEARNER, LEARNER_2)[: len(facts.own_names)]
    for number, node, address, sibling in zip(
        BEHIND, (FIRST, SECOND), facts.addresses, (VICTIM_3, VICTIM), strict=True
    ):
        port, label = learner_port(OTHER, number), f"{facts.label}-{number}"
        for shot in (tcp(LEARNER, address, port, label), udp(LEARNER, address, port, label)):
            for place in places:
                name = f"learner on {node}: {shot.kind}" + (f" from {SECOND}" if place == LEARNER_2 else "")
                yield Probe(name, shot.at(place), facts.apart, shot.at(sibling))
            yield Probe(
                f"learner on {node}: {shot.kind} from a process on the node",
                shot.at(PLAIN),
                facts.other != "host",
                shot.at(sibling),
            )
    neighbour, port = f"{facts.label}-{BEHIND[0]}", learner_port(OTHER, BEHIND[0])
    # A WireGuard device knows no broadcast, so neighbours hear each other's by the loopback one alone.
    wired = facts.tunnel is not None and facts.tunnel.mechanism == "wireguard"
    hosts = [*BROADCASTS, "127.255.255.255"] if wired else BROADCASTS
    cast = Shot(LEARNER, "udp", {"hosts": hosts, "port": port, "expect": neighbour})
    yield Probe(f"learner on {FIRST}: udp broadcast", cast, facts.apart, cast.at(VICTIM))
    greeted = Shot(LEARNER, "unix", {"path": f"@{neighbour}-abstract", "expect": neighbour})
    yield Probe(f"learner on {FIRST}: abstract socket", greeted, facts.apart, greeted.at(VICTIM))


def _hosts(facts: Facts) -> Iterator[Probe]:
    """The nodes' own addresses, and what listens there."""
    for name, node, port in SERVICES:
        shot = tcp(LEARNER, ADDRESS[node], port)
        yield Probe(f"{name}: tcp", shot, facts.confined, shot.at(PLAIN))
    for node, address in ADDRESS.items():
        named = facts.level == "egress" and node == NAMED[0]
        for shot in (
            tcp(LEARNER, address, HOST_PORT, f"host-{node}"),
            udp(LEARNER, address, HOST_PORT, f"host-{node}"),
        ):
            yield Probe(
                f"address of {node}: {shot.kind}", shot, facts.confined and not named, shot.at(PLAIN),
                "it is named" if named else "",
            )  # fmt: skip
    for shot in (tcp(LEARNER, "127.0.0.1", HOST_PORT, f"host-{FIRST}"), tcp(LEARNER, "127.0.0.1", 6818)):
        yield Probe(f"loopback of {FIRST}: port {shot.args['port']}", shot, facts.confined, shot.at(PLAIN))
    greeted = Shot(LEARNER, "unix", {"path": f"@host-{FIRST}-abstract", "expect": f"host-{FIRST}"})
    yield Probe(f"abstract socket of a process on {FIRST}", greeted, facts.confined, greeted.at(PLAIN))
    yield Probe("batch script: slurmctld", tcp(STEP, ADDRESS["ctl"], 6817), refuse=False, note=NOT_OF_THE_CONTAINER)


def _beyond(facts: Facts) -> Iterator[Probe]:
    """The way out of the nodes' network."""
    for name, address in (("gateway", GATEWAY), ("an address beyond the gateway", OUTSIDE)):
        for shot in (tcp(LEARNER, address, HOST_PORT, "gateway"), udp(LEARNER, address, HOST_PORT, "gateway")):
            yield Probe(f"{name}: {shot.kind}", shot, facts.confined, shot.at(PLAIN))


def _one_wire(facts: Facts) -> Iterator[Probe]:
    """What needs no route: IPv6 of a link, broadcast, ARP, and what only root may write down."""
    link = tcp(LEARNER, facts.links[SECOND], HOST_PORT, f"host-{SECOND}")
    yield Probe(f"IPv6 link-local address of {SECOND}: tcp", link, facts.confined, link.at(PLAIN))
    for name, host in (("link-local address", facts.links[SECOND]), ("all-nodes multicast", "ff02::1")):
        shot = Shot(LEARNER, "udp6", {"host": host, "port": HOST_PORT, "expect": f"host-{SECOND}"})
        yield Probe(f"IPv6 {name}: udp", shot, facts.confined, shot.at(PLAIN))
    cast = Shot(LEARNER, "udp", {"hosts": BROADCASTS, "port": HOST_PORT, "expect": f"host-{SECOND}"})
    yield Probe("nodes: udp broadcast", cast, facts.confined, cast.at(PLAIN))
    if facts.confined:  # on the node it is for the site to say who may ping
        echo = Shot(LEARNER, "ping", {"hosts": [ADDRESS[SECOND], ADDRESS["ctl"], ADDRESS[NAMED[0]], GATEWAY]})
        yield Probe("ping of nodes and the gateway", echo, control=echo.at(ROOT))
    asked = Shot(LEARNER, "arp", {"targets": [*facts.addresses, ADDRESS[SECOND]]})
    yield Probe("ARP from a raw socket", asked, control=asked.at(ROOT))
    wrapped = Shot(LEARNER, "inside", {"argv": [*RIGHTS, *PROBER], "shot": asked.bare})
    own = wrapped.at(LEARNER, argv=[*RIGHTS, "--net", *PROBER], shot=Shot("", "packet").bare)
    yield Probe("ARP from a raw socket, as root of an own user namespace", wrapped, control=asked.at(ROOT), way=own)
    for kind in ("neighbour", "route"):
        shot = Shot(LEARNER, kind, {"target": UNUSED})
        yield Probe(f"static {kind}", shot, control=shot.at(ROOT))


def _tunnel(facts: Facts, tunnel: Tunnel) -> Iterator[Probe]:
    """Frames that are put into the other job's network from outside, and ways into its namespace."""
    port, neighbour = learner_port(OTHER, BEHIND[0]), f"{facts.label}-{BEHIND[0]}"
    yield from from_outside(facts, tunnel)
    listening = Shot("root@ctl", "bind", {"port": tunnel.port})  # where no network is up
    # Below 1024 it is nobody's but root's; one of WireGuard's is the job's as long as it runs.
    for node in (FIRST, "ctl") if tunnel.mechanism == "vxlan" else (FIRST,):
        taken = listening.at(f"{ATTACKER}@{node}")
        yield Probe(f"port of the jobs' networks, taken by a user of {node}", taken, control=listening)
    goal = tcp("", facts.addresses[0], port, neighbour)
    join = Shot(PLAIN, "inside", {"argv": apptainer("--netns-path", tunnel.namespace), "shot": goal.bare})
    plain = join.at(PLAIN, argv=apptainer(), shot=HARMLESS)
    for place, how in ((PLAIN, ""), (SAME_GROUP, ", same primary group"), (SRUN, " under srun")):
        yield Probe(f"slot: apptainer{how}", join.at(place), control=join.at(OWNER), way=plain.at(place))
    yield Probe("slot: apptainer, the same user", join.at(OWNER), refuse=False, note=SAME_USER)
    for name, path in (("slot", tunnel.namespace), ("/proc", f"/proc/{facts.pid}/ns/net")):
        argv = ["nsenter", f"--net={path}", *PROBER]
        enter = Shot(PLAIN, "inside", {"argv": argv, "shot": goal.bare})
        yield Probe(f"namespace by {name}: nsenter", enter, control=enter.at(ROOT))
        own = enter.at(LEARNER, argv=[*ENTERED], shot=HARMLESS)
        yield Probe(f"namespace by {name}: nsenter in a learner", enter.at(LEARNER), control=enter.at(ROOT), way=own)
        wrapped, own = enter.at(PLAIN, argv=[*RIGHTS, *argv]), own.at(PLAIN)
        yield Probe(f"namespace by {name}: as root of an own user namespace", wrapped, control=enter.at(ROOT), way=own)
    facts_of_it = Shot(PLAIN, "command", {"argv": ["touch", f"/run/ffdl/job-{facts.native}/network"]})
    for place in (PLAIN, OWNER):
        name = f"what root says of the other job's network, written by {place}"
        yield Probe(name, facts_of_it.at(place), control=facts_of_it.at(ROOT))
    for address in tunnel.more:
        end = tcp(LEARNER, address, port, neighbour)
        yield Probe("inner end of the other job's way out: tcp", end, control=end.at(VICTIM))
        yield Probe("inner end of the other job's way out: tcp from the node", end.at(PLAIN), control=end.at(VICTIM))
        datagram = udp(LEARNER, address, port, neighbour)
        yield Probe("inner end of the other job's way out: udp", datagram, control=datagram.at(VICTIM))
        yield Probe(
            "inner end of the other job's way out: udp from the node", datagram.at(PLAIN), control=datagram.at(VICTIM)
        )


def _egress(facts: Facts) -> Iterator[Probe]:
    """What is named, by its name; other ports there; the node's end of the way out."""
    node, port = NAMED
    for shot in (tcp(LEARNER, node, port, f"host-{node}"), udp(LEARNER, node, port, f"host-{node}")):
        yield Probe(f"{node} by name: {shot.kind}", shot, refuse=False, note="it is named")
    for shot in (
        tcp(LEARNER, ADDRESS[node], SPARE_PORT, f"host-{node}"),
        udp(LEARNER, ADDRESS[node], SPARE_PORT, f"host-{node}"),
        tcp(LEARNER, ADDRESS[node], 22),
    ):
        yield Probe(f"{node}, {shot.kind} to port {shot.args['port']}, not named", shot, control=shot.at(PLAIN))
    for address in facts.own_ends:
        for shot in (tcp(LEARNER, address, HOST_PORT, f"host-{FIRST}"), udp(LEARNER, address, HOST_PORT, "host-")):
            yield Probe(f"node's end of the own way out: {shot.kind}", shot, control=shot.at(PLAIN))


def _sockets(facts: Facts) -> Iterator[Probe]:
    """Unix sockets with a path."""
    munge = Shot(LEARNER, "unix", {"path": "/run/munge/munge.socket.2"})
    yield Probe("munge", munge, control=munge.at(PLAIN))
    bound = Shot(LEARNER, "unix", {"path": facts.bound, "expect": facts.bound.rpartition("/")[2]})
    yield Probe(f"socket of a process on {FIRST}, in a data store", bound, refuse=False, note=BOUND_SOCKET)
    for user, path in facts.sockets.items():
        daemon = Shot(LEARNER, "unix", {"path": path})
        yield Probe(f"daemon of {user}", daemon, control=daemon.at(f"{user}@ctl"))
    theirs = Shot(f"{ATTACKER}@ctl", "unix", {"path": facts.sockets[OTHER]})
    yield Probe(f"daemon of {OTHER}, from the login node", theirs, control=theirs.at(f"{OTHER}@ctl"))


def _files(facts: Facts) -> Iterator[Probe]:
    """The other learner's /tmp and /dev/shm, its job's directory, and the node's own /tmp and /dev/shm."""
    for name in ("/tmp", "/dev/shm"):
        own = Shot(LEARNER, "read", {"paths": [f"{name}/{facts.label}"], "expect": facts.secret})
        yield Probe(f"{name} of the other learner", own, control=own.at(VICTIM))
        outside = [f"/proc/{facts.pid}/root{name}/{facts.label}", *(facts.scratch if name == "/tmp" else ())]
        for place in (PLAIN, SAME_GROUP, SRUN):
            shot = Shot(place, "read", {"paths": outside, "expect": facts.secret})
            yield Probe(f"{name} of the other learner, {_who(place)}", shot, control=shot.at(OWNER))
        nodes = Shot(LEARNER, "read", {"paths": [f"{name}/host-{FIRST}"], "expect": facts.node_secret})
        yield Probe(f"{name} of the node", nodes, control=nodes.at(PLAIN))
    for place in (LEARNER, PLAIN, SAME_GROUP, SRUN):
        shot = Shot(place, "read", {"paths": [facts.secret_file], "expect": facts.secret})
        yield Probe(f"job's directory, {_who(place)}", shot, control=shot.at(OWNER))


def _processes(facts: Facts) -> Iterator[Probe]:
    """The other learner's processes."""
    secret = Shot("", "environ", {"expect": facts.secret})
    aimed = {"name": facts.target, "pid": facts.pid}
    shots = {"environment in /proc": secret} | {kind: Shot("", kind, aimed) for kind in ("ptrace", "memory", "kill")}
    for name, shot in shots.items():
        for place in (LEARNER, PLAIN, SAME_GROUP, SRUN):
            yield Probe(f"{name}, {_who(place)}", shot.at(place), control=shot.at(OWNER))
        yield Probe(f"{name}, the same user", shot.at(OWNER), refuse=False, note=SAME_USER)


def _devices(facts: Facts) -> Iterator[Probe]:
    """The other learner's GPUs."""
    for number, path in enumerate(facts.devices, 1):
        shot, name = Shot(LEARNER, "device", {"path": path}), f"device file of its GPU {number}"
        yield Probe(f"{name}, {_who(LEARNER)}", shot, control=shot.at(VICTIM))
        yield Probe(f"{name}, {_who(SRUN)}", shot.at(SRUN), control=shot.at(OWNER_STEP))
        yield Probe(f"{name}, {_who(PLAIN)}", shot.at(PLAIN), refuse=False, note=UNWATCHED)
        made = Shot(LEARNER, "mknod", {"path": f"/tmp/made-{number}", "number": [GPU_MAJOR, int(path[-1])]})
        yield Probe(f"{name}, made again", made, control=made.at(ROOT))


def _slurm(facts: Facts) -> Iterator[Probe]:
    """The other job by Slurm's own commands."""
    step = ["srun", "--overlap", f"--jobid={facts.native}", "-N1", "-n1", "-w", FIRST, "-Q", "true"]
    wake = ["scancel", "--signal=CONT", facts.native]
    for name, argv in (("step in the other job", step), ("signal to the other job", wake)):
        shot = Shot(f"{ATTACKER}@ctl", "command", {"argv": argv})
        yield Probe(f"Slurm: {name}", shot, control=shot.at(f"{OTHER}@ctl"))


def apptainer(*options: str) -> list[str]:
    """The prober in a container, started by hand."""
    argv = ["apptainer", "-q", "exec", "--containall", "--no-home", "--bind", f"{SOURCE}:/proof", "--pwd", "/proof"]
    return [*argv, *options, IMAGE, *PROBER]


def _who(place: str) -> str:
    return {
        LEARNER: "from a learner",
        PLAIN: "from a process on the node",
        SAME_GROUP: "the same primary group",
        SRUN: "under srun",
    }[place]
