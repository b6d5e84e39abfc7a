"""Fires shots. A shot is {"id", "kind", ...the arguments of the function of that kind}."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .node import command, device, environ, inside, kill, memory, mknod, ptrace, read
from .wire import Answer, arp, bind, neighbour, packet, ping, route, tcp, udp, udp6, unix, unsealed, vxlan

AT_ONCE = 24
KINDS: dict[str, Callable[..., Answer]] = {
    one.__name__: one
    for one in (
        tcp, unix, udp, udp6, ping, arp, packet, neighbour, route, vxlan, unsealed, bind,
        read, environ, device, mknod, ptrace, memory, kill, inside, command,
    )
}  # fmt: skip


def attempt(shot: dict[str, Any]) -> dict[str, Any]:
    """Fire one shot. What the system refuses is an answer, not an error."""
    try:
        through, said = KINDS[shot["kind"]](**shot)
    except (OSError, subprocess.SubprocessError) as error:
        through, said = False, str(error) or type(error).__name__
    return {"id": shot["id"], "through": through, "said": said}


def attempt_all(shots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fire them side by side: most of their time is waiting for what does not come."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(attempt, shots))
