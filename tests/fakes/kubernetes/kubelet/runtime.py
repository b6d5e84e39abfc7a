"""The parent of one container (or of the process that holds a pod's process namespace): a process of its own, which
kubelet gives orders by lines of JSON and which reports what happened by lines of JSON. Standard library alone.

It ends with its parent, and everything in the container ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from typing import Any

from tests.fakes.kubernetes.kubelet import inside

_CHUNK = 64 * 1024
_DRAIN_S = 0.3
_TICK_S = 0.2
_ROOTED = b"\0"
"""Sent by what will be a container when it has its mounts."""


def say(**said: Any) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


class Log:
    """The container's output, in a file that may be rotated. In its lines are the time, whether the line was ended (F)
    or not (P), and the text."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._rest = {"stdout": b"", "stderr": b""}
        self._descriptor = self._open()

    def _open(self) -> int:
        return os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def add(self, stream: str, data: bytes) -> None:
        *lines, self._rest[stream] = (self._rest[stream] + data).split(b"\n")
        for line in lines:
            self._write(b"F", line)
        if lines:
            say(event="log")

    def end(self) -> None:
        for line in filter(None, self._rest.values()):
            self._write(b"P", line)

    def _write(self, tag: bytes, line: bytes) -> None:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()
        os.write(self._descriptor, b"%s.%09dZ %s %s\n" % (moment, nanoseconds, tag, line))

    def rotate(self) -> None:
        os.close(self._descriptor)
        os.replace(self._file, self._file + ".old")
        self._descriptor = self._open()


class Container:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._log = Log(spec["log"])
        self._streams: dict[int, str] = {}
        self._ended: int | None = None
        self._oom = False
        self._commands = b""
        self._namespace = -1
        self.pid = 0

    def start(self) -> str:
        """Fork and exec; what went wrong, or nothing."""
        if self._spec["pid_namespace"]:
            inside.enter(self._spec["pid_namespace"], inside.NEWPID)
        else:
            inside.unshare(inside.NEWPID)
        pipes = {"stdout": os.pipe(), "stderr": os.pipe()}
        for _, writer in pipes.values():
            os.fchown(writer, self._spec["user"]["uid"], -1)  # so that it can be opened again, as /dev/stdout
        trouble, said = os.pipe()
        go, goes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(goes)
            self._begin(pipes, said, go)
        os.close(said)
        for name, (reader, writer) in pipes.items():
            os.close(writer)
            self._streams[reader] = name
        text = os.read(trouble, len(_ROOTED))
        if text == _ROOTED:
            # Open for as long as this parent lives: a namespace's number is the next one's as soon as nobody has it.
            self._namespace = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY)
            os.write(goes, b"\n")
            text = b""
        while chunk := os.read(trouble, _CHUNK):
            text += chunk
        for descriptor in (trouble, go, goes):
            os.close(descriptor)
        if text:
            os.waitpid(self.pid, 0)
        return text.decode(errors="replace")

    def _begin(self, pipes: dict[str, tuple[int, int]], said: int, go: int) -> None:
        try:
            os.setsid()
            inside.die_with_parent()
            if self._spec["cut_off"]:
                inside.cut_off()
            inside.make_root(self._spec)
            os.write(said, _ROOTED)
            if not os.read(go, 1):  # the parent has died, perhaps before it could take this process with it
                os._exit(127)
            empty = os.open("/dev/null", os.O_RDONLY)
            os.dup2(empty, 0)
            os.dup2(pipes["stdout"][1], 1)
            os.dup2(pipes["stderr"][1], 2)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            inside.become(self._spec["user"])
            os.makedirs(self._spec["cwd"], exist_ok=True)
            os.chdir(self._spec["cwd"])
            argv, environment = self._spec["argv"], self._spec["environment"]
            os.execve(inside.look_up(argv[0], environment["PATH"]), argv, environment)
        except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
            plain = isinstance(error, (FileNotFoundError, PermissionError)) and "unknown" in str(error)
            os.write(said, (str(error) if plain else traceback.format_exc()).encode())
        os._exit(127)

    def serve(self) -> None:
        """Until the container has ended."""
        say(event="started", pid=self.pid)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._reap()
        ended_at = 0.0
        while self._ended is None or (self._streams and time.monotonic() < ended_at + _DRAIN_S):
            ready, _, _ = select.select([0, reader, *self._streams], [], [], _TICK_S)
            for descriptor in ready:
                if descriptor == 0:
                    self._hear()
                elif descriptor == reader:
                    os.read(reader, _CHUNK)
                elif descriptor in self._streams:
                    self._copy(descriptor)
            self._reap()
            self._limits()
            if self._ended is not None and not ended_at:
                ended_at = time.monotonic()
                self._kill_all()
        for descriptor in list(self._streams):  # what is in the pipes still, whoever holds their other ends
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                while descriptor in self._streams:
                    self._copy(descriptor)
        self._log.end()
        say(event="ended", code=self._ended, oom=self._oom)

    def _copy(self, descriptor: int) -> None:
        data = os.read(descriptor, _CHUNK)
        if data:
            self._log.add(self._streams[descriptor], data)
        else:
            os.close(descriptor)
            del self._streams[descriptor]

    def _hear(self) -> None:
        data = os.read(0, _CHUNK)
        if not data:
            self._kill_all()
            os._exit(1)
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            what = command["do"]
            if what == "signal" and self._ended is None:
                os.kill(self.pid, command["signal"])
            elif what == "kill":
                self._kill_all()
            elif what == "rotate":
                self._log.rotate()
            elif what == "oom":
                self._out_of_memory(whole=command["whole"])

    def _out_of_memory(self, *, whole: bool) -> None:
        """Kill for want of memory, as the kernel does: the whole container, or its largest process."""
        found = self._processes()
        if not whole:
            found = sorted((pid for pid in found if pid != self.pid), key=_resident)[-1:]
        self._oom = self._oom or self.pid in found
        events = self._spec["memory_events"]
        with open(events, "r+") as file:  # the same file: it is mounted in the container
            counts = dict(line.split() for line in file)
            for name in ("oom", "oom_kill"):
                counts[name] = str(int(counts[name]) + (len(found) if name == "oom_kill" else 1))
            file.seek(0)
            file.write("".join(f"{name} {count}\n" for name, count in counts.items()))
        for pid in found:
            _kill(pid)

    def _limits(self) -> None:
        limit = self._spec["memory_limit"]
        if limit and self._ended is None and sum(_resident(pid) for pid in self._processes()) > limit:
            self._out_of_memory(whole=True)

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self._ended is None else (0, 0)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._ended = 128 - code if code < 0 else code

    def _processes(self) -> list[int]:
        """Return all processes of the container: those in its mount namespace."""
        own, found = os.readlink(f"/proc/self/fd/{self._namespace}"), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/mnt") == own:
                    found.append(int(pid))
        return found

    def _kill_all(self) -> None:
        """What is left of the container when its first process has ended, as runtimes do. The first process must not
        see the others end: a shell would report that."""
        if self._ended is None:
            _kill(self.pid)
        for pid in self._processes():
            _kill(pid)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def hold(*, cut_off: bool) -> None:
    """Hold a process namespace until the parent ends, with `cut_off` an empty network, too. Process 1 reaps orphans."""
    inside.unshare(inside.NEWPID)
    if cut_off:
        inside.cut_off()
    go, goes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(goes)
        inside.die_with_parent()
        if not os.read(go, 1):  # the parent has died before
            os._exit(1)
        os.close(go)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            signal.sigtimedwait([signal.SIGCHLD], 1.0)
    os.write(goes, b"\n")
    say(event="started", pid=pid)
    while os.read(0, _CHUNK):
        pass
    _kill(pid)


def serve_forks() -> None:
    """Fork a container's parent for each pair of pipes that comes over standard input, a socket, until it is closed.

    A fork costs a tenth of an interpreter's start.
    """
    inside.die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as connection:
        while True:
            asked, pipes, _, _ = socket.recv_fds(connection, 1, 2)
            if not asked:
                return
            if os.fork() == 0:
                connection.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                for number, descriptor in enumerate(pipes):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                main()
                return
            for descriptor in pipes:
                os.close(descriptor)


def main() -> None:
    inside.die_with_parent()
    spec = b""
    while b"\n" not in spec:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            return
        spec += chunk
    known = json.loads(spec)
    if known["mode"] == "hold":
        hold(cut_off=known["cut_off"])
        return
    container = Container(known)
    trouble = container.start()
    if trouble:
        say(event="failed", message=trouble)
    else:
        container.serve()
