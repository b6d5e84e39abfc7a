"""The point that needs a claim: pods of their own move what the training's do not reach.

A daemon of its own does it, whose settings have the claim, and which believes that policies are enforced. One daemon at
a time is in a namespace: the other one rests meanwhile.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.proof.kubernetes.desk import Desk
from tests.proof.kubernetes.values import Failed, Impossible

CLAIM = "proof-work"
_MORE = f"""\
claim = "{CLAIM}"
network_policies = "enforced"
"""


def by_a_claim(desk: Desk) -> str:
    """At level `none` data come, and results go, by pods of their own."""
    options = desk.options
    if not options.claim_class:
        raise Impossible("no StorageClass was named: --claim-class NAME")
    if desk.server is None:
        raise Impossible(desk.why_no_store)
    desk.room.make_claim(CLAIM, options.claim_class)
    desk.kill()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ffdl-proof-claim-") as base,
            Desk(desk.room, options, Path(base), _MORE) as other,
        ):
            try:
                return _moved(other)
            finally:
                other.room.empty()  # while it runs: it alone lets its pods go
    finally:
        desk.start()


def _moved(desk: Desk) -> str:
    command = 'cat "$DATA_DIR/a"; echo 42 >"$RESULT_DIR/answer"'
    job_id = desk.submit(desk.manifest(command, more=", network: none", with_store=True))
    job = desk.await_state(job_id, "COMPLETED")
    said = [one["interruption"] for one in job["attempts"]]
    if said != ["staged", ""]:
        raise Failed(f"its attempts ended with {said}")
    if desk.log(job_id, attempt=2) != "from the store\n":
        raise Failed(f"its log is {desk.log(job_id, attempt=2)!r}")
    stored = desk.stored(f"out/{job_id}/answer")
    if stored != b"42\n":
        raise Failed(f"the result is {stored!r}")
    jobs = sorted(one.partition("/")[2] for one in desk.room.owned(job_id) if one.startswith("Job/"))
    if jobs != [f"{job_id}-1", f"{job_id}-2", f"{job_id}-2-store"]:
        raise Failed(f"its Jobs were {jobs}")
    return f"{job_id}: three Jobs; the training's pod had level none"
