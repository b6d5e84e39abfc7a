"""Verbs about jobs on a host that has no ffdl: what its scheduler says of them, and what they left in files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.exit_handling import Stop, complain, detachable
from ffdl_batch.cli.host_without_ffdl.host import Outpost
from ffdl_batch.cli.render.formatting import format_time, print_json, print_line, print_table
from ffdl_batch.cli.render.log_lines import is_terminal, raw_option, terminal_line
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client.host_job_files import HostJobs

_HELP = {"help_option_names": ["-h", "--help"]}
_FORGOTTEN = "UNKNOWN"
_LOOK_S, _LOG_S = 10.0, 3.0
_MOST_UNKNOWN = 3
"""Looks in a row that tell nothing of a job, until waiting for it is given up."""
_KINDS = ("results", "checkpoints", "logs")


@click.command(context_settings=_HELP)
@click.option("-l", "--limit", type=click.IntRange(1), default=50, help="At most so many; 50.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_jobs(outpost: Outpost, limit: int, as_json: bool) -> None:
    """Jobs that were submitted from outside, newest first."""
    ids = outpost.jobs.ids()
    seen = outpost.scheduler.observe(ids[:limit]) if ids else {}
    rows = [(one, seen.get(one)) for job_id in ids[:limit] for one in _tasks_of(job_id, seen) or [job_id]]
    if len(ids) > limit:
        complain(f"there are {len(ids)} jobs; -l shows more of them")
    if as_json:
        print_json({"jobs": [{"id": one, "observation": found} for one, found in rows]})
        return
    print_table(
        ("ID", "NAME", "STATE", "SUBMITTED", "ENDED", "NODES(REASON)"),
        [_row(one, found) for one, found in rows],
    )


def _row(job_id: str, seen: Observation | None) -> list[str]:
    if seen is None:
        return [job_id, "", _FORGOTTEN, format_time(None), format_time(None), "(the scheduler has forgotten it)"]
    place = f"({seen.reason})" if seen.phase is Phase.PENDING and seen.reason else seen.nodes
    times = (format_time(seen.submitted_at), format_time(seen.ended_at))
    return [job_id, seen.name, seen.native_state, *times, place]


@click.command(context_settings=_HELP)
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per job.")
@click.pass_obj
def show(outpost: Outpost, job_ids: Sequence[str], as_json: bool) -> None:
    """What the scheduler says of jobs, and where they are."""
    directories = {job_id: outpost.jobs.directory_of(job_id) for job_id in job_ids}
    seen = _observe(outpost, job_ids)
    for job_id, directory in directories.items():
        names = _tasks_of(job_id, seen) or [job_id]
        runs = outpost.jobs.runs(job_id)
        if as_json:
            found = {name: seen.get(name) for name in names}
            print_json({"job": {"id": job_id, "directory": directory, "runs": runs, "observations": found}})
            continue
        for name in names:
            _print_job(name, seen.get(name))
        print_line("Directory", f"{outpost.host}:{directory}")
        for run in runs.values():
            print_line("Results", f"{run}/results")
            print_line("Logs", f"{run}/logs")


def _print_job(job_id: str, seen: Observation | None) -> None:
    print_line("ID", job_id)
    if seen is None:
        print_line("State", f"{_FORGOTTEN}: the scheduler has forgotten it, and no accounting tells of it")
        return
    print_line("Name", seen.name)
    print_line("State", seen.native_state)
    print_line("Reason", seen.reason)
    print_line("Nodes", seen.nodes)
    if seen.phase is Phase.ENDED:
        print_line("Exit code", str(_exit_code(seen)))
    for label, at in (("Submitted", seen.submitted_at), ("Started", seen.started_at), ("Ended", seen.ended_at)):
        print_line(label, format_time(at) if at is not None else "")


@click.command(context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--learner", type=click.IntRange(1), metavar="N", help="Of this learner.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="The last N lines of each learner.")
@raw_option
@click.pass_obj
def logs(outpost: Outpost, job_id: str, follow: bool, learner: int | None, tail: int | None, raw: bool) -> None:
    """The learners' output; of a job that has none, what its script printed."""
    if follow and tail is not None:
        raise click.UsageError("--follow and --tail exclude each other")
    outpost.jobs.directory_of(job_id)
    reader = _Reader(outpost.jobs, job_id, learner, tail, raw=raw)
    with detachable([job_id], f"ffdl --host {outpost.host} logs -f {job_id}"):
        while follow and not _is_over(outpost, job_id):
            reader.read(whole=False)
            time.sleep(_LOG_S)
        reader.read(whole=True)
    if reader.is_empty:
        for path in outpost.jobs.outputs(job_id):
            echo_styled(_text(_read_all(outpost.jobs, path), colours=raw), nl=False)


class _Reader:
    """The logs of a job's learners, each from where it was read to."""

    def __init__(self, jobs: HostJobs, job_id: str, learner: int | None, tail: int | None, *, raw: bool) -> None:
        self._jobs, self._job_id, self._learner, self._tail, self._raw = jobs, job_id, learner, tail, raw
        self._read_to: dict[str, int] = {}
        self.is_empty = True

    def read(self, *, whole: bool) -> None:
        """Print what is new; of a line that has no end yet, nothing, unless there is to be no more (`whole`)."""
        found = [(run, number, path) for run, directory in self._jobs.runs(self._job_id).items()
                 for number, path in self._jobs.logs(directory).items()
                 if self._learner in (None, number)]  # fmt: skip
        many_runs, many = len({run for run, _, _ in found}) > 1, len(found) > 1
        for run, number, path in found:
            data = _read_all(self._jobs, path, self._read_to.get(path, 0))
            if not whole:
                data = data[: data.rfind(b"\n") + 1]
            self._read_to[path] = self._read_to.get(path, 0) + len(data)
            lines = data.split(b"\n")[: -1 if data.endswith(b"\n") else None] if data else []
            self.is_empty = self.is_empty and not lines
            name = f"[{run}.{number}] " if many_runs else f"[{number}] " if many else ""
            for line in lines if self._tail is None else lines[len(lines) - min(self._tail, len(lines)) :]:
                echo_styled(f"{name}{_text(line, colours=self._raw)}")


def _read_all(jobs: HostJobs, path: str, offset: int = 0) -> bytes:
    found = bytearray()
    while data := jobs.read(path, offset + len(found)):
        found += data
    return bytes(found)


def _text(data: bytes, *, colours: bool) -> str:
    text = data.decode("utf-8", "replace")
    if not is_terminal():
        return text
    return "\n".join(terminal_line(line, colours=colours) for line in text.split("\n"))


@click.command(context_settings=_HELP)
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), metavar="SECONDS", help="Give up after so long.")
@click.pass_obj
def wait(outpost: Outpost, job_ids: Sequence[str], timeout_s: float | None) -> int:
    """Wait until jobs have ended; exits with the largest exit code, 124 after --timeout."""
    for job_id in job_ids:
        outpost.jobs.directory_of(job_id)
    return wait_for(outpost, job_ids, timeout_s, click.echo)


def wait_for(outpost: Outpost, job_ids: Sequence[str], timeout_s: float | None, say: Callable[[str], object]) -> int:
    """One question for all of them at a time; `say` hears how each ended."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause, unknown, code = 1.0, 0, 0
    left = list(job_ids)
    with detachable(job_ids, f"ffdl --host {outpost.host} wait {' '.join(job_ids)}"):
        while True:
            seen = _observe(outpost, left)
            for job_id in list(left):
                tasks = [seen[name] for name in _tasks_of(job_id, seen)]
                if tasks and all(one.phase is Phase.ENDED for one in tasks):
                    left.remove(job_id)
                    code = max(code, *map(_exit_code, tasks))
                    say(f"{job_id} {max(tasks, key=_exit_code).native_state}")
            if not left:
                return code
            unknown = 0 if any(_tasks_of(job_id, seen) for job_id in left) else unknown + 1
            if unknown >= _MOST_UNKNOWN:
                message = f"{outpost.host} knows nothing more of {' '.join(left)}, and keeps no accounts that would"
                raise Stop(ExitCode.TRY_AGAIN, message)
            if deadline is not None and time.monotonic() + pause > deadline:
                raise Stop(ExitCode.TIMEOUT, f"{' '.join(left)} had not ended after {timeout_s:g} s; jobs go on")
            time.sleep(pause)
            pause = min(pause * 2, _LOOK_S)


@click.command(context_settings=_HELP)
@click.argument("job_id", metavar="ID")
@click.option("--results", is_flag=True, help="What it wrote to $RESULT_DIR.  [default]")
@click.option("--logs", is_flag=True, help="Logs, a directory per learner.")
@click.option("--checkpoint", "checkpoints", is_flag=True, help="What is in $CHECKPOINT_DIR.")
@click.option("--out", metavar="DIR", help="Where the files go; ID/results and so on by default.")
@click.pass_obj
def download(outpost: Outpost, /, job_id: str, out: str | None, **named: bool) -> None:
    """What a job left, or has until now."""
    outpost.jobs.directory_of(job_id)
    kinds = [kind for kind in _KINDS if named[kind]] or ["results"]
    count = 0
    for run, directory in outpost.jobs.runs(job_id).items():
        for kind in kinds:
            base = Path(run if out is None else out)
            target = base / kind if run == job_id or out is None else base / run / kind
            try:
                count += outpost.jobs.fetch(f"{directory}/{kind}", target)
            except OSError as error:
                raise Stop(ExitCode.FAILED, f"{target}: {error.strerror or error}") from error
    complain(counted(count, "file") if count else f"{job_id} has left no {' or '.join(kinds)} there")


@click.command(context_settings=_HELP)
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.pass_obj
def cancel(outpost: Outpost, job_ids: Sequence[str]) -> None:
    """End jobs."""
    for job_id in job_ids:
        outpost.jobs.directory_of(job_id)
    outpost.scheduler.cancel(job_ids)
    for job_id in job_ids:
        click.echo(f"{job_id} cancel requested")


COMMANDS: Mapping[str, click.Command] = {
    "list": list_jobs,
    "show": show,
    "logs": logs,
    "wait": wait,
    "download": download,
    "cancel": cancel,
}


def _observe(outpost: Outpost, job_ids: Sequence[str]) -> Mapping[str, Observation]:
    return outpost.scheduler.observe({job_id.partition("_")[0] for job_id in job_ids})


def _tasks_of(job_id: str, seen: Mapping[str, Observation]) -> list[str]:
    """Under which ids the scheduler tells of a job, or of a whole array."""
    return [name for name in seen if name == job_id or name.partition("_")[0] == job_id]


def _is_over(outpost: Outpost, job_id: str) -> bool:
    """Also where nobody knows of it any more: nothing more comes."""
    seen = _observe(outpost, [job_id])
    return all(seen[name].phase is Phase.ENDED for name in _tasks_of(job_id, seen))


def _exit_code(seen: Observation) -> int:
    if seen.end is EndCause.SUCCESS:
        return 0
    return seen.exit_code or (128 + seen.exit_signal if seen.exit_signal else ExitCode.FAILED)
