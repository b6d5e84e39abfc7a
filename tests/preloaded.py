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
import itertools
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
FFDL = (sys.executable, "-c", "from ffdl_batch.cli.main import main; main()")
FFDL_ADMIN = (sys.executable, "-c", "from ffdl_batch.admin.main import main; main()")
FFDL_SUBMIT = (sys.executable, "-c", "from ffdl_batch.cli.commands.submit import main; main()")
AT_START = frozenset(("PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHOME", "PYTHONMALLOC", "PYTHONDEVMODE"))
"""Variables that an interpreter reads at its start alone: programs that get one are executed."""
SHOWN_BYTES = 64 << 10
"""How much of a forked program's arguments, and of its environment, is seen below /proc."""
FAKES = str(ROOT / "tests" / "fakes" / "bin")
_CALL = re.compile(r"^from (tests\.fakes\.slurm\.\w+) import (\w+)$", re.MULTILINE)
"""What a program of the fake Slurm calls."""
_FLAGS = frozenset(("-I", "-S", "-E", "-P"))
"""Options by which the project's own processes start Python programs."""
MOUNTS = "/proc/self/ns/mnt"
LARGEST_REQUEST = 200_000
"""Bytes; a socket's default send buffer takes a little more."""


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
        environment = os.environ if env is None else env
        command = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
        if self._kind == "tree":
            command = with_fake(command, environment)
        if unusual or umask != -1 or group != -1 or not self._forks(command) or AT_START & environment.keys():
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
        mounts = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            given_on = [number if number != -1 else own for own, number in enumerate(kept)]
            self.pid, self._ended = start_server().fork(request, [*given_on, mounts, *also])
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
            start_server().signal(self.pid, sig)

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
        return is_in_tree(command)


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


def with_fake(command: list[str], environment: Mapping[Any, Any]) -> list[str]:
    """Return the command, or, for a program of the fake Slurm, one that a fork can run in its place."""
    program = command[1:2] if command[:1] == [sys.executable] else command[:1]
    found = shutil.which(program[0], path=environment.get("PATH", os.defpath)) if program else None
    if found is None or os.path.dirname(found) != FAKES:  # noqa: PTH120 - it is done for each process
        return command
    (call,) = _CALL.findall(Path(found).read_text())
    module, function = call
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-S", "-E", "-c", code, *command[command.index(program[0]) + 1 :]]


def _is_forked(command: Sequence[str]) -> bool:
    return len(command) > 2 and command[0] == sys.executable and command[1] in ("-m", "-c")


def is_in_tree(argv: Sequence[str]) -> bool:
    return _is_forked([*argv[:1], *split(argv)[1]])


def split(argv: Sequence[str]) -> tuple[set[str], list[str]]:
    """The interpreter's options that come first, of those in _FLAGS, and the rest."""
    words = list(argv[1:])
    flags = set(itertools.takewhile(_FLAGS.__contains__, words))
    return flags, words[len(flags) :]


class Server:
    """The process that forks, and the connection to it."""

    def __init__(self, own: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._own, self._process, self._lock = own, process, threading.Lock()

    @classmethod
    def start(cls) -> Server:
        """Start one for this process."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            process = _Executed(
                [sys.executable, "-m", "tests.preloaded_server", str(other.fileno()), "-" * SHOWN_BYTES],
                cwd=ROOT,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "PYTHONPATH": str(ROOT),
                    "LC_ALL": "C.UTF-8",
                    "PADDING": "-" * SHOWN_BYTES,
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
        assert len(data) < LARGEST_REQUEST, "a command or environment this large needs subprocess"
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


SERVERS: dict[int, Server] = {}


def start_server() -> Server:
    """Return the server of this process; start it if there is none."""
    if os.getpid() not in SERVERS:
        SERVERS[os.getpid()] = server = Server.start()
        atexit.register(server.end)
    return SERVERS[os.getpid()]


def share_server(parent: int) -> None:
    """Use the server of the process that forked this one, and waits for it."""
    SERVERS[os.getpid()] = SERVERS[parent]
