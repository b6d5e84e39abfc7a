"""Submissions that get lost, land late, land twice, hang or answer nonsense: one execution each time."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.controller.head.head_controller import EXIT_CLAIMED_BY_ANOTHER
from ffdl_slurm.gateways import command_runner
from tests.crash.conftest import MakeWorld
from tests.crash.world import Findings, World, WorldOptions

ENDED = ("COMPLETED", "FAILED", "CANCELLED")


@pytest.mark.parametrize("fault", ["lose_reply", "garbage", "down"])
def test_submission_runs_once_after_sbatch_fault(world: World, fault: str) -> None:
    world.spoil("sbatch", fault)
    life = world.recover("--submit", "1")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.accepted()) == 1
    assert len(world.calls("sbatch")) == (1 if fault == "lose_reply" else 2)


def test_submission_runs_once_when_sbatch_hangs_after_acceptance(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(WorldOptions(timeout_s=1.5))
    world.spoil("sbatch", "hang")
    give_up = command_runner._await_end

    def give_up_accepted(process: subprocess.Popen[bytes], timeout_s: float, must_stop: Callable[[], bool]) -> None:
        world.wait(lambda: bool(world.accepted()), "an acceptance")  # however long this machine takes for it
        give_up(process, timeout_s, must_stop)

    monkeypatch.setattr(
        command_runner, "_await_end", give_up_accepted
    )  # in this process, which the driver is a fork of
    life = world.recover("--submit", "1")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.calls("sbatch")) == 1


def test_submission_runs_once_after_daemon_dies_during_sbatch(world: World) -> None:
    """sbatch outlives the daemon; the next one waits for it and reads what it was told."""
    began, dead = world.base / "began", world.base / "dead"
    world.wrap("sbatch", f'touch {began}; until [ -e {dead} ]; do sleep 0.05; done; sleep 1; exec "$FAKE" "$@"')
    life = world.live("--submit", "1")
    victim = world.begin("--deploy")
    world.wait(began.exists, "the start of sbatch")
    victim.kill()
    assert victim.wait() == -signal.SIGKILL
    dead.touch()
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert len(world.calls("sbatch")) == 1


def test_submission_waits_for_delayed_acceptance_without_second_sbatch(make_world: MakeWorld) -> None:
    world = make_world(WorldOptions(life_s=60))
    world.spoil("sbatch", "late")
    life = world.recover("--submit", "1")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert (len(world.calls("sbatch")), len(world.accepted())) == (1, 1)


def test_claim_prevents_execution_of_submission_after_credential_lifetime(make_world: MakeWorld) -> None:
    """The site said that nothing lands so late; the claim holds even where that is wrong."""
    world = make_world(WorldOptions(life_s=0.1, work_s=2))
    began = world.base / "began"
    late = world.base / "late.py"
    late.write_text(LATE)
    world.wrap(
        "sbatch",
        f'[ -e {began} ] && exec "$FAKE" "$@"; touch {began}; exec python3 {late} {world.base}/runs "$FAKE" "$@"',
    )
    life = world.recover("--submit", "1")
    world.wait(lambda: len(world.accepted()) == 2, "the late landing")
    world.wait(lambda: all(job["state"] in ENDED for job in world.accepted()), "the end")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()


def test_claim_prevents_second_execution_of_duplicated_submission(make_world: MakeWorld) -> None:
    world = make_world(WorldOptions(work_s=1))
    world.spoil("sbatch", "twice")
    life = world.recover("--submit", "1")
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    world.wait(lambda: all(job["state"] in ENDED for job in world.accepted()), "the end of both")
    (row,) = world.jobs()
    first, second = world.accepted()
    kept, other = (first, second) if row.native_id == first["id"] else (second, first)
    assert kept["state"] == "COMPLETED"
    # The claim turned the other away, or it was cancelled before it got that far.
    assert other["state"] == "CANCELLED" or other["exit"] == f"{EXIT_CLAIMED_BY_ANOTHER}:0"


def test_recovery_cancels_pending_duplicate_submission(world: World) -> None:
    world.spoil("sbatch", "twice")
    world.hold()
    life = world.die("--submit", "1", "--deploy", "--die-at", "submitted")
    assert world.live("--deploy").returncode == 0
    first, second = world.accepted()
    assert (first["state"], second["state"]) == ("PENDING", "CANCELLED")
    assert world.jobs()[0].native_id == first["id"]
    world.release()
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()


def test_daemon_adopts_duplicate_that_runs_instead_of_known_submission(world: World) -> None:
    """The copy that we know is kept waiting; the other one claims the attempt, and is followed to its end."""
    world.hold()
    life = world.live("--submit", "1", "--deploy")
    (known,) = world.accepted()
    (script,) = (world.state / "jobs").glob("*/attempt-1/script.sh")
    world.suspend_runner(known["id"])
    world.release()
    by_hand = world.command("sbatch", "--parsable", str(script)).strip()
    world.recover()
    assert world.examine(life.acknowledged) == Findings(), world.diagnosis()
    assert world.jobs()[0].native_id == by_hand
    assert {job["id"]: job["state"] for job in world.accepted()} == {known["id"]: "CANCELLED", by_hand: "COMPLETED"}


def test_examine_detects_two_executions_without_claim(make_world: MakeWorld, tmp_path: Path) -> None:
    """The counter-check: the nodes' interpreter is one that switches the claim off, and with it the guards that only
    work between copies on one machine."""
    python = tmp_path / "python-without-claim"
    python.write_text(WITHOUT_CLAIM)
    python.chmod(0o755)
    world = make_world(WorldOptions(work_s=1, python=str(python)))
    manifest = world.base / "manifest.yml"
    both = f"until [ $(wc -l < {world.base}/runs) -gt 1 ]; do sleep 0.05; done"  # else the second finds an end
    manifest.write_text(manifest.read_text().replace("sleep 1", both))
    world.spoil("sbatch", "twice")
    life = world.recover("--submit", "1")
    world.wait(lambda: len(world.runs()) > 0 and max(world.runs().values()) > 1, "the second execution")
    assert world.examine(life.acknowledged).doubled == life.acknowledged


# The request is under way for three seconds, longer than the second submission takes.
LATE = """\
import subprocess, sys
WAIT = 'for i in $(seq 1200); do [ -s "$0" ] && break; sleep 0.05; done; exec "$@"'
subprocess.Popen(["sh", "-c", WAIT, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 start_new_session=True)
sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
"""
WITHOUT_CLAIM = textwrap.dedent(f"""\
    #!{sys.executable}
    import sys
    at = next(n for n, word in enumerate(sys.argv) if word.endswith(".pyz"))
    sys.path.insert(0, sys.argv[at])
    from ffdl_batch.controller.head import claim
    from ffdl_batch.controller.learner import orphans
    claim.claim_attempt = lambda attempt, native_id: claim.Claim(1, {{}})
    orphans.living_controller = lambda events: 0
    orphans.end_learners = lambda *what: None
    from ffdl_batch.controller.attempt_commands import main
    sys.exit(main(sys.argv[at + 1:]))
    """)
