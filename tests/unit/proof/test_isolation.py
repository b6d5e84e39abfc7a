"""The table and the judge of the proof of isolation can fail: each fault that they must find is put in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.proof.isolation.probes import probes
from tests.proof.isolation.values import (
    ATTACKER,
    HOST_PORT,
    LEARNER,
    LEARNER_2,
    OTHER,
    PLAIN,
    ROOT,
    SPARE_PORT,
    Facts,
    Hit,
    Probe,
    Shot,
    Tunnel,
    learner_port,
)
from tests.proof.isolation.verdict import Outcome, Round, holds, report

TUNNEL = Tunnel("/run/ffdl/1/net", 299, 600, 8, ("02:00:00:08:00:00", "02:00:00:08:00:01"))
JOB = Facts(
    level="job", other="job", label="bob-1", secret="secret", node_secret="another", native="7",
    addresses=("10.200.0.2", "10.200.1.2"), target="t-bob-1", pid=4242, scratch=("/tmp/ffdl/learner-1/tmp/bob-1",),
    secret_file="/home/bob/job/bob-1", devices=("/dev/nvidia2",), links={"n1": "fe80::1", "n2": "fe80::2"},
    sockets={"alice": "/home/alice/ffdl.sock", "bob": "/home/bob/ffdl.sock"}, own_label="alice-1",
    own_names=("learner-x-0", "learner-x-1"), bound="/mnt/data/reach/reach", tunnel=TUNNEL,
)  # fmt: skip
EGRESS_TUNNEL = replace(TUNNEL, more=("10.201.1.2",))
ROUNDS = {
    "none": replace(JOB, level="none", own_names=("127.0.0.1",)),
    "job": JOB,
    "egress": replace(JOB, level="egress", other="egress", tunnel=EGRESS_TUNNEL, own_ends=("10.201.2.1",)),
    "wireguard": replace(JOB, tunnel=Tunnel("/run/ffdl/1/net", 10007, 10007, public_key="key=")),
    "host": replace(JOB, level="host"),
    "host/host": replace(JOB, level="host", other="host", tunnel=None),
}
FORGED_FRAME = "VXLAN frame from root of a machine, with the address of the job's node"
ALWAYS_THROUGH = {
    "batch script: slurmctld",
    "slot: apptainer, the same user",
    FORGED_FRAME,
    "device file of its GPU 1, from a process on the node",
    "socket of a process on n1, in a data store",
    *(f"{name}, the same user" for name in ("environment in /proc", "ptrace", "memory", "kill")),
}
"""What no level refuses; the documentation says so."""
each_round = pytest.mark.parametrize("facts", ROUNDS.values(), ids=ROUNDS.keys())


def through(facts: Facts) -> set[str]:
    """What must be let through, but for the job's own learners."""
    return {one.name for one in probes(facts) if not one.refuse and not one.name.startswith("own job")}


@each_round
def test_isolation_probes_have_a_matching_control_for_every_refusal(facts: Facts) -> None:
    for one in probes(facts):
        assert one.control or not one.refuse, one.name
        if one.control and one.refuse:
            assert one.attempt.kind in (one.control.kind, "inside"), one.name
            assert one.control.place != one.attempt.place, one.name
            changed = {key for key in one.attempt.args if one.attempt.args[key] != one.control.args.get(key)}
            # What only root has: a port below 1024, and no need of a user namespace.
            assert changed <= ({"source_port"} if one.attempt.kind == "vxlan" else {"argv", "shot"}), one.name


@each_round
def test_isolation_probes_verify_the_starter_program_of_every_refusal(facts: Facts) -> None:
    """A program that starts the prober elsewhere, and is not there or may not run, refuses everything."""
    starters = {one.attempt.args["argv"][0] for one in probes(facts) if one.way}
    own = {"sh", "python3"} if facts.tunnel and facts.tunnel.mechanism == "wireguard" else set()
    assert starters == ({"unshare", "nsenter", "apptainer"} | own if facts.tunnel else {"unshare"})
    for one in probes(facts):
        if one.attempt.kind != "inside" or not one.refuse:
            continue
        as_the_control = one.control and one.attempt.args == one.control.args and one.attempt.place == PLAIN
        assert one.way or as_the_control, one.name
        if one.way:
            (tried, shown), names = (
                (list(shot.args["argv"]) for shot in (one.attempt, one.way)),
                {"nsenter", "apptainer"},
            )
            assert one.way.place == one.attempt.place, one.name
            assert names & {*tried} <= names & {*shown} and ("--user" not in tried or "--user" in shown), one.name


@each_round
def test_isolation_controls_do_not_target_their_own_learner(facts: Facts) -> None:
    names = ("learner on ", "inner end of")
    aimed = [one for one in probes(facts) if one.name.startswith(names) and one.control]
    assert {one.attempt.args["expect"] for one in aimed} == {"bob-1-2", "bob-1-4"}
    assert all(one.control and one.control.place[-1] in "13" for one in aimed)


@each_round
def test_isolation_probe_names_are_unique(facts: Facts) -> None:
    assert [name for name, count in Counter(one.name for one in probes(facts)).items() if count > 1] == []


@pytest.mark.parametrize("name", [name for name, facts in ROUNDS.items() if facts.level != "host"])
def test_isolation_probes_explain_every_allowed_access_below_level_host(name: str) -> None:
    unsaid = {one.name for one in probes(ROUNDS[name]) if not one.refuse and not one.note}
    assert all(name.startswith("own job") for name in unsaid)


@pytest.mark.parametrize("level", ["none", "job"])
def test_isolation_allows_only_network_of_own_job_at_levels_none_and_job(level: str) -> None:
    assert through(ROUNDS[level]) == ALWAYS_THROUGH


def test_isolation_rejects_forged_frames_without_wireguard_key() -> None:
    assert through(ROUNDS["wireguard"]) == ALWAYS_THROUGH - {FORGED_FRAME}
    outside = [one for one in probes(ROUNDS["wireguard"]) if one.name.startswith("WireGuard")]
    assert {one.attempt.place for one in outside} == {"root@n3", PLAIN}
    assert any("10.77.0.12" in str(one.attempt.args) for one in outside), "the address of the job's node"


def test_isolation_egress_allows_only_named_destinations() -> None:
    named = {f"{name}: {kind}" for name in ("address of login2", "login2 by name") for kind in ("tcp", "udp")}
    assert through(ROUNDS["egress"]) == ALWAYS_THROUGH | named
    goals = {one.attempt.args.get("host") for one in probes(ROUNDS["egress"])}
    assert {"10.201.1.2", "10.201.2.1"} <= goals, "both ends of ways out are tried"


def test_isolation_host_level_reaches_nodes_but_not_learners_at_level_job() -> None:
    loosest, open_to_all = through(ROUNDS["host"]), through(ROUNDS["host/host"])
    assert {"slurmctld: tcp", "address of n2: udp", "gateway: tcp", "IPv6 all-nodes multicast: udp"} <= loosest
    assert not any(name.startswith(("learner", "munge", "daemon", "/tmp")) for name in loosest)
    assert {"learner on n1: tcp", "learner on n2: udp", "learner on n1: udp broadcast"} <= open_to_all
    assert not any(name.startswith(("munge", "daemon", "/tmp", "ARP", "static")) for name in open_to_all)


def test_isolation_probes_try_other_learners_by_tcp_and_udp_from_both_nodes() -> None:
    for place in (LEARNER, LEARNER_2):
        tried = {(one.attempt.kind, str(one.attempt.args)) for one in probes(JOB) if one.attempt.place == place}
        for address in JOB.addresses:
            assert {kind for kind, text in tried if address in text and "bob-1-" in text} >= {"tcp", "udp"}
    assert not any(one.attempt.place == LEARNER_2 for one in probes(ROUNDS["none"])), "it has one learner"


def test_isolation_learner_ports_are_distinct() -> None:
    ports = [learner_port(user, number) for user in (ATTACKER, OTHER) for number in range(1, 5)]
    assert len({*ports, HOST_PORT, SPARE_PORT}) == 10


CLOSED = Probe("closed", Shot(LEARNER, "tcp"), control=Shot(ROOT, "tcp"))
OPEN = Probe("open", Shot(PLAIN, "tcp"), refuse=False, note="it may be")
CAME, NOT = Hit(True, said="connected"), Hit(False, said="timed out")
UNANSWERED = Hit(False, True, "nothing came back")
GOOD = (Outcome(CLOSED, NOT, (CAME, UNANSWERED)), Outcome(OPEN, CAME))


def judged(*outcomes: Outcome) -> Sequence[str]:
    """The troubles of one round."""
    return Round("job", "job", outcomes).troubles


def test_isolation_verdict_accepts_refusal_with_working_controls() -> None:
    assert judged(*GOOD) == []
    assert holds([Round("job", "job", GOOD)])
    lines = report([Round("job", "job", GOOD), Round("host", "job", GOOD[1:])]).splitlines()
    assert lines[0].split() == ["job/job", "host/job"]
    assert [line.split() for line in lines[1:3]] == [["closed", "refused", "-"], ["open", "through", "through"]]
    assert "let through, and may be: open: it may be" in lines
    assert Round("job", "job", GOOD, "wireguard").name == "job/job wireguard"
    assert lines[-1].endswith("attempts 3 refused 1 let through 2 controls failed 0 not as it must be 0")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(CLOSED, CAME, (CAME, CAME)), "closed: let through (learner 1): connected"),
        (
            Outcome(CLOSED, UNANSWERED, (CAME, CAME)),
            "closed: let through (learner 1): nothing came back; it came to a listener",
        ),
        (Outcome(OPEN, NOT), "open: refused (alice@n1): timed out"),
        (Outcome(OPEN, UNANSWERED), "open: refused (alice@n1): nothing came back; it came to a listener"),
        (Outcome(CLOSED, NOT, (NOT, CAME)), "closed: the control failed: timed out"),
        (Outcome(CLOSED, NOT, (CAME, NOT)), "closed: the control failed: timed out"),
        (Outcome(CLOSED, NOT), "closed: the control failed: it was not made"),
    ],
)
def test_isolation_verdict_detects_each_planted_fault(outcome: Outcome, said: str) -> None:
    assert judged(*GOOD, outcome) == [f"job/job: {said}"]
    found = Round("job", "job", (*GOOD, outcome))
    assert not holds([Round("none", "job", GOOD), found])
    assert report([found]).splitlines()[-1].endswith("not as it must be 1")


def test_isolation_verdict_rejects_refusal_if_its_way_is_not_open() -> None:
    through_it = replace(CLOSED, way=Shot(LEARNER, "inside"))
    assert judged(Outcome(through_it, NOT, (CAME, CAME, UNANSWERED, CAME))) == []
    for told in ((CAME, NOT, CAME, CAME), (CAME, CAME, CAME, NOT)):
        assert judged(Outcome(through_it, NOT, told)) == ["job/job: closed: the control failed: timed out"]
    assert judged(Outcome(through_it, NOT, (CAME, CAME))) == ["job/job: closed: the control failed: it was not made"]


def test_isolation_verdict_accepts_one_way_probe_without_answer() -> None:
    assert judged(Outcome(replace(OPEN, one_way=True), UNANSWERED)) == []


def test_isolation_verdict_rejects_empty_proof() -> None:
    assert not holds([])
    assert judged() == ["job/job: nothing was tried"]
