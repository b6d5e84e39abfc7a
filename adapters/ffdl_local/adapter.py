"""The local adapter: each job is a supervisor process with its head controller on this machine.

It needs no service, no configuration and no privilege. A job's native id is its attempt's token, so one attempt can
never be two jobs, and the id leads to its files. The daemon may die at any moment: the supervisor is not its child, and
a lock that supervisor and head hold shows whether the job lives (a pid does not, after a reboot).
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import math
import os
import platform
import re
import signal as signals
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ffdl_batch import domain
from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.backend_facts import BackendFacts, BackendTraits, NodeShape, PartitionShape, WaitingRequest
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.spec import NetworkLevel
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.pending.explanation import Explanation
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NotNow,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.host.resource_exhaustion import explain_unstarted, find_lack, of_daemon
from ffdl_batch.plugins import AdapterContext, Settings
from ffdl_batch.runtimes.launch_request import AttemptNode, LaunchPlan, LaunchRequest, NodeProgram
from ffdl_batch.runtimes.learner_start import controller_arguments, staging_arguments
from ffdl_local.job_state import explain, observe_attempt
from ffdl_local.launch_plan import BACKEND, make_plan, max_jobs
from ffdl_local.processes import HEAD, SUPERVISOR, WITHDRAW, node_controller, signal_process
from ffdl_local.records import EXIT, JOB_FILE, LOCK, STARTED, STATE, is_held, lives, local_directory, read_record
from ffdl_local.settings import LocalSettings, read_settings

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"(training-[0-9a-z]{9})-(\d+)", re.ASCII)
_START_TIMEOUT_S = 30.0
_FOR_NODES_ALONE = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGKILL, signals.SIGSTOP, signals.SIGCONT})
"""A supervisor or head would end, stop or continue itself; it passes on the other signals."""
# The variables of the daemon that a job gets. Those of the learner's contract are added.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "TMPDIR")


def create(settings: Settings, context: AdapterContext) -> LocalScheduler:
    """Create the adapter for the entry point. Raises InvalidRequest for unusable settings."""
    return LocalScheduler(read_settings(settings), context)


class LocalScheduler:
    """See :class:`ffdl_batch.ports.scheduler.Scheduler`."""

    def __init__(self, settings: LocalSettings, context: AdapterContext) -> None:
        """Create the adapter without touching a file."""
        self._settings = settings
        self._root = Root(context.root)
        self._host = socket.gethostname()
        self._unread: dict[NativeId, str] = {}
        """The jobs whose files could not be read the last time, and why."""

    @property
    def name(self) -> str:
        """See the port."""
        return BACKEND

    @property
    def traits(self) -> BackendTraits:
        """See the port."""
        return BackendTraits()

    def effective_settings(self) -> Mapping[str, object]:
        """See the port."""
        return dataclasses.asdict(self._settings)

    def probe(self) -> BackendFacts:
        """See the port."""
        controller = controller_arguments(str(Path(domain.__file__).resolve().parents[2]))
        levels, warnings = {NetworkLevel.HOST}, []
        if self._settings.runtime == "apptainer":
            levels.add(NetworkLevel.NONE)
        elif why := _why_no_isolation((sys.executable, *controller)):
            warnings.append(f"learners cannot be cut off from the network on this machine: {why}")
        else:
            levels.add(NetworkLevel.NONE)
        gpus = self._settings.gpus if self._settings.gpus >= 0 else count_gpus(Path("/dev"))
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        node = NodeShape(self._host, os.cpu_count() or 1, pages * size, {"": gpus} if gpus else {}, (BACKEND,))
        return BackendFacts(
            nodes=(node,),
            partitions=(PartitionShape(BACKEND, is_default=True),),
            network_levels=frozenset(levels),
            version=f"{platform.system()} {platform.release()}",
            python=sys.executable,
            controller=controller,
            staging=staging_arguments(sys.executable),
            warnings=tuple(warnings),
            needs_image=self._settings.runtime == "apptainer",
            # Each job that waits has a process. Twice as many as can run keep the machine busy.
            elements_at_once=2 * max_jobs(self._settings, node),
            is_this_machine=True,
        )

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """See the port."""
        own, core = Path(__file__).resolve().parents[1], Path(domain.__file__).resolve().parents[2]
        packages = os.pathsep.join(dict.fromkeys((str(own), str(core))))
        return make_plan(request, self._settings, self._queue, packages)

    @property
    def _queue(self) -> str:
        """The queue of this machine, which is in its own directory because other machines may share the tree."""
        return str(Path(self._root.path) / "local" / self._host)

    def submit(self, plan: LaunchPlan) -> NativeId:
        """See the port. A second submission of an attempt returns the first one."""
        directory = local_directory(plan.attempt_dir.path)
        directory.mkdir(mode=0o700, exist_ok=True)
        lock = open_own(str(directory / LOCK), os.O_RDWR)
        try:
            if not _acquire(lock):
                return _taken_by_another(directory, plan.token)
            if read_record(directory / STARTED) is None:
                self._start(plan, lock)
        finally:
            os.close(lock)
        return NativeId(plan.token)

    def _start(self, plan: LaunchPlan, lock: int) -> None:
        env = {name: os.environ[name] for name in _PASSED if name in os.environ}
        env["FFDL_VISIBLE_GPUS"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        try:
            started = subprocess.run(
                [*plan.submit_argv, str(lock)], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env,
                pass_fds=(lock,), timeout=_START_TIMEOUT_S, check=False,
            )  # fmt: skip
        except OSError as error:
            what = f"no process can be started on {self._host}"
            if lack := explain_unstarted(error):
                # No process has the attempt: this one holds the lock, and there is no record.
                raise TooMany(f"{what}: {of_daemon(lack)}") from error
            raise SchedulerUnreachable(f"{what}: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise SubmissionUncertain(f"the job's supervisor did not answer in {_START_TIMEOUT_S:g} s") from error
        if started.returncode != 0 or started.stdout.strip() != plan.token:
            said = _cause(started.stderr) or f"exit code {started.returncode}"
            if lack := find_lack(started.stderr):
                said = f"{said}; {of_daemon(lack)}"
            raise SubmissionUncertain(f"the job's supervisor ended at once: {said}")

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """See the port."""
        directory = local_directory(attempt_dir.path)
        try:
            # In this order, because a submission takes the lock, writes the record and releases the lock.
            held = is_held(directory / LOCK)
            known = read_record(directory / STARTED) is not None
        except OSError as error:
            raise NotNow(f"{directory} cannot be read: {error}") from error
        if held and not known:
            raise NotNow(f"a submission of {token} is under way; its end is awaited")
        return frozenset({NativeId(token)}) if known else frozenset()

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """See the port; reads files and /proc only. A job whose files cannot be read is left out."""
        observed = {native: self._observe(native) for native in ids}
        self._unread = {native: why for native, why in self._unread.items() if native in observed}
        return {native: seen for native, seen in observed.items() if seen is not None}

    def _observe(self, native: NativeId) -> Observation | None:
        """Return the state of one job. Whatever its files are, the other jobs are still observed; what prevents it is
        logged once."""
        attempt = self._attempt(native)
        if attempt is None:
            return None
        try:
            seen = observe_attempt(attempt, self._host)
        except Exception as error:
            if self._unread.get(native) != str(error):
                self._unread[native] = str(error)
                is_defect = not isinstance(error, OSError)
                why = "the state of %s is unknown, because its files cannot be read: %s"
                log.error(why, native, error, exc_info=is_defect)
            return None
        self._unread.pop(native, None)
        return seen

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """See the port."""
        return [self._explain(request) for request in requests]

    def _explain(self, request: WaitingRequest) -> Explanation | None:
        queue = Path(self._queue)
        if request.native_id is None:
            node, each = request.facts.nodes[0], request.spec.resources
            wanted = math.ceil(each.gpus * each.learners) if node.gpus else 0
            most = max_jobs(self._settings, node)
            return explain(
                queue, "", {"max_jobs": most, "machine_gpus": sum(node.gpus.values()), "gpus": wanted}, False
            )
        attempt = self._attempt(request.native_id)
        seen = self._observe(request.native_id)
        job = read_record(Path(attempt.path) / JOB_FILE) if attempt is not None else None
        if seen is None or seen.phase is not Phase.PENDING or not job:
            return None
        try:
            return explain(queue, str(request.native_id), job, True)
        except (KeyError, TypeError, ValueError):  # a damaged file
            return None

    def signal(self, native_id: NativeId, signal: str) -> None:
        """See the port."""
        try:
            number = signals.Signals[f"SIG{signal.removeprefix('SIG')}"]
        except KeyError:
            raise InvalidRequest(f"{signal!r} is not the name of a signal; give one without SIG, such as URG") from None
        attempt = self._living(native_id)
        if attempt is None:
            return
        if number in _FOR_NODES_ALONE:
            node = node_controller(attempt)
            if node is not None:
                signal_process(*node, number)
            return
        self._send(attempt, number, SUPERVISOR, HEAD)

    def cancel(self, native_id: NativeId) -> None:
        """See the port."""
        attempt = self._living(native_id)
        if attempt is not None:
            self._send(attempt, signals.SIGTERM, SUPERVISOR, HEAD)

    def withdraw(self, native_id: NativeId) -> None:
        """See the port. Only a supervisor that waits obeys this signal."""
        attempt = self._living(native_id)
        if attempt is not None:
            self._send(attempt, WITHDRAW, SUPERVISOR)

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
        """See the port."""
        started = read_record(local_directory(place.attempt_dir.path) / STARTED) or {}
        return NodeProgram(tuple(argv), host=str(started.get("host") or self._host))

    def _living(self, native: NativeId) -> AttemptDir | None:
        """Return the attempt if its processes may live; else None. Raises NotNow if they are on another host."""
        attempt = self._attempt(native)
        if attempt is None:
            return None
        directory = local_directory(attempt.path)
        started = read_record(directory / STARTED) or {}
        if read_record(directory / EXIT) or not (is_held(directory / LOCK) or lives(started, "pid", "start_ticks")):
            return None
        if started.get("host", self._host) != self._host:
            raise NotNow(f"{native} runs on {started.get('host')}; this is {self._host}")
        return attempt

    def _send(self, attempt: AttemptDir, number: int, *to: str) -> None:
        """Signal the first of the named processes that lives: the head outlives a killed supervisor. Without one, do
        nothing."""
        directory = local_directory(attempt.path)
        started, state = read_record(directory / STARTED) or {}, read_record(directory / STATE) or {}
        pids = {
            SUPERVISOR: (started.get("pid"), started.get("start_ticks")),
            HEAD: (state.get("head"), state.get("head_ticks")),
        }
        for pid, ticks in (pids[name] for name in to):
            if pid and signal_process(pid, ticks, number):
                return

    def _attempt(self, native: NativeId) -> AttemptDir | None:
        match = _TOKEN.fullmatch(str(native))
        return self._root.job(match[1]).attempt(int(match[2])) if match else None


def _cause(said: str) -> str:
    """Return the last line, which has the cause if it is a traceback."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else ""


def _acquire(lock: int) -> bool:
    """Take the lock; return whether it is free. Readers hold it for moments, so it is tried several times."""
    for _ in range(50):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.01)
    return False


def _taken_by_another(directory: Path, token: Token) -> NativeId:
    if read_record(directory / STARTED) is None:
        raise SubmissionUncertain(f"another submission of {token} is under way")
    return NativeId(token)


def _why_no_isolation(controller: tuple[str, ...]) -> str:
    """Return the kernel's reason why learners cannot have their own network; "" if they can."""
    argv = [*controller, "probe-isolation"]
    try:
        tried = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if tried.returncode == 0 else " ".join(tried.stderr.split()) or f"exit code {tried.returncode}"


def count_gpus(devices: Path) -> int:
    """Count NVIDIA's device files; without any, AMD's render nodes, one for each GPU."""
    names = [path.name for path in devices.iterdir()] if devices.is_dir() else []
    nvidia = sum(1 for name in names if re.fullmatch(r"nvidia\d+", name))
    if nvidia or "kfd" not in names:
        return nvidia
    return sum(1 for path in (devices / "dri").glob("renderD*"))
