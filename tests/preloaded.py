"""Start the project's Python programs as forks of one process that has imported them already.

An interpreter that imports the daemon uses half a second of a core; a fork of the server a few milliseconds. `Popen`
and `run` behave as those of `subprocess`: the program has a process id, can be killed, and has its own arguments,
environment, directory and standard streams, also below /proc. One thing differs, and a test that depends on it uses
`subprocess`: the modules that a program imports late are loaded from its start.

Only `python -m MODULE ...` and `python -c CODE ...` of this interpreter are forked. Everything else is executed. What a
forked program starts is executed, too, unless it was started by `PopenTree`: its Python programs are forks of itself;
or by `PopenDaemon`: they are trees that the server starts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
FFDL = (sys.executable, "-c", "from ffdl_batch.cli.main import main; main()")
FFDL_ADMIN = (sys.executable, "-c", "from ffdl_batch.admin.main import main; main()")
FFDL_SUBMIT = (sys.executable, "-c", "from ffdl_batch.cli.commands.submit import main; main()")
PACKAGES = ("ffdl_batch", "ffdl_kubernetes", "ffdl_local", "ffdl_slurm", "tests.fakes.kubernetes")
"""The server imports all their modules, but for those of OTHERS, before it forks."""
BELOW = ("ffdl_batch.collectors", "ffdl_batch.staging")
"""Programs that only the project's own processes start. They are imported before the first tree of forks."""
OTHERS = (*BELOW, "ffdl_batch.store.migrations")
"""And scripts of Alembic."""
LIBRARIES = (
    "httptools",
    "paramiko",
    "psycopg",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.off",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.httptools_impl",
)
"""What daemons and commands import late."""
_AT_START = frozenset(("PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHOME", "PYTHONMALLOC", "PYTHONDEVMODE"))
"""Variables that an interpreter reads at its start alone: programs that get one are executed."""
_SHOWN_BYTES = 64 << 10
"""How much of a forked program's arguments, and of its environment, is seen below /proc."""
_FLAGS = frozenset(("-I", "-S", "-E", "-P"))
"""Options by which the project's own processes start Python programs."""
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
"""prctl(2)"""
_CONNECTION, _ABOVE = 200, 300
"""Descriptors: a daemon's connection to the server, and above all that programs are given."""
_MOUNTS = "/proc/self/ns/mnt"
_CLONE_NEWNS = 0x00020000
"""setns(2)"""
_LARGEST_REQUEST = 200_000
"""Bytes; a socket's default send buffer takes a little more."""


# ---------------------------------------------------------------------------------------------- the tests' side


_Executed = subprocess.Popen[bytes]
"""As it was before a test replaced it."""


class Popen(subprocess.Popen[Any]):
    """A process like `subprocess.Popen`'s, forked from the server if its command allows that."""

    used_cpu_s = 0.0
    """Seconds of a core that all forked processes have used which were waited for."""
    _kind = "program"
    """What the server does for Python programs that the forked process starts: see the classes below."""
    _ended: int | None = None
    """The pipe from which the exit status of a forked process is read; None if the process was executed."""

    def _execute_child(self, *given: Any) -> None:
        (args, executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *rest) = given
        streams, (_, gid, gids, uid, umask, new_session, group) = rest[:6], rest[6:13]
        unusual = executable or preexec_fn or shell or gid or gids or uid
        command = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
        environment = os.environ if env is None else env
        if unusual or umask != -1 or group != -1 or not self._forks(command) or _AT_START & environment.keys():
            super()._execute_child(*given)  # type: ignore[misc]
            return
        reading, self._ended, errors = streams[0], None, streams[5]
        kept = [reading, streams[3], errors]
        also = [int(number) for number in pass_fds]
        request = {
            "argv": command,
            "cwd": os.fspath(cwd) if cwd else os.getcwd(),  # noqa: PTH109 - the text alone is wanted
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()},
            "new_session": bool(new_session),
            "kind": self._kind,
            "kept": also,
        }
        mounts = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            given_on = [number if number != -1 else own for own, number in enumerate(kept)]
            self.pid, self._ended = _server().fork(request, [*given_on, mounts, *also])
        finally:
            os.close(mounts)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    @staticmethod
    def _forks(command: Sequence[str]) -> bool:
        return _is_forked(command)

    def send_signal(self, sig: int) -> None:
        """See `subprocess.Popen`. The signal comes from the forked process's parent, as an executed one's does."""
        if self._ended is None:
            super().send_signal(sig)
        elif self.poll() is None:
            _server().signal(self.pid, sig)

    def _internal_poll(self, *deadstate: Any, **named: Any) -> int | None:
        if self._ended is None:
            found: int | None = super()._internal_poll(*deadstate, **named)  # type: ignore[misc]
            return found
        self._read_status(0)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        if not self._read_status(None if wait_flags == 0 else 0):
            return 0, 0
        return self.pid, self._wait_status

    def _read_status(self, timeout: float | None) -> bool:
        """Whether the process has ended; then its status is known."""
        if self.returncode is not None:
            return True
        assert self._ended is not None
        looking = select.poll()
        looking.register(self._ended, select.POLLIN)
        if not looking.poll(None if timeout is None else timeout * 1000):
            return False
        words = os.read(self._ended, 64).split()
        os.close(self._ended)
        assert words, "the server of preloaded programs has ended"
        self._wait_status = int(words[0])
        Popen.used_cpu_s += float(words[1])
        self.returncode = os.waitstatus_to_exitcode(self._wait_status)
        return True


class PopenTree(Popen):
    """As `Popen`, for programs that have no state in their modules and whose Python programs have none: these are
    forks of the process that starts them, with the modules and the patches of that process."""

    _kind = "tree"

    @staticmethod
    def _forks(command: Sequence[str]) -> bool:
        return _is_in_tree(command)


class PopenDaemon(Popen):
    """As `Popen`, for programs that have threads and state. Their Python programs are started as by `PopenTree`, by the
    server, which is then the parent."""

    _kind = "daemon"


if TYPE_CHECKING:
    run = subprocess.run
else:

    def run(
        argv: Sequence[str | os.PathLike[str]],
        *,
        input: Any = None,
        timeout: float | None = None,
        check: bool = False,
        capture_output: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command to its end, as `subprocess.run` does."""
        if input is not None:
            options["stdin"] = subprocess.PIPE
        if capture_output:
            options["stdout"] = options["stderr"] = subprocess.PIPE
        with Popen(list(argv), **options) as process:
            try:
                stdout, stderr = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                process.wait()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        if check:
            done.check_returncode()
        return done


def _is_forked(command: Sequence[str]) -> bool:
    return len(command) > 2 and command[0] == sys.executable and command[1] in ("-m", "-c")


class _Server:
    """The process that forks, and the connection to it."""

    def __init__(self, own: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._own, self._process, self._lock = own, process, threading.Lock()

    @classmethod
    def start(cls) -> _Server:
        """Start one for this process."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            process = _Executed(
                [sys.executable, "-m", "tests.preloaded", str(other.fileno()), "-" * _SHOWN_BYTES],
                cwd=ROOT,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "PYTHONPATH": str(ROOT),
                    "LC_ALL": "C.UTF-8",
                    "PADDING": "-" * _SHOWN_BYTES,
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        return cls(own, process)

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """The new process's id, and the pipe that will bring its wait status."""
        reading, writing = os.pipe()
        data = json.dumps(request).encode()
        assert len(data) < _LARGEST_REQUEST, "a command or environment this large needs subprocess"
        try:
            with self._lock:
                socket.send_fds(self._own, [data], [*descriptors, writing])
                answer = self._own.recv(64)
        finally:
            os.close(writing)
        assert answer, "the server of preloaded programs has ended"
        return int(answer), reading

    def signal(self, pid: int, number: int) -> None:
        """Signal a process that this server forked, unless it has ended."""
        with self._lock:
            self._own.send(json.dumps({"pid": pid, "signal": number}).encode())
            answer = self._own.recv(64)
        assert answer, "the server of preloaded programs has ended"

    def end(self) -> None:
        """End the server; what it forked keeps running. Its CPU time counts as this process's from then on."""
        self._own.close()
        if self._process is not None:
            self._process.wait(timeout=60)


_SERVERS: dict[int, _Server] = {}


def _server() -> _Server:
    """The server of this process, started when it is first needed."""
    if os.getpid() not in _SERVERS:
        _SERVERS[os.getpid()] = server = _Server.start()
        atexit.register(server.end)
    return _SERVERS[os.getpid()]


# --------------------------------------------------------------------------------------------- the server's side


def serve(connection: socket.socket) -> None:
    """Fork a process for each request until the other end is closed; report how each one ended."""
    _load((*LIBRARIES, *_modules(PACKAGES, OTHERS)))
    has_programs_below = False
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    clients = {connection.fileno(): connection}
    while connection.fileno() in clients:
        ready, _, _ = select.select([waking, *clients], [], [])
        if waking in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(waking, 4096)
            _report_ended(running)
        for number in ready:
            if number == waking:
                continue
            data, descriptors, _, _ = socket.recv_fds(clients[number], _LARGEST_REQUEST, 64)
            if not data:
                clients.pop(number).close()
                continue
            request = json.loads(data)
            if "signal" in request:
                if request["pid"] in running:
                    os.kill(request["pid"], request["signal"])
                clients[number].send(b"0")
                continue
            if request["kind"] != "program" and not has_programs_below:
                _load_programs_below()
                has_programs_below = True
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                _become(request, descriptors, other)
            other.close()
            if request["kind"] == "daemon":
                clients[own.fileno()] = own
            else:
                own.close()
            running[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            clients[number].send(str(pid).encode())


def _load(modules: Iterable[str]) -> None:
    """Import modules, and keep the garbage collector of the forks from writing to what they share."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _load_programs_below() -> None:
    """Import BELOW, and what a client of S3 needs, with the large files that describe S3."""
    import botocore.session

    vars(botocore.session)["create_loader"] = functools.cache(botocore.session.create_loader)
    botocore.session.Session().create_client("s3", region_name="us-east-1")
    _load(_modules(BELOW))


def _modules(packages: Iterable[str], others: tuple[str, ...] = ()) -> list[str]:
    """Names of the packages' modules, without those of `others`."""
    found = []
    for package in packages:
        places = importlib.import_module(package).__path__
        found += [module.name for module in pkgutil.walk_packages(places, f"{package}.", onerror=_fail)]
    return [name for name in found if not name.endswith("__main__") and not name.startswith(others)]


def _fail(name: str) -> NoReturn:
    raise ImportError(name)


def _report_ended(running: dict[int, int]) -> None:
    """Write the wait status of each child that has ended to the pipe that waits for it."""
    while running:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, f"{status} {used.ru_utime + used.ru_stime}".encode())
        os.close(pipe)


def _become(request: dict[str, Any], descriptors: list[int], connection: socket.socket) -> NoReturn:
    """Be the program of the request, with a connection to the server. Never returns into the server's code."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if request["new_session"]:
            os.setsid()
        _enter_mounts(descriptors[3])
        kept = dict(zip(request["kept"], descriptors[4:], strict=False))
        if request["kind"] == "daemon":
            kept[_CONNECTION] = connection.detach()
        _take(descriptors[:3], kept)
        os.chdir(request["cwd"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["kind"] == "daemon":
            os.set_inheritable(_CONNECTION, False)
            _SERVERS.clear()
            _SERVERS[os.getpid()] = _Server(socket.socket(fileno=_CONNECTION))
            subprocess.Popen = PopenTree  # type: ignore[misc]
        elif request["kind"] == "tree":
            subprocess.Popen._execute_child = _start_below  # type: ignore[attr-defined]
            os.execvp = _become_below  # type: ignore[assignment]
        status = _run_program(request["argv"], request["env"])
    except BaseException:  # noqa: BLE001 - the child's outermost frame
        traceback.print_exc()
    os._exit(status)


_execute, _execvp = subprocess.Popen._execute_child, os.execvp  # type: ignore[attr-defined]


def _start_below(process: subprocess.Popen[Any], *given: Any) -> None:
    """Start a program for a process of a tree: fork a Python program, and execute every other. Replaces
    `subprocess.Popen._execute_child`."""
    (args, executable, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell, *rest) = given
    streams, (_, gid, gids, uid, umask, new_session, group) = rest[:6], rest[6:13]
    command = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
    environment = dict(os.environ) if env is None else {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}
    unusual = executable or not close_fds or shell or gid or gids or uid or group != -1
    if unusual or not _is_in_tree(command) or _AT_START & environment.keys():
        _execute(process, *given)
        return
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _forget_parent()
            given_on = [streams[0], streams[3], streams[5]]
            _take([number if number != -1 else own for own, number in enumerate(given_on)], _same(pass_fds))
            if cwd is not None:
                os.chdir(cwd)
            if umask != -1:
                os.umask(umask)
            if new_session:
                os.setsid()
            if preexec_fn is not None:
                preexec_fn()
            _set_signals()
            status = _run_program(command, environment)
        except BaseException:  # noqa: BLE001 - the child's outermost frame
            traceback.print_exc()
        os._exit(status)
    process.pid = pid
    process._child_created = True  # type: ignore[attr-defined]
    process._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def _become_below(file: str, args: list[str]) -> NoReturn:
    """Become another program in a process of a tree. Replaces `os.execvp`."""
    if file != args[0] or not _is_in_tree(args) or _AT_START & os.environ.keys():
        _execvp(file, args)
    status = 1
    try:
        _forget_parent()
        with os.scandir("/proc/self/fd") as entries:
            numbers = [int(entry.name) for entry in entries]
        _take(range(3), _same(number for number in numbers if number > 2 and _is_inherited(number)))
        _set_signals()
        status = _run_program(args, dict(os.environ))
    except BaseException:  # noqa: BLE001 - the outermost frame of the new program
        traceback.print_exc()
    os._exit(status)


def _is_inherited(descriptor: int) -> bool:
    with contextlib.suppress(OSError):  # that of the directory
        return os.get_inheritable(descriptor)
    return False


def _is_in_tree(argv: Sequence[str]) -> bool:
    return _is_forked([*argv[:1], *_split(argv)[1]])


_OF_PARENTS: list[object] = []


def _forget_parent() -> None:
    """Undo what a new program would not have of the process that started it."""
    gc.freeze()  # what it has open is not to be closed, nor written out, here
    _OF_PARENTS.append((sys.stdin, sys.stdout, sys.stderr))
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, Path(sys.executable).name.encode(), 0, 0, 0)


def _set_signals() -> None:
    """Handle signals as a new interpreter does."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _same(descriptors: Iterable[int]) -> dict[int, int]:
    return {int(number): int(number) for number in descriptors}


def _take(streams: Sequence[int], kept: Mapping[int, int]) -> None:
    """Let the standard streams be these descriptors, keep others by their new numbers, and close the rest."""
    # Above all others first: one of those that came may have the number of another's place.
    new = {**dict(enumerate(streams)), **kept}
    moved = {number: fcntl.fcntl(old, fcntl.F_DUPFD, _ABOVE) for number, old in new.items()}
    for number, descriptor in moved.items():
        os.dup2(descriptor, number)
    least = 3
    for number in sorted(kept):
        os.closerange(least, number)
        least = number + 1
    os.closerange(least, 1 << 16)


def _enter_mounts(namespace: int) -> None:
    """See the mounts of the test, which may have a mount namespace of its own."""
    if os.fstat(namespace).st_ino != Path(_MOUNTS).stat().st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def _show(argv: list[str], environment: list[str]) -> None:
    """Let /proc/self/cmdline and /proc/self/environ show these, in the places of the server's own, which nothing reads
    any more. Their addresses are fields 48 to 51 of /proc/self/stat (proc(5))."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    addresses = [int(field) for field in fields[45:49]]
    for words, start, end in ((argv, addresses[0], addresses[1]), (environment, addresses[2], addresses[3])):
        data = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(data) <= end - start, "more than a forked program can show; it needs subprocess"
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, data, len(data))


def _open_streams(environment: Mapping[str, str]) -> None:
    """Python's standard streams, as a new interpreter opens them."""
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "C"
    errors = "surrogateescape" if locale in ("C", "POSIX") else "strict"
    sys.stdin = open(0, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    sys.stdout = open(  # noqa: SIM115
        1, "w", encoding="utf-8", errors=errors, buffering=1 if os.isatty(1) else -1, closefd=False
    )
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _run_program(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run the module or the code with its arguments; the exit status that an interpreter would end with."""
    os.environ.clear()
    os.environ.update(environment)
    _show(argv, [f"{name}={value}" for name, value in environment.items()])
    time.tzset()
    _open_streams(environment)
    flags, (kind, program, *arguments) = _split(argv)
    reads_environment = not flags & {"-I", "-E"}
    if environment.get("PYTHONWARNINGS") and reads_environment:
        warnings._processoptions(environment["PYTHONWARNINGS"].split(","))  # type: ignore[attr-defined]
    sys.orig_argv = argv
    sys.argv = ["-c" if kind == "-c" else program, *arguments]
    status = 0
    try:
        for place in environment.get("PYTHONPATH", "").split(os.pathsep) if reads_environment else ():
            if place and place not in sys.path:
                sys.path.insert(1, place)
            custom = Path(place, "sitecustomize.py")
            if place and custom.is_file():
                exec(compile(custom.read_text(), str(custom), "exec"), {"__name__": "sitecustomize"})
        if kind == "-m":
            sys.modules.pop(program, None)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ending:
        status = _status_of(ending.code)
    except KeyboardInterrupt:
        traceback.print_exc()
        status = -signal.SIGINT
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    return _finish(status)


def _split(argv: Sequence[str]) -> tuple[set[str], list[str]]:
    """The interpreter's options that come first, of those in _FLAGS, and the rest."""
    words = list(argv[1:])
    flags = set(itertools.takewhile(_FLAGS.__contains__, words))
    return flags, words[len(flags) :]


def _status_of(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _finish(status: int) -> int:
    """Do what an interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = 120
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
