"""Slurm by its command line: every release since 20.11, nothing but the client commands needed. The default."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import TypeVar, cast

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import AccountingOutage
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import SchedulerMissing, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm import commands
from ffdl_slurm.gateways import error_mapping, submission_files
from ffdl_slurm.gateways.accounting_circuit import Accounting, IdRefused, check_ids
from ffdl_slurm.gateways.command_runner import (
    CommandResult,
    CommandStopped,
    CommandTimeout,
    ConfMissing,
    run_command,
    submit_environment,
)
from ffdl_slurm.gateways.gateway import RowsUnread, SiteShape
from ffdl_slurm.observing import parsers
from ffdl_slurm.observing.accounted_runs import RunRecord, UseRecord, parse_runs, parse_uses
from ffdl_slurm.observing.parsers import Garbled, JobRecord, OddRows
from ffdl_slurm.observing.shared_rows import split_by_user
from ffdl_slurm.observing.sinfo import parse_sinfo
from ffdl_slurm.output_text import LONG, SHORT, begin, clean, shorten

T = TypeVar("T")
log = logging.getLogger(__name__)
_MAX_LOGGED = 4000
_MAX_WHY = SHORT + 40
MAX_SHARED_BYTES = 256 * 1024**2
"""Largest listing of all users' jobs, about two million of them."""
MAX_COMPLAINT_BYTES = 64 * 1024
FIRST_RETRY_S = 1.0
"""sbatch sleeps that long before it submits a job again that was not accepted (main in src/sbatch/sbatch.c). If it was
killed within this time, it has sent nothing after the refusal. It would retry for two minutes, and no option changes
that."""


class CommandLineGateway:
    """Runs sbatch, squeue, sacct, scancel, scontrol and sinfo. Between two calls it keeps only the circuit breaker of
    the accounting, and the last logged messages."""

    def __init__(self, timeout_s: float, host: str = "") -> None:
        """`timeout_s`: how long one command may take; `host`: the submit host's name, for messages."""
        self._timeout_s = timeout_s
        self._host = host
        self._accounting = Accounting()
        self._logged: dict[str, str] = {}

    def submit(self, attempt: AttemptDir, umask: int) -> str:
        """See :class:`ffdl_slurm.gateways.gateway.SlurmGateway`."""
        argv = commands.sbatch_argv(attempt.script)
        with submission_files.hold_submission(attempt) as hold, submission_files.open_replies(attempt) as files:
            before = submission_files.begin_reply(files)
            environ = submit_environment(os.environ, umask)

            def retries() -> bool:
                has_more = os.fstat(files[1]).st_size > before[1]
                return has_more and error_mapping.retries_itself(submission_files.read_replies(attempt, before)[1])

            try:
                ended = run_command(argv, self._timeout_s, environ, files, hold=hold, must_stop=retries)
            except CommandTimeout as error:
                raise SubmissionUncertain(f"{error}; the job is looked for before it is submitted again") from error
            except CommandStopped as error:
                code = 1 if error.within_s < FIRST_RETRY_S else -signal.SIGKILL
                ended = CommandResult(tuple(argv), code, "", "")
            end = os.fstat(files[0]).st_size
            out, err = submission_files.read_replies(attempt, before)
            if ended.returncode > 0:
                submission_files.disown_reply(attempt, files, end)
        return error_mapping.read_submission(CommandResult(tuple(argv), ended.returncode, out, err), self._host)

    def test_only(self, attempt: AttemptDir, script: str) -> str:
        """See the port. Needs no attempt directory: the script goes to a file of its own."""
        del attempt
        with NamedTemporaryFile("w", prefix="ffdl-test-only-", suffix=".sh", encoding="utf-8") as file:
            file.write(script)
            file.flush()
            try:
                result = run_command(
                    commands.test_only_argv(file.name), self._timeout_s, submit_environment(os.environ)
                )
            except CommandTimeout as error:
                raise SchedulerUnreachable(str(error)) from error
        error_mapping.check_trial(result)
        return shorten(result.text, LONG).removeprefix("sbatch: ")

    def list_own_jobs(self) -> Sequence[JobRecord]:
        """See the port."""
        return self._ask(commands.squeue_argv(), parsers.parse_squeue)

    def list_named(self, *names: str) -> Sequence[JobRecord]:
        """See the port."""
        found: list[JobRecord] = []
        for chunk in commands.id_chunks(names):
            found += self._ask(commands.squeue_argv(*chunk), parsers.parse_squeue)
        return found

    def list_all_users(self) -> Mapping[int, Sequence[str]]:
        """See the port. The output goes to a file, which is read line by line."""
        argv = commands.shared_squeue_argv()
        with TemporaryFile("w+", encoding="utf-8", errors="replace", newline="\n") as out, TemporaryFile() as err:
            files = out.fileno(), err.fileno()

            def is_too_large() -> bool:
                return sum(os.fstat(descriptor).st_size for descriptor in files) > MAX_SHARED_BYTES

            try:
                ended = run_command(argv, self._timeout_s, files=files, must_stop=is_too_large)
            except CommandTimeout as error:
                raise SchedulerUnreachable(str(error)) from error
            except CommandStopped:
                ended = None
            if ended is None or is_too_large():
                raise SchedulerUnreachable(f"squeue printed more than {MAX_SHARED_BYTES >> 20} MiB")
            complaint = os.pread(files[1], MAX_COMPLAINT_BYTES, 0).decode("utf-8", "replace")
            error_mapping.check_answer(CommandResult(tuple(argv), ended.returncode, "", complaint))
            out.seek(0)
            try:
                return split_by_user(out)
            except Garbled as error:
                why = begin(str(error), _MAX_WHY)
                raise SchedulerUnreachable(f"the answer of squeue cannot be read: {why}") from error

    def account_for(self, ids: Collection[str]) -> Sequence[JobRecord] | None:
        """See the port."""
        argv_of: Callable[[Sequence[str]], list[str]] = lambda chunk: commands.sacct_argv(chunk, os.getuid())  # noqa: E731
        return self._account_for_all(ids, argv_of, parsers.parse_sacct)

    def account_for_runs(self, ids: Collection[str]) -> Sequence[RunRecord] | None:
        """See the port."""
        records = self._account_for_all(ids, commands.sacct_runs_argv, parse_runs)
        for record in records or ():
            if record.unread:
                self._log_once(f"the run of {record.native}", f"a row of the accounting is left out: {record.unread}")
        return records

    def _account_for_all(
        self, ids: Collection[str], argv_of: Callable[[Sequence[str]], list[str]], parse: Callable[[str], list[T]]
    ) -> list[T] | None:
        found: list[T] = []
        unread: list[RowsUnread] = []
        for chunk in commands.job_chunks(sorted(ids)):
            try:
                records = self._account_for(chunk, argv_of, parse)
            except RowsUnread as error:
                unread.append(error)
                found += cast("tuple[T, ...]", error.records)  # only lists of jobs raise it
                continue
            if records is None:
                return None
            found += records
        if unread:
            raise RowsUnread(str(unread[0]), cast("list[JobRecord]", found)) from unread[0]
        return found

    def _account_for(
        self, ids: Sequence[str], argv_of: Callable[[Sequence[str]], list[str]], parse: Callable[[str], list[T]]
    ) -> list[T] | None:
        """Return the records of `ids`, which fit into one command; None if the cluster keeps no accounts. If sacct
        refuses an id, ask for the others without it."""
        try:
            return self._ask_accounts(argv_of(ids), parse)
        except IdRefused as error:
            if len(ids) == 1:
                self._log_once(f"sacct about {ids[0]}", f"job {ids[0]} is unknown to the accounting: {error}")
                return []
        half = len(ids) // 2
        first, second = (self._account_for(part, argv_of, parse) for part in (ids[:half], ids[half:]))
        return None if first is None or second is None else [*first, *second]

    def account_for_names(self, names: Sequence[str], since: str) -> Sequence[JobRecord] | None:
        """See the port."""
        found: list[JobRecord] = []
        for chunk in commands.id_chunks(names):
            argv = commands.sacct_by_name_argv(",".join(chunk), since, os.getuid())
            records = self._ask_accounts(argv, parsers.parse_sacct)
            if records is None:
                return None
            found += records
        return found

    def account_for_all_users(self, since: float, until: float) -> Sequence[UseRecord] | None:
        """See the port."""
        return self._ask_accounts(commands.sacct_uses_argv(since, until), parse_uses)

    def accounting_outage(self) -> AccountingOutage | None:
        """See the port."""
        return self._accounting.outage()

    def signal(self, signal: str, *jobs: str) -> None:
        """See the port."""
        for chunk in commands.job_chunks(jobs):
            result = self._run(commands.signal_argv(signal, *chunk))
            error_mapping.check_requests(result, f"the signal {signal} for {_words(jobs)}")

    def cancel(self, *jobs: str) -> None:
        """See the port."""
        for chunk in commands.job_chunks(jobs):
            error_mapping.check_requests(self._run(commands.cancel_argv(*chunk)), f"the cancellation of {_words(jobs)}")

    def withdraw(self, *jobs: str) -> None:
        """See the port."""
        for chunk in commands.job_chunks(jobs):
            result = self._run(commands.withdraw_argv(*chunk, atomically=True))
            if error_mapping.is_misunderstood(result):  # --ctld is newer than 22.05
                result = self._run(commands.withdraw_argv(*chunk, atomically=False))
            error_mapping.check_requests(result, f"the withdrawal of {_words(jobs)}")

    def exclude(self, job: str, nodes: Collection[str]) -> None:
        """See the port."""
        if not commands.is_job_id(job):
            return
        result = self._run(commands.excluded_argv(job))
        if error_mapping.is_gone(result):
            return
        error_mapping.check_answer(result)
        excluded = _parse(result, parsers.parse_excluded)
        if excluded is None:
            return
        # Slurm takes node lists of overlapping expressions; a name that is there already need not be found.
        wanted = ",".join([*([excluded] if excluded else []), *sorted(nodes)])
        error_mapping.check_request(
            self._run(commands.exclude_argv(job, wanted)), f"the exclusion of nodes of job {job}"
        )

    def exclude_only(self, job: str, nodes: str) -> None:
        """See the port."""
        if not commands.is_job_id(job):
            return
        result = self._run(commands.exclude_argv(job, nodes))
        if not error_mapping.is_gone(result):
            error_mapping.check_request(result, f"the exclusion of nodes of job {job}")

    def shrink(self, job: str, nodes: Sequence[str]) -> None:
        """See the port. In the environment of a job, scontrol would write scripts to its working directory."""
        error_mapping.check_request(self._run(commands.shrink_argv(job, nodes)), f"the release of nodes of job {job}")

    def describe_site(self) -> SiteShape:
        """See the port."""
        nodes, partitions, odd = self._ask(commands.sinfo_argv(), parse_sinfo)
        lacks = [f"{counted(len(odd), 'row')} of sinfo's cannot be read and is ignored: {odd[0][1]}"] if odd else []
        version = parsers.parse_version(self._run(commands.version_argv()).stdout)
        try:
            config = self._ask(commands.config_argv(), parsers.parse_config)
        except SchedulerUnreachable as error:  # sinfo has answered, so the site may hide its configuration from users
            config = parsers.SiteConfig(parsers.DEFAULT_MAX_ARRAY_SIZE, None, None)
            lacks.append(f"slurm.conf cannot be read, so a MaxArraySize of {config.max_array_size} is assumed: {error}")
        return SiteShape(nodes, partitions, version, config, tuple(lacks))

    def query(self, argv: list[str], parse: Callable[[str], T]) -> T:
        """See the port."""
        return self._ask(argv, parse)

    def close(self) -> None:
        """See the port. There is nothing to close."""

    def _ask(self, argv: list[str], parse: Callable[[str], T]) -> T:
        result = self._run(argv)
        with self._kept(result):
            error_mapping.check_answer(result)
            return _parse(result, parse)

    @contextmanager
    def _kept(self, result: CommandResult) -> Iterator[None]:
        """Log the whole output of a query that failed, once, if the message of the error has only a part of it."""
        try:
            yield
        except RowsUnread as error:
            self._log_once(f"rows of {result.argv[0]}", f"left out: {error}")
            raise
        except SchedulerUnreachable:
            whole, command = result.text[:_MAX_LOGGED], result.argv[0]
            if len(clean(whole)) > SHORT:
                self._log_once(command, f"{command} exited with status {result.returncode}, and printed: {whole!r}")
            raise

    def _log_once(self, about: str, text: str) -> None:
        """Log a text, unless the last one about the same subject was equal."""
        if self._logged.get(about) != text:
            self._logged[about] = text
            log.info("%s", text)

    def _ask_accounts(self, argv: list[str], parse: Callable[[str], list[T]]) -> list[T] | None:
        with self._accounting.asking():
            try:
                result = self._run(argv)
            except ConfMissing:
                raise
            except SchedulerMissing:  # a cluster without accounting may come without sacct
                return None
            if error_mapping.keeps_no_accounts(result):
                return None
            check_ids(result)
            with self._kept(result):
                error_mapping.check_accounts(result)
                try:
                    return _parse(result, parse)
                except RowsUnread as error:  # the accounting has answered
                    unread = error
        raise unread

    def _run(self, argv: list[str]) -> CommandResult:
        try:
            return run_command(argv, self._timeout_s)
        except CommandTimeout as error:
            raise SchedulerUnreachable(str(error)) from error


def _words(jobs: Sequence[str]) -> str:
    return f"job {jobs[0]}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")


def _parse(result: CommandResult, parse: Callable[[str], T]) -> T:
    try:
        return parse(result.stdout)
    except OddRows as error:
        raise RowsUnread(f"{Path(result.argv[0]).name}: {begin(str(error), _MAX_WHY)}", error.records) from error
    except (Garbled, ValueError) as error:
        why = begin(str(error), _MAX_WHY)
        raise SchedulerUnreachable(f"the answer of {Path(result.argv[0]).name} cannot be read: {why}") from error
