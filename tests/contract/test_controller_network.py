"""Controllers and the network that a prolog made: no learner without it, none elsewhere, and what was had is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.loopback_namespace import probe
from ffdl_batch.domain.launch.launch_file import HostVariables, Network, Seat, decode, encode
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.runtimes.learner_start import isolated_argv
from tests.contract.controller_rig import Rig, job_id, plain_run, two_nodes  # noqa: F401

NAMES = "learner-of-gang"
OWN = "/proc/self/ns/net"
"""Stands for the slot: the learners of this rig are on this machine's network."""
SEEN = 'until [ -e "$RESULT_DIR/seen" ]; do sleep 0.05; done'
OVER = """
if "node" in sys.orig_argv:
    import time
    from ffdl_batch.host.processes import read_process
    from ffdl_batch.controller.node.supervisor import Supervisor
    tell = Supervisor._record_start
    def tell_late(self, learner_id, learner):
        while read_process(learner.pid).state not in "ZX":
            time.sleep(0.01)
        tell(self, learner_id, learner)
    Supervisor._record_start = tell_late
"""


def own_network(run: Rig, command: str, level: str = "job") -> None:
    """Three learners on two nodes, in a network of the job's own. Each node knows the job under its rank: both are this
    machine, and read different files."""
    two_nodes(
        run, command, learners=3, names=NAMES, ports=12000, seats=(Seat(0), Seat(0, index=1), Seat(1, index=2)),
        network=Network("auto", level, "vxlan", str(run.base / "ffdl"), ("host",)),
        host=HostVariables(allocation="FFDL_NODE_RANK"), command=command,
    )  # fmt: skip
    launch = decode(Path(run.attempt.launch).read_text())
    env = {**launch.learner.env, "PLACE": "{name} {address} {master_addr} {port} {netns}", "HOSTS": "{hosts_file}"}
    launch = replace(launch, learner=replace(launch.learner, env=env))
    Path(run.attempt.launch).write_text(encode(launch))


def tell(run: Rig, rank: int, netns: str = OWN, *lines: str) -> None:
    """What a prolog writes."""
    directory = run.base / "ffdl" / f"job-{rank}"
    directory.mkdir(parents=True)
    facts = (f"job={rank}", f"netns={netns}", f"rank={rank}", "nodes=2", "learners=2", f"prefix=10.200.{rank}.")
    (directory / "network").write_text("".join(f"{line}\n" for line in (*facts, "mechanism=wires", *lines)))


def networks(run: Rig, source: str = "node-0") -> list[dict[str, object]]:
    return [dict(event.fields) for event in run.events(source) if event.kind is EventKind.NETWORK]


def test_learners_get_addresses_and_hosts_file_of_job_network(run: Rig) -> None:
    own_network(run, f'echo "$PLACE"; cat "$HOSTS"; {SEEN}', "egress")
    for rank in (0, 1):
        tell(run, rank, OWN, "level=egress", f"names=data.example.org=192.0.2.{rank}")
    run.start()
    run.wait(lambda: all(networks(run, f"node-{rank}") for rank in (0, 1)), "a look at learners of both nodes")
    Path(run.attempt.results, "seen").touch()
    assert run.await_end() == 0, run.errors
    logs = [run.log(number).splitlines() for number in (1, 2, 3)]
    addresses = ("10.200.0.1", "10.200.0.2", "10.200.1.1")
    assert [lines[0] for lines in logs] == [
        f"{NAMES}-{n} {address} 10.200.0.1 {port} {OWN}"
        for n, (address, port) in enumerate(zip(addresses, (12001, 12002, 12001), strict=True))
    ]
    for number, lines in enumerate(logs):
        assert lines[1] == "127.0.0.1 localhost"
        assert sorted(lines[3:6]) == [f"{a} {NAMES}-{n} {NAMES}-{n}.{NAMES}" for n, a in enumerate(addresses)]
        assert lines[6:] == [f"192.0.2.{number // 2} data.example.org"]  # of the machine's own hosts file nothing
    for source in ("node-0", "node-1"):
        assert networks(run, source) == [{"level": "egress", "mechanism": "wires", "seen": True}]


def test_attempt_fails_with_s107_before_learner_start_without_node_network(run: Rig) -> None:
    own_network(run, "echo begun")
    tell(run, 0)
    (run.base / "ffdl" / "job-1").mkdir(parents=True)
    (run.base / "ffdl" / "job-1" / "error").write_text("no network for this job: the kernel has no vxlan\n")
    assert run.run() != 0
    final = run.final()
    assert final.error_code == "S107" and "the kernel has no vxlan" in final.message, final
    assert not any(e.kind is EventKind.LEARNER_STARTED for rank in (0, 1) for e in run.events(f"node-{rank}"))
    assert networks(run) == networks(run, "node-1") == []


def test_attempt_fails_with_s107_when_nodes_have_different_network_prefixes(run: Rig) -> None:
    own_network(run, "echo begun")
    tell(run, 0)
    tell(run, 1)
    facts = run.base / "ffdl" / "job-1" / "network"
    facts.write_text(facts.read_text().replace("10.200.1.", "10.201.1."))
    assert run.run() != 0
    assert run.final().error_code == "S107" and "NETWORK_PREFIX" in run.final().message
    assert not any(e.kind is EventKind.LEARNER_STARTED for rank in (0, 1) for e in run.events(f"node-{rank}"))


def test_attempt_fails_with_s107_when_learner_is_outside_network_slot(run: Rig) -> None:
    """It has restarts left: they are not for this."""
    own_network(run, "echo begun; sleep 300")
    launch = decode(Path(run.attempt.launch).read_text())
    Path(run.attempt.launch).write_text(encode(replace(launch, restart="learner", restarts_max=3)))
    tell(run, 0)
    (run.base / "slot").touch()
    tell(run, 1, str(run.base / "slot"))
    assert run.run() != 0
    final = run.final()
    assert final.error_code == "S107", final
    assert f"learner 3 was ended: it is in the node's network, not in {run.base}/slot" in final.message
    assert networks(run, "node-1") == []


def test_attempt_fails_with_s107_when_level_none_learner_is_on_node_network(run: Rig) -> None:
    run.write("sleep 300", network=Network("none", "none", "nothing at all"))
    assert run.run() != 0
    assert run.final().error_code == "S107"
    assert "it is in the node's network, and level none means one of its own" in run.final().message


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("echo 'curl: (6) Could not resolve host: data.example.org'; exit 6", True),
        ("curl() { exit 6; }; curl -s https://data.example.org", True),
        ("echo 'data.example.org is nobody I know'; exit 6", False),
    ],
)
def test_message_of_failed_learner_without_network_names_its_level(run: Rig, command: str, hint: bool) -> None:
    own_network(run, command, "egress")
    for rank in (0, 1):
        tell(run, rank, OWN, "level=egress")
    assert run.run() == 6, run.errors
    message = run.final().message
    assert "ended with exit code 6" in message
    reason = (
        "at network level egress it can reach only the destinations in batch.network.allow; if it needs more, submit "
        "with --network host (batch.network)"
    )
    assert (reason in message) == hint, message


def test_network_event_confirms_isolation_of_learner(run: Rig) -> None:
    if probe():
        pytest.skip("this kernel lets users make no network namespaces")
    launch = run.write(SEEN)
    argv = isolated_argv((sys.executable, "-m", "ffdl_batch.controller"))
    env = {**launch.learner.env, "PYTHONPATH": str(Path(__file__).parents[2])}
    isolated = replace(launch.learner, argv=argv, env=env)
    run.write(SEEN, learner=isolated, network=Network("none", "none", "namespaces"))
    run.start()
    run.wait(lambda: bool(networks(run)), "a look at the learner")
    Path(run.attempt.results, "seen").touch()
    assert run.await_end() == 0, (run.errors, run.log())
    assert networks(run) == [{"level": "none", "mechanism": "namespaces", "seen": True}]


def test_network_event_is_unconfirmed_when_learner_ends_at_once(run: Rig) -> None:
    """The first look comes when the learner's events are written; this one is over by then."""
    run.have_controllers_do(OVER)
    run.write("true", learner=replace(run.write("true").learner, argv=("true",)))
    run.run()
    assert networks(run) == [{"level": "host", "mechanism": "none", "seen": False}]
