"""Write the next attempt's files and submit it without the daemon.

The deployer planned and wrote the template; this module builds no command line. The mark that a submission has begun is
durable before the submitting command runs. That command holds the lock on ``submit/lock`` while it runs, so the daemon
can find out later how the submission ended.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from dataclasses import replace
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ffdl_batch.attempt.file_writer import open_own, write_cell, write_text
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, find_text, read_whole, size_of
from ffdl_batch.domain.launch.launch_file import LaunchFile, Succession, decode, encode, succeed
from ffdl_batch.domain.launch.limits import Lead, LeadFrom, needed_lead_s
from ffdl_batch.domain.launch.placeholders import LaunchFileError, fill
from ffdl_batch.domain.outcome.continuation import Spent
from ffdl_batch.host.core_dumps import hide_memory
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.signals import release_signals

BEGUN = "begun\n"
REPLY, COMPLAINT, LOCK = "reply", "complaint", "lock"
MESSAGE_CHARACTERS = 300


class Refused(Exception):
    """The next attempt could not be submitted from here; the message says why. The daemon may succeed later."""


@dataclass(frozen=True)
class Measured:
    """What is known after this attempt."""

    spent: Spent
    """Parts of the retry budget and GPU time that were used up to its end."""
    took_s: Optional[float] = None
    """Seconds that a checkpoint took."""
    limit_s: Optional[float] = None
    """Seconds that the allocation lasts."""
    confirmed: str = ""
    """Newest file of the confirmed checkpoint."""


def next_attempt(launch: LaunchFile) -> AttemptDir:
    """Return the directory of the next attempt."""
    return JobDir(launch.job_dir).attempt(launch.attempt + 1)


def was_begun(attempt: AttemptDir) -> bool:
    """Return whether a submission of the attempt has begun."""
    return os.path.lexists(attempt.submit_begun)


def submit_next(launch: LaunchFile, succession: Succession, native_id: str, measured: Measured) -> None:
    """Write the next attempt's files, mark its submission as begun, and submit it if the plan has a command for that.

    Nothing is changed if a submission has begun already. Raises Refused.
    """
    attempt = next_attempt(launch)
    if was_begun(attempt):
        return
    try:
        planned = _write(launch, succession, attempt, measured)
        lock = open_own(os.path.join(attempt.submit, LOCK), os.O_RDWR)
    except (OSError, ValueError, LaunchFileError) as error:
        raise Refused(f"the files of attempt {launch.attempt + 1} cannot be written: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if was_begun(attempt):
            return
        write_text(attempt.submit_begun, BEGUN)
        if succession.submit:
            lead_s = planned.succession.lead_s if planned.succession else None
            values = {"native_id": native_id, "script": attempt.script, "token": planned.token}
            values["lead_s"] = "" if lead_s is None else str(lead_s)
            _submit(fill_all(succession.submit, values), succession, attempt, lock, planned.umask)
    except BlockingIOError:
        return  # another submission of it is under way
    except (OSError, LaunchFileError) as error:
        raise Refused(f"attempt {launch.attempt + 1} cannot be submitted: {error}") from error
    finally:
        os.close(lock)


def fill_all(argv: Sequence[str], values: Dict[str, str]) -> List[str]:
    """Return the argv with its placeholders filled. Raises LaunchFileError."""
    return [fill(part, values) for part in argv]


# ---------------------------------------------------------------------------------------------------- files


def _write(launch: LaunchFile, succession: Succession, attempt: AttemptDir, measured: Measured) -> LaunchFile:
    """Write the files that the deployer writes for an attempt. Return the launch file."""
    for directory in (
        attempt.path, attempt.submit, attempt.events, attempt.state, attempt.model, attempt.data, attempt.results,
        attempt.logs,
    ):  # fmt: skip
        os.makedirs(directory, mode=0o700, exist_ok=True)
    planned: Optional[LaunchFile] = None
    for name, path in _template_files(succession.template):
        text = read_whole(path, MAX_TEXT_BYTES, below=succession.template).decode("utf-8")
        if name == os.path.basename(attempt.secrets):
            hide_memory()
        else:
            text = succeed(text, launch.job_id, launch.attempt + 1)
        if name == os.path.basename(attempt.launch):
            planned = _numbered(decode(text), launch, succession, measured)
            text = encode(planned)
        target = os.path.join(attempt.path, name)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        write_text(target, text, mode)
        os.chmod(target, mode)  # the umask must not change it
    if planned is None:
        raise LaunchFileError(f"{succession.template} holds no launch file")
    if os.path.exists(AttemptDir(launch.attempt_dir).secrets) and not os.path.exists(attempt.secrets):
        raise LaunchFileError(f"{succession.template} holds none of the secrets that this attempt was given")
    if not os.path.exists(attempt.control):
        write_cell(attempt.control, {"attempt": planned.attempt, "requested_action": "", "drill": ""})
    return planned


def _template_files(root: str) -> Iterator[Tuple[str, str]]:
    """Yield the relative name and the path of each file. Hidden files are incomplete and left out."""
    for directory, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            if not name.startswith("."):
                path = os.path.join(directory, name)
                yield os.path.relpath(path, root), path


def _numbered(planned: LaunchFile, launch: LaunchFile, succession: Succession, measured: Measured) -> LaunchFile:
    """Return the template's launch file, completed with what only this attempt knows."""
    number = launch.attempt + 1
    token, path = f"{launch.job_id}-{number}", next_attempt(launch).path
    if (planned.token, planned.attempt_dir) != (token, path):
        raise LaunchFileError(f"the template is of {planned.token} in {planned.attempt_dir}, not of {token} in {path}")
    lead = next_lead(launch, succession, measured)
    return replace(
        planned,
        attempt=number,
        carry=AttemptDir(launch.attempt_dir).results,
        confirmed=measured.confirmed or launch.confirmed,
        limits=replace(planned.limits, lead_s=lead.seconds, lead_from=lead.origin),
        succession=replace(
            planned.succession or succession, template=succession.template, spent=measured.spent, lead_s=lead.seconds
        ),
    )


def next_lead(launch: LaunchFile, succession: Succession, measured: Measured) -> Lead:
    """Return how long before the time limit the next attempt is warned.

    It is the manifest's value if there is one. Else it is what this attempt's checkpoint needed, but at most half of
    the limit and at least this attempt's lead.
    """
    known = succession.lead_s if succession.lead_s is not None else launch.limits.lead_s
    kept = Lead(known, launch.limits.lead_from)
    if known is None or measured.took_s is None or kept.origin is LeadFrom.MANIFEST:
        return kept
    wanted_s, origin = needed_lead_s(measured.took_s, launch.limits.store_s), LeadFrom.MEASURED
    if measured.limit_s is not None and wanted_s > measured.limit_s // 2:
        wanted_s, origin = int(measured.limit_s // 2), LeadFrom.TIME_LIMIT
    return Lead(wanted_s, origin) if wanted_s > known else kept


# ------------------------------------------------------------------------------------------------- commands


def _submit(argv: List[str], succession: Succession, attempt: AttemptDir, lock: int, umask: int) -> None:
    reply, complaint = (os.path.join(attempt.submit, name) for name in (REPLY, COMPLAINT))
    before = size_of(complaint)
    out, err = (open_own(path, os.O_WRONLY | os.O_APPEND) for path in (reply, complaint))
    try:
        failed = run_command(argv, succession, out, err, lock, umask)
    except OSError:
        os.unlink(attempt.submit_begun)  # the command did not start, so the scheduler has no such job
        raise
    finally:
        os.close(out)
        os.close(err)
    if failed:
        output = " ".join(find_text(complaint, MAX_TEXT_BYTES)[before:].split())[-MESSAGE_CHARACTERS:]
        raise Refused(f"{argv[0]} {failed}: {output or 'it printed nothing'}")


def run_command(argv: List[str], succession: Succession, out: int, err: int, lock: int = -1, umask: int = -1) -> str:
    """Run a command of the scheduler with a reduced environment. Return how it failed; "" if it succeeded.

    Raises OSError if it cannot be started.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=kept_environment(succession.keep_env, os.environ),
        pass_fds=(lock,) if lock >= 0 else (),
        umask=umask,
        preexec_fn=release_signals,  # noqa: PLW1509 - this process has one thread
    )
    try:
        status = process.wait(timeout=succession.timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"did not answer in {succession.timeout_s:g} s"
    return f"exited with status {status}" if status else ""


def kept_environment(names: Sequence[str], environment: "os._Environ[str] | Dict[str, str]") -> Dict[str, str]:
    """Return the variables with these names. A name that ends in ``*`` is a prefix."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return {k: v for k, v in environment.items() if k in names or (prefixes and k.startswith(prefixes))}


def requeue(succession: Succession, native_id: str) -> str:
    """Ask the scheduler to start this attempt again. Return why it refuses; "" if it does not."""
    try:
        argv = fill_all(succession.requeue, {"native_id": native_id})
        failed = run_command(argv, succession, 1, 2)
    except (OSError, LaunchFileError) as error:
        return f"the attempt cannot be requeued: {error}"
    return f"{argv[0]} {failed}" if failed else ""
