"""The server of :mod:`tests.preloaded`: imports the project's programs, forks, and lets the fork be one of them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
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
from typing import Any, NoReturn

from tests.preloaded import AT_START, LARGEST_REQUEST, MOUNTS, SERVERS, PopenTree, Server, is_in_tree, split, with_fake

PACKAGES = ("ffdl_batch", "ffdl_kubernetes", "ffdl_local", "ffdl_slurm", "tests.fakes.kubernetes")
"""The server imports all their modules, but for those of OTHERS, before it forks."""
BELOW = ("ffdl_batch.collectors", "ffdl_batch.staging")
"""Programs that only the project's own processes start. They are imported before the first tree of forks."""
OTHERS = (*BELOW, "ffdl_batch.store.migrations")
"""And scripts of Alembic."""
LIBRARIES = (
    "anyio._backends._asyncio",
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
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
"""prctl(2)"""
_CONNECTION, _ABOVE = 200, 300
"""Descriptors: a daemon's connection to the server, and above all that programs are given."""
_CLONE_NEWNS = 0x00020000
"""setns(2)"""


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
            data, descriptors = _read_request(clients[number])
            if not data:
                clients.pop(number).close()
                continue
            request = json.loads(data)
            if "signal" in request:
                if request["pid"] in running:
                    os.kill(request["pid"], request["signal"])
                _answer(clients[number], 0)
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
            _answer(clients[number], pid)


def _read_request(client: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its descriptors; empty if the client has ended, also before it read an answer."""
    try:
        data, descriptors, _, _ = socket.recv_fds(client, LARGEST_REQUEST, 64)
    except ConnectionResetError:
        return b"", []
    return data, descriptors


def _answer(client: socket.socket, number: int) -> None:
    """Send an answer, unless the client was killed meanwhile."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.send(str(number).encode())


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
            SERVERS.clear()
            SERVERS[os.getpid()] = Server(socket.socket(fileno=_CONNECTION))
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
    command = with_fake(command, environment)
    unusual = executable or not close_fds or shell or gid or gids or uid or group != -1
    if unusual or not is_in_tree(command) or AT_START & environment.keys():
        _execute(process, *given)
        return
    reading, writing = os.pipe()
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
    os.close(writing)
    os.read(reading, 1)  # as `subprocess` waits for the execution: until the child has closed what it is not given
    os.close(reading)
    process.pid = pid
    process._child_created = True  # type: ignore[attr-defined]
    process._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def _become_below(file: str, args: list[str]) -> NoReturn:
    """Become another program in a process of a tree. Replaces `os.execvp`."""
    if file != args[0] or not is_in_tree(args) or AT_START & os.environ.keys():
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
    if os.fstat(namespace).st_ino != Path(MOUNTS).stat().st_ino:
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
    flags, (kind, program, *arguments) = split(argv)
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
