"""The helper itself: finds the learners, hears what is wanted, does it."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, Dict, List, Sequence

from ffdl_batch.controller.attach.client_stream import Peer, PeerGone
from ffdl_batch.controller.attach.process_table import Glance
from ffdl_batch.controller.attach.session import NoSession, start
from ffdl_batch.controller.attach.session_relay import Running
from ffdl_batch.controller.learner.agents import Agent, find_agents
from ffdl_batch.controller.learner.stack_traces import dump
from ffdl_batch.domain.launch.attach_protocol import (
    BEGIN,
    LOOK,
    OUTPUT,
    PIECE_BYTES,
    READY,
    RUN,
    STACK,
    TABLE,
    TOP,
    FrameError,
)

PATIENCE_S = 5.0
"""How long a learner may take to be there: its job is in PROCESSING a moment before."""
EXIT_GONE, EXIT_REFUSED = 0, 69


def attach(job_id: str, attempt: int, learners: Sequence[int]) -> int:
    """Serve one command; the exit code of this helper."""
    peer = Peer()
    try:
        wanted = _await_wish(peer)
        agents = await_agents(job_id, attempt, learners)
        if not agents:
            peer.refuse(say_absent(job_id, attempt, learners))
            return EXIT_REFUSED
        peer.tell(READY, {"host": os.uname().nodename, "learners": sorted(agents)})
        return _serve(peer, wanted, [agents[number] for number in sorted(agents)])
    except NoSession as error:
        peer.refuse(str(error))
        return EXIT_REFUSED
    except (PeerGone, FrameError) as error:
        if str(error):
            sys.stderr.write(f"ffdl-controller: {error}\n")
        return EXIT_GONE


def _await_wish(peer: Peer) -> Dict[str, Any]:
    while True:
        frames = peer.frames()
        for at, (kind, payload) in enumerate(frames):
            if kind == BEGIN:
                peer.keep(frames[at + 1 :])
                found = json.loads(payload)
                return found if isinstance(found, dict) else {}


def say_absent(job_id: str, attempt: int, learners: Sequence[int]) -> str:
    """Why nothing is seen of learners."""
    named = ", ".join(map(str, learners))
    return (
        f"learner {named} of attempt {attempt} of {job_id} cannot be entered on {os.uname().nodename}: it has ended, "
        "what waits in it was killed, or an earlier release of this program started it"
    )


def await_agents(job_id: str, attempt: int, learners: Sequence[int]) -> Dict[int, Agent]:
    """Those that are there by then, by learner."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = find_agents(job_id, attempt, learners)
        if len(found) == len(set(learners)) or time.monotonic() > end:
            return found
        time.sleep(0.1)


def _serve(peer: Peer, wanted: Dict[str, Any], agents: List[Agent]) -> int:
    kind = wanted.get("do")
    if kind == TOP:
        return _glance(peer, agents)
    if kind == STACK:
        found = [dump(agent) for agent in agents]
        for text, _ in found:
            _print(peer, text)
        peer.end(0 if all(complete for _, complete in found) else 1)
        return 0
    if kind != RUN:
        peer.refuse(
            f"this release of ffdl-controller cannot do {kind!r}; ffdl daemon restart, if the daemon's is older"
        )
        return EXIT_REFUSED
    return _run(peer, wanted, agents[0])


def _run(peer: Peer, wanted: Dict[str, Any], agent: Agent) -> int:
    window = wanted.get("window")
    session = start(
        agent,
        [str(word) for word in wanted.get("argv", ())],
        {str(name): str(value) for name, value in wanted.get("env", {}).items()},
        (int(window[0]), int(window[1])) if window else None,
    )
    status = Running(session, peer, agent).run()
    if status is None:
        peer.refuse(f"learner {agent.learner} has ended, and with it what ran in it")
        return EXIT_REFUSED
    peer.end(status)
    return 0


def _glance(peer: Peer, agents: List[Agent]) -> int:
    """A table each time that one is asked for, while a learner runs. Raises PeerGone, FrameError."""
    looks = [Glance(agent) for agent in agents]
    while True:
        poll = select.poll()
        poll.register(peer.source, select.POLLIN)
        if (peer.has_frames or poll.poll(1000)) and any(kind == LOOK for kind, _ in peer.frames()):
            looks = [one for one in looks if not one.is_over]
            if not looks:
                peer.refuse(f"no learner of the job runs on {os.uname().nodename} any more")
                return EXIT_REFUSED
            learners = [one.look() for one in looks]
            peer.tell(TABLE, {"host": os.uname().nodename, "learners": learners})
        peer.check()


def _print(peer: Peer, text: str) -> None:
    data = text.encode("utf-8", "replace")
    for at in range(0, len(data), PIECE_BYTES):
        peer.say(OUTPUT, data[at : at + PIECE_BYTES])
