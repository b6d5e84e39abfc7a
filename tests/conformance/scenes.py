"""Plain jobs in every situation that Slurm shows, and what its commands print of them, as the adapter asks.

No judgement here: :mod:`tests.captured.expected` says what the printed text must be read as.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ffdl_slurm import commands
from ffdl_slurm.gateways.command_runner import CommandResult, query_environment
from ffdl_slurm.observing.parsers import JobRecord, parse_sacct, parse_squeue
from tests.captured.expected import by_name, check_squeue, label
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import USERS

ASLEEP = "sleep 600"
FAULTY_NODE = "n2"
"""Goes down and fails to start a job, before anything else may run there."""
_LIMIT_S = 100.0
_HUNGRY = "python3 -c 'held = bytearray(400 << 20); print(len(held))'"
Jobs = Mapping[str, JobRecord]


class Stage:
    """One user's plain jobs on the cluster."""

    def __init__(self, cluster: Cluster, person: Person) -> None:
        self.cluster, self.person = cluster, person
        self.ids: dict[str, str] = {}

    def ask(self, argv: Sequence[str], node: str = "ctl") -> CommandResult:
        """Run a command as the adapter does."""
        done = self.person.run(*argv, node=node, env=query_environment({}), check=False)
        return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)

    def submit(self, name: str, command: str, *options: str) -> str:
        """A job of sbatch, known by its name from here on."""
        argv = ["sbatch", "--parsable", f"--job-name={label(name)}", "--output=/dev/null", *options]
        native = self.person.run(*argv, f"--wrap={command}").stdout.strip()
        self.ids[name] = native
        return native

    def text(self) -> str:
        """What squeue prints now."""
        return self.ask(commands.squeue_argv()).stdout

    def until(self, fits: Callable[[Jobs], bool], what: str) -> None:
        """Wait until the listing fits."""
        text = ""

        def holds() -> bool:
            nonlocal text
            text = self.text()
            return fits(by_name(parse_squeue(text)))

        wait_for(holds, lambda: f"{what}; squeue:\n{text}")

    def until_word(self, word: str, *names: str) -> None:
        """Wait until these jobs have that state."""
        wanted = [label(name) for name in names]
        self.until(
            lambda jobs: all(name in jobs and jobs[name].observation.native_state == word for name in wanted),
            f"{', '.join(names)} to be {word}",
        )


def wait_for(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Until it holds; AssertionError with `what` after a generous time."""
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {_LIMIT_S:g} s for {what()}"
        time.sleep(0.2)


def play(stage: Stage) -> dict[str, str]:
    """All scenes: what was printed, by the name of the file that keeps it. The jobs are gone afterwards."""
    stage.submit("timeout", ASLEEP, "--time=1", "--nodelist=n3")
    _lose_a_node(stage)
    _fail_to_launch(stage)
    _preempt(stage)
    return {
        "squeue.txt": _living(stage),
        "squeue-named.txt": stage.ask(commands.squeue_argv(label("held"))).stdout,
        "squeue-excluded.txt": stage.ask(commands.excluded_argv(stage.ids["excluding"])).stdout,
        "sinfo.txt": stage.ask(commands.sinfo_argv()).stdout,
        "version.txt": stage.ask(commands.version_argv()).stdout,
        **_ended(stage),
    }


def _lose_a_node(stage: Stage) -> None:
    stage.submit("node-fail", ASLEEP, "--no-requeue", f"--nodelist={FAULTY_NODE}")
    stage.until_word("RUNNING", "node-fail")
    stage.cluster.scontrol("update", f"NodeName={FAULTY_NODE}", "State=DOWN", "Reason=capture")
    stage.until_word("NODE_FAIL", "node-fail")
    _bring_back(stage.cluster)


def _fail_to_launch(stage: Stage) -> None:
    """A prolog that fails drains the node, and the job is requeued and held."""
    with _failing_prolog(stage.cluster):
        stage.submit("launch-failed", ASLEEP, f"--nodelist={FAULTY_NODE}")
        stage.until(
            lambda jobs: "held" in jobs[label("launch-failed")].observation.reason.lower(),
            "a launch to fail",
        )
    _bring_back(stage.cluster)


def _bring_back(cluster: Cluster) -> None:
    """Have the node take jobs again. It may have returned by itself (ReturnToService), which is then no error."""

    state = ""

    def serves() -> bool:
        nonlocal state
        state = cluster.run("ctl", ["sinfo", "-h", "-p", "main", "-n", FAULTY_NODE, "-o", "%t %E"]).stdout.strip()
        fine = state.startswith(("idle ", "mix "))
        if not fine:
            update = ["scontrol", "update", f"NodeName={FAULTY_NODE}", "State=RESUME"]
            cluster.run("ctl", update, check=False)
        return fine

    wait_for(serves, lambda: f"{FAULTY_NODE} to take jobs, it is {state}")


@contextmanager
def _failing_prolog(cluster: Cluster) -> Iterator[None]:
    path = cluster.state_dir / "etc" / "slurm" / "prolog.d" / "50-ffdl"
    text = path.read_text()
    path.write_text("#!/bin/sh\nexit 1\n")
    try:
        yield
    finally:
        path.write_text(text)


def _preempt(stage: Stage) -> None:
    stage.submit("preempted", ASLEEP, "--partition=spot", "--nodelist=n1", "--gres=gpu:4")
    stage.until_word("RUNNING", "preempted")
    stage.submit("preemptor", "true", "--partition=urgent", "--nodelist=n1", "--gres=gpu:4")


def _living(stage: Stage) -> str:
    """Every other scene, and one listing that shows all of them at the same time."""
    stage.submit("ok", "true")
    nine = stage.submit("nine", "exit 9")
    stage.submit("kill", "kill -KILL $$")
    stage.submit("memory", _HUNGRY, "--mem=64")
    running = [stage.submit(name, ASLEEP) for name in ("|running", "cancelled", "suspended", "requeued", "held-again")]
    stage.submit("array", ASLEEP, "--array=1-4%1")
    stage.submit("held", ASLEEP, "--hold")
    stage.submit("excluding", ASLEEP, "--hold", "--exclude=n1,n3")
    stage.submit("later", ASLEEP, "--begin=now+1hour")
    stage.submit("successor", ASLEEP, f"--dependency=afterany:{running[0]}")
    stage.until_word("RUNNING", "cancelled", "suspended", "requeued", "held-again")
    stage.until_word("FAILED", "nine")
    stage.submit("never", ASLEEP, f"--dependency=afterok:{nine}")
    stage.submit("wide", "true", "--nodes=3", "--exclusive")
    stage.person.run("scancel", stage.ids["cancelled"])
    stage.cluster.scontrol("suspend", stage.ids["suspended"])
    stage.cluster.scontrol("requeuehold", stage.ids["held-again"])
    stage.until_word("TIMEOUT", "timeout")
    stage.until_word("COMPLETED", "preemptor")
    stage.person.run("scontrol", "requeue", stage.ids["requeued"])
    text, wrong = "", dict[str, None]()

    def fits() -> bool:
        nonlocal text
        text = stage.text()
        try:
            check_squeue(text)
        except AssertionError as error:
            wrong[str(error)] = None
            return False
        return True

    wait_for(fits, lambda: "all scenes in one listing:\n{}\n{}".format("\n".join(wrong), text))
    return text


def _ended(stage: Stage) -> dict[str, str]:
    """The same jobs once all have ended, as the controller and the accounting tell of them."""
    stage.cluster.scontrol("resume", stage.ids["suspended"])
    stage.person.run("scancel", f"--user={stage.person.name}")
    ids, uid = sorted(stage.ids.values(), key=int), USERS[stage.person.name]
    stage.until(lambda jobs: all(job.observation.end for job in jobs.values()), "all jobs to end")
    sacct = commands.sacct_argv(ids, uid)

    def accounted() -> bool:
        records = parse_sacct(stage.ask(sacct).stdout)
        return {record.job for record in records} == set(ids) and all(r.observation.end for r in records)

    wait_for(accounted, lambda: f"the accounting to know all ends:\n{stage.ask(sacct).stdout}")
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 2 * 86400))
    named = commands.sacct_by_name_argv(label("nine"), day, uid)
    return {
        "squeue-ended.txt": stage.text(),
        "sacct.txt": stage.ask(sacct).stdout,
        "sacct-named.txt": stage.ask(named).stdout,
    }
