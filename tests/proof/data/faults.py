"""The faults between the jobs and their store."""

from __future__ import annotations

from tests.fakes.fault_proxy import Rule
from tests.proof.data.values import EXPIRING, MAIN, SETS, SHARED

EXPIRY = "expired credentials"


def faults() -> list[tuple[str, Rule]]:
    """Kinds, and rules of the proxy; several of a kind count together."""
    many, out = f"/{SETS}/{MAIN}/many/", "/copy-"
    return [
        ("slow", Rule("GET", f"/{SETS}/{MAIN}/slow", pause_s=0.1)),
        ("slow", Rule("GET", f"/{SETS}/{SHARED}/deep/b", pause_s=0.02)),
        ("500 in", Rule("GET", f"{many}00000", times=4, status=500, code="InternalError")),
        ("503 in", Rule("GET", f"{many}00001", times=3, status=503, code="SlowDown")),
        ("truncated", Rule("GET", f"{many}00002", times=4, cut_at=7)),
        ("truncated", Rule("GET", f"/{SETS}/{MAIN}/sparse", times=1, cut_at=300_000)),
        ("reset in", Rule("GET", f"/{SETS}/{MAIN}/sparse", times=1, cut_at=500_000, reset=True)),
        ("reset in", Rule("GET", f"{many}00003", times=4, cut_at=3, reset=True)),
        (EXPIRY, Rule("GET", f"/{SETS}/{EXPIRING}/part-", after=5, status=403, code="ExpiredToken")),
        ("500 out", Rule("PUT", out, times=3, status=500, code="InternalError")),
        ("reset out", Rule("PUT", out, times=3, cut_at=0, reset=True)),
    ]
