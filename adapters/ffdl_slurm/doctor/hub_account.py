"""Check that the account of a site's hub sees the jobs of all users."""

from __future__ import annotations

import re

from ffdl_batch.domain.scheduler_errors import SchedulerMissing, SchedulerUnreachable
from ffdl_slurm import commands
from ffdl_slurm.gateways.command_runner import CommandTimeout, Runner

_HIDDEN = re.compile(r"^PrivateData\s*=\s*(.*?)\s*$", re.MULTILINE)
_SLURM_USER = re.compile(r"^SlurmUser\s*=\s*([^\s(]+)", re.MULTILINE)
_SEE_ALL = ("operator", "administrator")


def explain_blindness(run: Runner, timeout_s: float, user: str) -> str:
    """Return why `user` does not see other users' jobs, and the cure; "" if it sees them, or if this account may
    not read the configuration. Raises SchedulerUnreachable."""
    try:
        config = run(commands.config_argv(), timeout_s)
        hidden = _HIDDEN.search(config.stdout)
        if hidden is None or "jobs" not in re.split(r"[,\s]+", hidden[1].lower()):
            return ""
        owner = _SLURM_USER.search(config.stdout)
        if user == "root" or (owner is not None and owner[1] == user):
            return ""
        level = run(commands.admin_level_argv(user), timeout_s)
    except CommandTimeout as error:
        raise SchedulerUnreachable(str(error)) from error
    except SchedulerMissing as error:
        if "sacctmgr" not in str(error):
            raise
        why = f"its AdminLevel cannot be read: {error}"
    else:
        if any(word in _SEE_ALL for word in level.stdout.lower().split()):
            return ""
        why = f"its AdminLevel is {level.stdout.strip() or 'not set'}"
    return (
        f"PrivateData of slurm.conf hides other users' jobs from the account {user!r}, and {why}; run: "
        f"sacctmgr modify user {user} set AdminLevel=Operator (create the user first if sacctmgr does not know it)"
    )
