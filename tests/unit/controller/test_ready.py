"""Nodes that wait for each other: whose words count, when the wait ends, and which address a node says."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from ffdl_batch.attempt.phase_files import Ended, PhaseFailed
from ffdl_batch.controller.rendezvous.node_barrier import (
    NodeBarrier,
    NodeReport,
    NodeState,
    _sender_towards,
    node_state,
    own_address,
)
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar
from ffdl_batch.host.processes import boot_id
from tests.unit.controller.rig import launch_file

K = EventKind
LAUNCH = launch_file(learners=3, nodes=3, limits=Limits(heartbeat_s=10.0, fence_s=120.0))


def told(*kinds: tuple[EventKind, dict[str, Scalar]]) -> list[Event]:
    return [Event(n, float(n), "node-1", kind, fields) for n, (kind, fields) in enumerate(kinds, 1)]


def began(run: int, host: str = "n1") -> tuple[EventKind, dict[str, Scalar]]:
    return K.STARTED, {"host": host, "boot_id": "b", "run": run}


def ready(run: int, address: str = "10.0.0.2") -> tuple[EventKind, dict[str, Scalar]]:
    return K.READY, {"host": "n1", "address": address, "run": run}


MET: tuple[EventKind, dict[str, Scalar]] = (K.PHASE, {"phase": "learner", "status": "started"})
OVER: tuple[EventKind, dict[str, Scalar]] = (K.ENDED, {})


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], NodeState()),
        ([began(2)], NodeState("n1", "b")),
        ([began(2), ready(2)], NodeState("n1", "b", "10.0.0.2")),
        ([began(2), ready(2), OVER], NodeState("n1", "b", "10.0.0.2", has_ended=True)),
        ([began(2), OVER], NodeState("n1", "b", has_ended=True)),
        ([began(2), ready(2), MET, OVER], NodeState("n1", "b", "10.0.0.2")),
        ([began(1), ready(1), MET, OVER, began(2), OVER], NodeState("n1", "b", has_ended=True)),
        # what was said in an earlier run is void, whether or not the node has begun again
        ([began(1), ready(1)], NodeState()),
        ([began(1), ready(1), OVER], NodeState()),
        ([began(1), ready(1), OVER, began(2, "n9")], NodeState("n9", "b")),
        ([began(2), ready(2), began(2)], NodeState("n1", "b")),
        ([(K.STARTED, {"host": "n1", "boot_id": "b"}), OVER], NodeState()),
    ],
)
def test_standing_uses_only_events_of_current_run(
    events: list[tuple[EventKind, dict[str, Scalar]]], found: NodeState
) -> None:
    assert node_state(told(*events), 2) == found


class World:
    """What node 0 sees: at each rest a second passes and the next of `later` becomes true."""

    def __init__(self, *later: dict[int, NodeReport], step_s: float = 1.0) -> None:
        self.words: dict[int, NodeReport] = {}
        self._later, self._step_s = list(later), step_s
        self.at = 0.0
        self.asked: list[int] = []

    def read(self, rank: int) -> NodeReport:
        self.asked.append(rank)
        return self.words.get(rank, NodeReport([]))

    def rest(self) -> None:
        self.at += self._step_s
        if self._later:
            self.words.update(self._later.pop(0))
        elif self.at > 10_000:
            raise TimeoutError

    def gathering(self, node_rank: int = 0) -> NodeBarrier:
        return NodeBarrier(LAUNCH, node_rank, 1, self.read, self.rest, lambda: self.at)


def test_gathering_returns_addresses_when_last_node_is_ready() -> None:
    last = {1: NodeReport(told(began(1), ready(1, "b")))}
    world = World({1: NodeReport(told(began(1)))}, {2: NodeReport(told(began(1), ready(1, "c")))}, last)
    assert world.gathering().await_addresses("a") == ("a", "b", "c")
    assert world.at == 3.0
    assert world.asked == [1, 1, 1, 1, 2]  # a node that is not ready is the only one that is looked at


def test_await_neighbour_returns_first_other_node() -> None:
    for rank, other in ((0, 1), (1, 0), (2, 0)):
        world = World({other: NodeReport(told(began(1, f"n{other}")))})
        assert world.gathering(rank).await_neighbour().host == f"n{other}"


@pytest.mark.parametrize("events", [[began(1), OVER], [began(1), ready(1), OVER]])
def test_gathering_ends_if_node_ended_before_all_are_ready(events: list[tuple[EventKind, dict[str, Scalar]]]) -> None:
    """It was told to end; who waits for a third node would start learners that have nobody to talk to."""
    world = World({1: NodeReport(told(*events))})
    with pytest.raises(Ended, match=r"node 1 \(n1\) ended before all nodes were ready") as caught:
        world.gathering().await_addresses("a")
    assert caught.value.reason == "stop"


@pytest.mark.parametrize(
    ("word", "await_others", "message", "at"),
    [
        (
            NodeReport(told(began(1)), 5.0),
            lambda one: one.await_addresses("a"),
            r"\(n1\) gave no sign of life for 135 s",
            137.0,
        ),
        (NodeReport([]), NodeBarrier.await_neighbour, "has not begun 300 s after", 301.0),
    ],
)
def test_gathering_fails_if_node_never_starts_or_its_heartbeat_stops(
    word: NodeReport, await_others: Callable[[NodeBarrier], object], message: str, at: float
) -> None:
    """The job step goes on without it: nobody else would end the wait before the time limit."""
    world = World({1: word})
    with pytest.raises(PhaseFailed, match=f"node 1 {message}") as caught:
        await_others(world.gathering())
    assert (caught.value.code, world.at) == ("S106", at)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(lambda at: NodeReport(told(began(1)), at), id="its heart beats"),
        pytest.param(lambda at: NodeReport([]) if at < 290 else NodeReport(told(began(1)), at), id="it begins late"),
    ],
)
def test_gathering_waits_for_slow_node(words: Callable[[float], NodeReport]) -> None:
    world = World(*({1: words(float(at))} for at in range(1000)), {1: NodeReport(told(began(1), ready(1, "b")))},
                  {2: NodeReport(told(began(1), ready(1, "c")))})  # fmt: skip
    assert world.gathering().await_addresses("a") == ("a", "b", "c")


def test_gathering_accepts_node_that_finished_all_its_learners() -> None:
    """Its learners were done in an earlier run; it may end before the others look again."""
    through = NodeReport(told(began(1), ready(1, "b"), MET, OVER))
    world = World({1: through}, {2: NodeReport(told(began(1), ready(1, "c")))})
    assert world.gathering().await_addresses("a") == ("a", "b", "c")


# ------------------------------------------------------------------------------------------------------------ addresses


def names(monkeypatch: pytest.MonkeyPatch, sender: str, own: str) -> None:
    def refuse() -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(
        "ffdl_batch.controller.rendezvous.node_barrier._sender_towards", lambda _host: sender or refuse()
    )
    monkeypatch.setattr(socket, "gethostbyname", lambda _host: own or refuse())


@pytest.mark.parametrize(
    ("sender", "own", "address"),
    [("10.0.0.5", "10.9.9.9", "10.0.0.5"), ("127.0.0.1", "10.9.9.9", "10.9.9.9"), ("", "10.9.9.9", "10.9.9.9")],
)
def test_own_address_prefers_route_address_unless_loopback_or_missing(
    monkeypatch: pytest.MonkeyPatch, sender: str, own: str, address: str
) -> None:
    names(monkeypatch, sender, own)
    assert own_address(NodeState("n1", "b")) == address


@pytest.mark.parametrize(("sender", "own"), [("127.0.0.1", "127.0.1.1"), ("", "127.0.1.1"), ("", "")])
def test_own_address_is_loopback_only_for_neighbour_on_same_machine(
    monkeypatch: pytest.MonkeyPatch, sender: str, own: str
) -> None:
    names(monkeypatch, sender, own)
    here = os.uname().nodename
    assert own_address(NodeState(here, boot_id())) == "127.0.0.1"
    for elsewhere in (NodeState("n1", boot_id()), NodeState(here, "another boot")):
        with pytest.raises(PhaseFailed, match=rf"node {here} has no address .*the way to .*; the name {here}"):
            own_address(elsewhere)


def test_sender_address_towards_loopback_is_loopback() -> None:
    assert _sender_towards("127.0.0.2") == "127.0.0.1"
