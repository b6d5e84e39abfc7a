"""Slurm on a login node that has nothing of ours: sbatch, squeue, sacct and scancel as its user would give them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ffdl_batch.domain.outcome.observation import Observation
from ffdl_batch.ports.scheduler import AccountingUnreachable, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm.gateways import error_mapping
from ffdl_slurm.gateways.command_runner import CommandResult, CommandTimeout
from ffdl_slurm.gateways.ssh_gateway import SshGateway
from ffdl_slurm.observing.parsers import JobRecord

if TYPE_CHECKING:
    from ffdl_batch.ssh.connection import Connector

_TIMEOUT_S = 60.0
_SUBMIT = """\
unset LC_ALL SLURM_TIME_FORMAT SLURM_BITSTR_LEN MODEL JOB IMAGE
login=$(umask); umask 077
cd -- "$1" && mkdir -p -- "$3" || exit 75
out=$(umask "$login"; sbatch --parsable --chdir="$1" "$2" 2>complaint); code=$?
id=$(printf '%s\\n' "$out" | sed -n 's/;.*//; /^[0-9][0-9]*$/p' | tail -n 1)
[ "$code" -ne 0 ] || [ -z "$id" ] || ln -sfn -- "$1" "$3/$id"
printf '%s\\n' "$out"; cat complaint >&2; exit "$code"
"""
"""The link is there before the answer is sent: who loses the connection finds the job by it."""


class SlurmThere:
    """See :class:`ffdl_batch.ports.remote_scheduler.SchedulerThere`."""

    def __init__(self, host: str, connector: Connector) -> None:
        self._host = host
        self._gateway = SshGateway(_TIMEOUT_S, host, connector)

    def is_there(self) -> bool:
        """See the port."""
        return self._run("command -v sbatch || exit 1", "looking for sbatch").returncode == 0

    def submit(self, directory: str, script: str, index: str) -> str:
        """See the port."""
        try:
            ended = self._run(_SUBMIT, "sbatch", directory, script, index)
        except SchedulerUnreachable as error:
            raise SubmissionUncertain(f"{error}; whether the job was submitted is not known") from error
        return error_mapping.read_submission(ended, self._host)

    def observe(self, ids: Collection[str]) -> Mapping[str, Observation]:
        """See the port. What slurmctld has forgotten is the accounting's, where there is one that answers."""
        found = [record for record in self._gateway.list_own_jobs() if record.job in ids]
        forgotten = set(ids) - {record.job for record in found}
        if forgotten:
            with contextlib.suppress(AccountingUnreachable):  # nobody knows them now: no statement about any of them
                found += self._gateway.account_for(forgotten) or ()
        return {_name(record): record.observation for record in found}

    def cancel(self, ids: Collection[str]) -> None:
        """See the port."""
        self._gateway.cancel(*ids)

    def _run(self, script: str, what: str, *words: str) -> CommandResult:
        try:
            return self._gateway.run(["/bin/sh", "-c", script, "sh", *words], _TIMEOUT_S)
        except CommandTimeout as error:
            raise SchedulerUnreachable(f"{what}: {self._host} did not answer within {_TIMEOUT_S:g} s") from error


def _name(record: JobRecord) -> str:
    if record.native is not None:
        return str(record.native)
    return f"{record.job}_[{record.tasks}]"
