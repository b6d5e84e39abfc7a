"""Run one command inside a learner: the learner's agent starts it, and this process controls it from outside.

Users cannot enter a container that a setuid program created, because its namespaces belong to the system's user
namespace. So the agent, which is in the container from the start, forks a shell with pipes. This process opens their
other ends through /proc/<pid>/fd, as the same user may (proc(5), PTRACE_MODE_READ), and a terminal through
/proc/<pid>/root/dev/pts. The shell evaluates what it reads from its control pipe. The command has the learner's files,
environment, network, cgroup and user, because it is a child of the learner's own shell.

When the control pipe closes, the shell ends what it started. It finds those processes by a variable in their
environment, also if they left the session.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import termios
import time
from typing import List, Mapping, Optional, Sequence, Tuple

from ffdl_batch.controller.learner.agents import Agent, children, lives
from ffdl_batch.controller.learner.environment import ansi_c
from ffdl_batch.domain.launch.attach_protocol import HOLD, HOLD_PATH
from ffdl_batch.host.processes import all_processes, descendants, name_of, send, session_members

START_S = 10.0
"""Seconds that an agent may take to fork."""
TIOCGPTN, TIOCSPTLCK = 0x80045430, 0x40045431  # <asm-generic/ioctls.h>
PTMX = os.makedev(5, 2)
VARIABLE = "FFDL_SESSION"

_FIND = r"""
find_it() {
    local path why place=learner
    [ -e /.singularity.d ] && place="learner's container"
    case $1 in
        */*) path=$1 ;;
        *) path=$(type -P -- "$1") ;;
    esac
    if [ -z "$path" ]; then why='command not found'
    elif [ ! -e "$path" ]; then why='no such file'
    elif [ -d "$path" ]; then why='is a directory'
    elif [ ! -x "$path" ]; then why='is not executable'
    else return 0
    fi
    printf 'ffdl exec: %s: %s in the %s\n' "$1" "$why" "$place" >&2
    [ -e "$path" ] && return 126
    return 127
}
"""
"""Shell function that checks whether a command can start. Like a shell, it returns 127 if there is none, 126 if it is
not executable."""
_HOLDING = f"""
if [ -n "${{{HOLD}-}}" ]; then
    for hold in {{1..100}}; do [ -p {HOLD_PATH} ] && break; sleep 0.1; done
    exec 9>{HOLD_PATH} && echo >&9
fi
unset {HOLD}
"""
"""Opens the pipe of an interactive job's learner. Only this shell has it open, so that it closes with the session."""
_PROGRAM = r"""
each() {
    for file in $(grep -lsF "FFDL_SESSION=$id" /proc/[0-9]*/environ); do
        file=${file#/proc/}
        kill -s "$1" "${file%/environ}" && hit=yes
    done
} 2>/dev/null
sweep() {
    for name in HUP TERM '' '' '' '' KILL KILL; do
        hit=
        each "${name:-0}"
        [ -n "$hit" ] || return 0
        sleep 0.4
    done
}
exec 6</dev/fd/6
( while IFS= read -r name <&6; do each "$name"; done; sweep ) </dev/null >/dev/null 2>&1 7>&- 9>&- &
watcher=$!
start=()
if command -v setsid >/dev/null; then
    start=(setsid)
elif command -v python3 >/dev/null; then
    start=(python3 -c 'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])')
fi
find_it "$1"
status=$?
exec 8>&2 2>/dev/null
if [ "$status" = 0 ]; then
    FFDL_SESSION=$id "${start[@]}" "$@" 2>&8 6>&- 7>&- 8>&- 9>&-
    status=$?
fi
exec </dev/null >/dev/null 8>&-
sweep
printf '%s\n' "$status" >&7
[ -z "$hold" ] || printf '%s\n' "$status" >&9
kill "$watcher"
"""
_PIPES = "exec 0</dev/fd/3 1>/dev/fd/4 2>/dev/fd/5 3>&- 4>&- 5>&-\n"
_TERMINAL = "exec </dev/null >/dev/null 2>&1 3>&- 4>&- 5>&-\n"
_TAKE_TERMINAL = 'exec 0<>"$0" 1>&0 2>&0; ' + _FIND + 'find_it "$1" || exit; exec "$@"'
"""The leader of a session without a terminal gets the first one that it opens (tty_ioctl(4))."""


class NoSession(Exception):
    """No command can be started in the learner; the message says why."""


class Session:
    """A started command. Its descriptors do not block.

    If the command has a terminal, that is `input`, and `output` is None.
    """

    def __init__(
        self, shell: int, control: int, status: int, streams: Tuple[int, Optional[int], Optional[int]]
    ) -> None:
        self.shell, self.control, self.status = shell, control, status
        self.input, self.output, self.errors = streams

    @property
    def has_terminal(self) -> bool:
        """Return whether the command has a terminal."""
        return self.output is None

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        fcntl.ioctl(self.input, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def signal(self, name: str) -> None:
        """Send a signal (name without SIG) to all processes of the command."""
        os.write(self.control, name.encode("ascii") + b"\n")

    def let_go(self) -> None:
        """Let the shell end everything. That takes seconds if a process catches signals."""
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    def kill(self) -> None:
        """Send KILL to the shell and to what it started."""
        table = all_processes()
        for pid in [*_started(self.shell), *descendants(self.shell, table)]:
            send(pid, 9)


def _started(shell: int) -> List[int]:
    table = all_processes()
    return [pid for child in children(shell) for pid in session_members(child, table)]


def start(
    agent: Agent, argv: Sequence[str], variables: Mapping[str, str], window: Optional[Tuple[int, int]] = None
) -> Session:
    """Start `argv` in the agent's learner, in the directory of its command. Raises NoSession.

    `window` has the rows and columns of a terminal for the command; None means no terminal.
    """
    name = f"ffdl-{os.urandom(4).hex()}"
    shell = _fork(agent, name)
    opened = []  # type: List[int]

    def end(number: int, flags: int) -> int:
        opened.append(_open_pipe(shell, number, flags))
        return opened[-1]

    try:
        control, status = end(6, os.O_WRONLY), end(7, os.O_RDONLY)
        words, head = list(argv), _PIPES
        if window is None:
            streams = (end(3, os.O_WRONLY), end(4, os.O_RDONLY), end(5, os.O_RDONLY))  # type: Tuple[int, Optional[int], Optional[int]]
        else:
            master, path = _open_terminal(agent.pid)
            opened.append(master)
            words, head = ["bash", "-c", _TAKE_TERMINAL, path, *argv], _TERMINAL
            streams = (master, None, None)
        session = Session(shell, control, status, streams)
        if window is not None:
            session.resize(*window)
        exports = "".join(f"export {key}={ansi_c(value)}\n" for key, value in variables.items())
        placed = "set -- " + " ".join(map(ansi_c, words))
        _write_all(control, f"{head}{exports}id={name}\n{placed}\nhold=\n{_HOLDING}{_FIND}{_PROGRAM}\0".encode("ascii"))
    except OSError as error:
        for descriptor in opened:
            os.close(descriptor)
        raise NoSession(f"learner {agent.learner} cannot be reached: {error}") from error
    return session


def _fork(agent: Agent, name: str) -> int:
    """Let the agent fork a shell, and return its process id. Raises NoSession."""
    try:
        mailbox = _open_pipe(agent.pid, 9, os.O_WRONLY)
        try:
            os.write(mailbox, name.encode("ascii") + b"\n")
        finally:
            os.close(mailbox)
    except OSError as error:
        raise NoSession(f"learner {agent.learner} cannot be reached: {error}") from error
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        for pid in children(agent.pid):
            if name_of(pid) == name:
                return pid
        if not lives(agent):
            raise NoSession(f"learner {agent.learner} has ended")
        time.sleep(0.005)
    raise NoSession(f"learner {agent.learner} started nothing in {START_S:g} s; it may be stopped, or out of memory")


def _open_pipe(pid: int, number: int, flags: int) -> int:
    """Open the other end of a pipe of a process. Raises OSError, also if it is not a pipe."""
    descriptor = os.open(f"/proc/{pid}/fd/{number}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"descriptor {number} of process {pid} is not a pipe")


def _open_terminal(pid: int) -> Tuple[int, str]:
    """Open a new terminal in the file system of a process.

    Return the master and the terminal's path. Raises OSError.
    """
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    path = f"/proc/{pid}/root/dev/pts/ptmx"
    try:
        master = os.open(path, flags)
    except PermissionError:  # on hosts it is closed, and /dev/ptmx is open to all (mount option ptmxmode)
        master = os.open(f"/proc/{pid}/root/dev/ptmx", flags)
    if os.fstat(master).st_rdev != PTMX:
        os.close(master)
        raise OSError(errno.ENOTTY, "it is not a terminal multiplexer", path)
    fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("I", fcntl.ioctl(master, TIOCGPTN, struct.pack("I", 0)))
    return master, f"/dev/pts/{number}"


def _write_all(descriptor: int, data: bytes) -> None:
    """Write to a pipe that does not block, so that a shell that does not read cannot hold this process. Raises
    OSError."""
    end = time.monotonic() + START_S
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, "its shell does not read") from None
            time.sleep(0.005)
