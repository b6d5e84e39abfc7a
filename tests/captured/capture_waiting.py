"""Keeps what Slurm prints of jobs that wait for every kind of reason, as ``tests/captured/waiting-<release>``.

Needs root and the cluster: ``FFDL_TEST_SUITE=bookworm .venv/bin/python -m tests.captured.capture_waiting``. What the
texts must be read as stands in tests/unit/slurm/test_captured.py.
"""

from __future__ import annotations

import time
from pathlib import Path

from ffdl_slurm.commands import test_only_argv
from ffdl_slurm.gateways.command_runner import query_environment
from ffdl_slurm.pending import commands
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.suites import SUITES

HERE = Path(__file__).parent
NODES_TAKEN_S = 8.0
"""So long until the scheduler has planned all of them."""
WAITING = {
    "next": ("--gres=gpu:v100:2", "--time=5"),
    "behind": ("--gres=gpu:v100:1", "--time=5", "--nice=100"),
    "held": ("--hold",),
    "later": ("--begin=now+1hour",),
    "away": ("--nodelist=n3", "--gres=gpu:a100:1"),
    "limited": ("--qos=high", "--gres=gpu:v100:2"),
    "array": ("--array=0-9%1", "--gres=gpu:v100:1"),
    "wide": ("--partition=main,short", "--time=1", "--gres=gpu:v100:1", "--nodes=2"),
    "long": ("--partition=short", "--time=100", "--gres=gpu:v100:1"),
}
"""Alice's jobs, beside `depends`, which waits for `next`. Bob has all V100s, and n3 is drained."""
TRIALS = {
    "same": ("--gres=gpu:v100:1", "--time=5"),
    "away": ("--gres=gpu:a100:1", "--time=5"),
    "urgent": ("--gres=gpu:v100:1", "--partition=urgent", "--time=5"),
}


def main() -> None:
    """Play the scene once, and keep the texts."""
    with Cluster.session() as cluster:
        directory = HERE / f"waiting-{SUITES[cluster.blueprint.suite].slurm}"
        directory.mkdir(exist_ok=True)
        for name, text in capture(cluster).items():
            (directory / name).write_text(text, encoding="utf-8")
        print(f"kept in {directory}")


def capture(cluster: Cluster) -> dict[str, str]:
    """What was printed, by the name of the file that keeps it."""
    alice, bob = Person(cluster, "alice"), Person(cluster, "bob")
    cluster.scontrol("update", "NodeName=n3", "State=DRAIN", "Reason=fan: two words")
    cluster.run("ctl", ["sacctmgr", "-i", "modify", "qos", "high", "set", "MaxTRESPerUser=gres/gpu=1"])
    reservation = ["ReservationName=maint", "StartTime=now+40minutes", "Duration=60", "Nodes=n3", "Users=root"]
    cluster.scontrol("create", "reservation", *reservation, "Flags=MAINT,IGNORE_JOBS")
    for node, minutes in (("n1", 10), ("n2", 20)):
        _submit(bob, f"taken-{node}", "--gres=gpu:v100:4", f"--nodelist={node}", f"--time={minutes}")
    time.sleep(NODES_TAKEN_S / 2)
    natives = {name: _submit(alice, name, *options) for name, options in WAITING.items()}
    _submit(alice, "depends", f"--dependency=afterok:{natives['next']}")
    time.sleep(NODES_TAKEN_S)
    texts = {
        "queue.txt": _ask(alice, commands.live_argv()),
        "nodes.txt": _ask(alice, commands.nodes_argv()),
        "partitions.txt": _ask(alice, commands.partitions_argv()),
        "reservations.txt": _ask(alice, commands.reservations_argv()),
        "limits.txt": _ask(alice, commands.limits_argv()),
        "factors.txt": _ask(alice, commands.factors_argv(sorted(natives.values()))),
    }
    for name, options in TRIALS.items():
        lines = "".join(f"#SBATCH {option}\n" for option in options)
        script = alice.write(f"~/trial-{name}.sh", f"#!/bin/sh\n{lines}true\n", executable=True)
        texts[f"trial-{name}.txt"] = alice.run(*test_only_argv(script), check=False).stderr
    return texts


def _submit(person: Person, name: str, *options: str) -> str:
    argv = ["sbatch", "--parsable", f"--job-name={name}", "--output=/dev/null", *options, "--wrap=sleep 900"]
    return person.run(*argv).stdout.strip()


def _ask(person: Person, argv: list[str]) -> str:
    return person.run(*argv, env=query_environment({}), check=False).stdout


if __name__ == "__main__":
    main()
