"""What Slurm's commands say when they refuse, know nothing, or reach nobody: status, output, complaint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from ffdl_slurm import commands
from ffdl_slurm.gateways.command_runner import CommandResult
from tests.cluster.rig import Cluster, Service
from tests.cluster.rig.rootfs import USERS
from tests.conformance.scenes import ASLEEP, Stage

UNKNOWN = "999999"
OTHER_LOGIN = "login2"
_CONF = "/etc/slurm/slurm.conf"
_SCRIPT = """\
#!/bin/sh
#SBATCH --output=/dev/null
#SBATCH --job-name=capture-refused
{options}exec sleep 1
"""
Answers = Mapping[str, CommandResult]


def refuse(stage: Stage) -> Answers:
    """Every question whose answer is not a listing. The stage's jobs are gone by then; ``ok`` was one of them."""
    good = _script(stage, "good")
    held, running = stage.submit("waits", ASLEEP, "--hold"), stage.submit("runs", ASLEEP)
    stage.until_word("RUNNING", "runs")
    answers: dict[str, CommandResult] = {
        name: stage.ask(argv) for name, argv in _questions(stage, held, running).items()
    }
    answers["submit"] = stage.ask(commands.sbatch_argv(good))
    answers["test-only"] = stage.ask(commands.test_only_argv(good))
    for name, options in _REFUSED.items():
        path = _script(stage, name, *options)
        answers[f"submit-{name}"] = stage.ask(commands.sbatch_argv(path))
        answers[f"test-only-{name}"] = stage.ask(commands.test_only_argv(path))
    with _site_rules(stage.cluster):
        for name in SITE_RULES:
            path = _script(stage, name, f"--comment={name}")
            answers[f"submit-{name}"] = stage.ask(commands.sbatch_argv(path))
            answers[f"test-only-{name}"] = stage.ask(commands.test_only_argv(path))
    with _without_munge(stage.cluster), ThreadPoolExecutor(max_workers=1) as beside:
        # It takes most of a minute to give up, whatever the controller does meanwhile.
        hopeless = beside.submit(stage.ask, commands.sbatch_argv(good), OTHER_LOGIN)
        answers |= _outages(stage, good, held, running)
        answers["submit-no-munge"] = hopeless.result()
    stage.person.run("scancel", f"--user={stage.person.name}")
    return answers


def _outages(stage: Stage, script: str, held: str, running: str) -> Answers:
    """The controller is away, then stands still; then the accounting is away."""
    questions = {
        "squeue": commands.squeue_argv(),
        "sinfo": commands.sinfo_argv(),
        "submit": commands.sbatch_argv(script),
        "test-only": commands.test_only_argv(script),
        "signal": commands.signal_argv("URG", running),
        "cancel": commands.cancel_argv(held),
        "withdraw": commands.withdraw_argv(held, atomically=False),
        "exclude": commands.exclude_argv(held, "n1"),
    }
    with _without(stage.cluster, Service.SLURMCTLD):
        away = _ask_all(stage, "away", questions)
    with _standing_still(stage.cluster, Service.SLURMCTLD):
        mute = _ask_all(stage, "mute", questions)
    with _without(stage.cluster, Service.SLURMDBD):
        sacct = stage.ask(commands.sacct_argv([running], USERS[stage.person.name]))
    return {**away, **mute, "sacct-away": sacct}


_REFUSED: Mapping[str, Sequence[str]] = {
    "partition": ["--partition=nowhere"],
    "account": ["--account=nobody"],
    "memory": ["--mem=1T"],
    "gres": ["--gres=gpu:h100:1"],
    "node": ["--nodelist=nowhere"],
    "option": ["--no-such-option"],
    "dependency": ["--dependency=afterok:nonsense"],
}


SITE_RULES: Mapping[str, str] = {
    "rule-message": 'slurm.user_msg("name a project\\nsee the manual") return slurm.ERROR',
    "rule-silent": "return slurm.ERROR",
    "rule-code": 'slurm.user_msg("no such project") return 2045',
}
"""What the site's job_submit.lua does with a job of that comment. 2045 is ESLURM_INVALID_ACCOUNT (slurm_errno.h)."""


def _questions(stage: Stage, held: str, running: str) -> dict[str, list[str]]:
    ended = stage.ids["ok"]
    found = {
        "squeue-list-with-unknown": ["squeue", "--states=all", f"--jobs={ended},{UNKNOWN}", "--format=%i"],
        "excluded-unknown": commands.excluded_argv(UNKNOWN),
        "exclude-unknown": commands.exclude_argv(UNKNOWN, "n1"),
        "exclude-ended": commands.exclude_argv(ended, "n1"),
        "exclude-running": commands.exclude_argv(running, "n1"),
        "exclude-unknown-node": commands.exclude_argv(held, "nowhere"),
        "sacct-unknown": commands.sacct_argv([UNKNOWN], USERS[stage.person.name]),
    }
    for name, job in {"unknown": UNKNOWN, "ended": ended, "waiting": held}.items():
        found[f"signal-{name}"] = commands.signal_argv("URG", job)
    for name, job in {"unknown": UNKNOWN, "ended": ended, "running": running}.items():
        found[f"withdraw-{name}"] = commands.withdraw_argv(job, atomically=True)
        found[f"withdraw-plainly-{name}"] = commands.withdraw_argv(job, atomically=False)
    for name, job in {"unknown": UNKNOWN, "ended": ended}.items():
        found[f"cancel-{name}"] = commands.cancel_argv(job)
    return found


def _script(stage: Stage, name: str, *options: str) -> str:
    text = _SCRIPT.format(options="".join(f"#SBATCH {option}\n" for option in options))
    return stage.person.write(f"~/capture/{name}.sh", text, executable=True)


def _ask_all(stage: Stage, when: str, questions: Mapping[str, Sequence[str]]) -> Answers:
    """All at once: each waits for its own time-out."""
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        answers = pool.map(stage.ask, questions.values())
        return {f"{name}-{when}": answer for name, answer in zip(questions, answers, strict=True)}


@contextmanager
def _without(cluster: Cluster, service: Service) -> Iterator[None]:
    stop, start = _SWITCHES[service]
    stop(cluster)
    try:
        yield
    finally:
        start(cluster)


_SWITCHES: Mapping[Service, tuple[Callable[[Cluster], None], Callable[[Cluster], None]]] = {
    Service.SLURMCTLD: (Cluster.stop_slurmctld, Cluster.start_slurmctld),
    Service.SLURMDBD: (Cluster.stop_slurmdbd, Cluster.start_slurmdbd),
}


@contextmanager
def _site_rules(cluster: Cluster) -> Iterator[None]:
    """The controller asks a job_submit.lua."""
    rules = "".join(f"if job.comment == '{name}' then {rule} end\n" for name, rule in SITE_RULES.items())
    lua = f"function slurm_job_submit(job, parts, uid)\n{rules}return slurm.SUCCESS\nend\n"
    lua += "function slurm_job_modify(job, record, parts, uid) return slurm.SUCCESS end\n"
    plain = cluster.run("ctl", ["cat", _CONF]).stdout
    write = 'printf %s "$0" >"$1"'
    cluster.run("ctl", ["sh", "-c", write, lua, f"{_CONF.rpartition('/')[0]}/job_submit.lua"])
    try:
        with _without(cluster, Service.SLURMCTLD):
            cluster.run("ctl", ["sh", "-c", write, f"{plain}\nJobSubmitPlugins=lua\n", _CONF])
        yield
    finally:
        with _without(cluster, Service.SLURMCTLD):
            cluster.run("ctl", ["sh", "-c", write, plain, _CONF])


@contextmanager
def _without_munge(cluster: Cluster) -> Iterator[None]:
    """The other login node has no munged; a new start gives it one."""
    cluster.run(OTHER_LOGIN, ["sh", "-c", "kill -KILL $(cat /run/munge/munged.pid)"])
    try:
        yield
    finally:
        cluster.power_off(OTHER_LOGIN)
        cluster.power_on(OTHER_LOGIN)


@contextmanager
def _standing_still(cluster: Cluster, service: Service) -> Iterator[None]:
    """The daemon's sockets take connections, and nobody answers."""
    pid = cluster.services("ctl").pid(service)
    assert pid is not None
    cluster.run("ctl", ["kill", "-STOP", str(pid)])
    try:
        yield
    finally:
        cluster.run("ctl", ["kill", "-CONT", str(pid)])
