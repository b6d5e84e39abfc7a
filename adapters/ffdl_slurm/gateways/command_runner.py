"""Run the commands of Slurm: argv lists, no shell, a time-out, a clean environment. No other module of this adapter
starts processes.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.attempt.reader import DamagedFile, read_head
from ffdl_batch.domain.scheduler_errors import SchedulerMissing, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import PRIVATE_UMASK
from ffdl_slurm.gateways.submission_files import Hold
from ffdl_slurm.output_text import shorten

KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS"})
_LOOK_EVERY_S = 0.1
"""How often the output of a running command is read."""
_SIGNALS = 64
"""Number of signals. A shell exits with 128 and the number of the signal that ended its command."""
OPTION_VARIABLES = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SRUN_", "SALLOC_")
_DROPPED = (*OPTION_VARIABLES, "LC_")
# All that the batch script needs of the submitter's environment. The learner's environment comes from a file.
FOR_JOBS = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "LD_LIBRARY_PATH"}) | KEPT


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The output of one command. `returncode` is negative for the signal that ended it."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def was_killed(self) -> bool:
        """Return whether its status shows that a signal ended it. Then its effect is unknown."""
        return self.returncode < 0 or 128 < self.returncode <= 128 + _SIGNALS

    @property
    def text(self) -> str:
        """Return its standard error, or its standard output if that is empty."""
        return self.stderr.strip() or self.stdout

    @property
    def message(self) -> str:
        """Return the text as one short line for messages."""
        return shorten(self.text) or "nothing"


class CommandTimeout(Exception):
    """The command did not end in time and was killed."""


class CommandStopped(Exception):
    """The command was killed because of what it had printed."""

    def __init__(self, within_s: float) -> None:
        super().__init__(f"it was killed within {within_s:g} s")
        self.within_s = within_s
        """The text was printed at most so many seconds before the command was dead."""


class ConfMissing(SchedulerMissing):
    """The configuration file that SLURM_CONF names does not exist."""


Runner = Callable[[Sequence[str], float], CommandResult]


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of queries: without Slurm's option variables, but with those that name the cluster. Times
    are printed as epoch seconds."""
    kept = {k: v for k, v in environ.items() if k in KEPT or not k.startswith(_DROPPED)}
    # slurm_make_time_str passes SLURM_TIME_FORMAT to strftime; parsers accept the standard form, too. With
    # SLURM_BITSTR_LEN 0 the indexes of an array's waiting tasks are not cut at 64 bytes (squeue(1), sacct(1)).
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def submit_environment(environ: Mapping[str, str], umask: int = PRIVATE_UMASK) -> dict[str, str]:
    """Return the environment of sbatch, which becomes that of the batch script (--export=ALL), so nothing of the daemon
    may be in it.

    sbatch sends the umask in SLURM_UMASK, and its own one only if the variable is not set (``_set_umask_env``
    in src/sbatch/sbatch.c).
    """
    kept = {k: v for k, v in environ.items() if k in FOR_JOBS}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, "LC_ALL": "C", "SLURM_UMASK": umask_text(umask)}


def check_conf(environ: Mapping[str, str]) -> None:
    """Raise ConfMissing if SLURM_CONF names a missing file. Slurm's commands would try for a minute to get the
    configuration from a controller."""
    conf = environ.get("SLURM_CONF", "")
    if not conf:
        return
    try:
        Path(conf).stat()
    except FileNotFoundError:
        raise ConfMissing(
            f"SLURM_CONF of the daemon is {conf!r}, and this file does not exist; restore it, or set SLURM_CONF to the "
            "right file and run: ffdl daemon restart"
        ) from None
    except OSError:  # Slurm's command prints the cause
        return


def umask_text(umask: int) -> str:
    """Return SLURM_UMASK's form of a umask, as sbatch writes it: ``0022``."""
    return f"0{umask:03o}"


def run_command(
    argv: Sequence[str],
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    files: tuple[int, int] | None = None,
    hold: Hold | None = None,
    must_stop: Callable[[], bool] = lambda: False,
) -> CommandResult:
    """Run one command to its end.

    `files` are descriptors for standard output and error in place of pipes; both texts are empty then. `hold` is the
    lock that the command inherits. `must_stop` is called while a command with `files` runs, and returns whether to kill
    it. Raises CommandTimeout or CommandStopped after it killed the process group, SchedulerMissing if there is no such
    command, ConfMissing if there is no such configuration, SchedulerUnreachable if this machine cannot start a process.
    """
    env = query_environment(os.environ) if environ is None else environ
    check_conf(env)
    out, err = files or (subprocess.PIPE, subprocess.PIPE)
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env), cwd="/",
            pass_fds=(hold.descriptor,) if hold else (), start_new_session=True,
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as error:
        raise SchedulerMissing(
            f"{argv[0]} cannot be run: {error.strerror}; install Slurm's client commands or put them on PATH"
        ) from error
    except OSError as error:
        raise SchedulerUnreachable(f"{argv[0]} could not be started: {error}") from error
    if hold:
        hold.give_away()
    with process:
        try:
            if files is not None:
                _await_end(process, timeout_s, must_stop)
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise CommandTimeout(f"{argv[0]} did not answer within {timeout_s:g} s") from None
        except BaseException:
            _kill_group(process)
            raise
    return CommandResult(tuple(argv), process.returncode, _text(stdout), _text(stderr))


def _await_end(process: subprocess.Popen[bytes], timeout_s: float, must_stop: Callable[[], bool]) -> None:
    """Wait until the process ends. Raises TimeoutExpired; CommandStopped after it killed the process group."""
    last_look_at = time.monotonic()
    ends_at = last_look_at + timeout_s
    with _pidfd(process) as descriptor:
        while not _has_ended(process, descriptor, min(_LOOK_EVERY_S, ends_at - last_look_at)):
            now = time.monotonic()
            if must_stop():
                _kill_group(process)
                if process.wait() < 0:
                    raise CommandStopped(time.monotonic() - last_look_at)
                return
            if now >= ends_at:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            last_look_at = now


@contextmanager
def _pidfd(process: subprocess.Popen[bytes]) -> Iterator[int | None]:
    """Yield a descriptor that is readable when the process has ended; None before Linux 5.3."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_ended(process: subprocess.Popen[bytes], descriptor: int | None, timeout_s: float) -> bool:
    """Wait for the end of the process, and return whether it has come. A pidfd wakes at once, while Popen.wait with a
    time-out polls with growing pauses."""
    if descriptor is None:
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


_CONF, _CLUSTERS = "SLURM_CONF", "SLURM_CLUSTERS"
_DEFAULT_CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf")
"""Where Slurm's commands look without SLURM_CONF, as distributions and Slurm's own build configure them."""
_MAX_CONF_BYTES = 4 * 1024**2
_APART = "for a daemon of its own, set FFDL_STATE_DIR to another directory"


def compare_cluster(shell: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, str]:
    """Return why the variables of `shell` choose another cluster than `own`, and what to do; "" twice if they do not.

    Both decide as for sbatch(1). A shell without SLURM_CONF, such as cron's, uses that of the daemon. Without
    SLURM_CLUSTERS it chooses the cluster of the configuration file. Variables that differ and name the same cluster are
    accepted.
    """
    clusters = shell.get(_CLUSTERS, "")
    if "," in clusters or clusters == "all":
        return f"{_CLUSTERS}={clusters!r} names several clusters, and a daemon submits to one", f"unset {_CLUSTERS}"
    own_conf = own.get(_CONF, "") or next(filter(os.path.isfile, _DEFAULT_CONFS), "")
    conf = shell.get(_CONF, "") or own_conf
    of_file, of_own_file = _cluster_of(conf), _cluster_of(own_conf)
    chosen, ours = clusters.lower() or of_file, own.get(_CLUSTERS, "").lower() or of_own_file
    if clusters != own.get(_CLUSTERS, "") and (not chosen or chosen != ours):
        return _differs(_CLUSTERS, clusters, own, is_known=bool(chosen and ours))
    if os.path.realpath(conf) != os.path.realpath(own_conf) and (not of_file or of_file != of_own_file):
        return _differs(_CONF, conf, own, is_known=bool(of_file and of_own_file))
    return "", ""


def _cluster_of(conf: str) -> str:
    """Return the ClusterName of a configuration file in lower case, as Slurm uses it; "" if it is not known."""
    if not conf:
        return ""
    try:
        text = read_head(conf, _MAX_CONF_BYTES, any_owner=True).decode("utf-8", "replace")
    except (OSError, DamagedFile):
        return ""
    found = re.findall(r"^[ \t]*ClusterName[ \t]*=[ \t]*([^\s#]+)", text, re.MULTILINE | re.IGNORECASE)
    return found[-1].lower() if found else ""


def _differs(name: str, value: str, own: Mapping[str, str], *, is_known: bool) -> tuple[str, str]:
    ours = own.get(name, "")
    same = f"export {name}={shlex.quote(ours)}" if ours else f"unset {name}"
    return (
        f"{name} is {_shown(value)} in this shell and {_shown(ours)} for the running daemon, so the job "
        f"{'would' if is_known else 'may'} run on another cluster",
        f"to submit to the cluster of the daemon, run: {same}; {_APART}; if none of your jobs is unfinished, run: "
        "ffdl daemon restart",
    )


def _shown(value: str) -> str:
    return repr(value) if value else "not set"
