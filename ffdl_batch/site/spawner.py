"""The spawner: starts a user's daemon as that user. It runs as root, so it imports the standard library only.

There is one request, ``ensure UID``. docs/security/spawner.md explains each check. The main process identifies the
caller by SO_PEERCRED, counts, and forks; it reads nothing from a caller, and queries no name service. A child with a
time limit reads the request, checks the account, and answers. To start a daemon, it runs this program with UID as a
unit of systemd: that process binds the socket, becomes the user, and executes the daemon.

    python -I -m ffdl_batch.site.spawner [FILE [UID]]        FILE: the site file, default /etc/ffdl/site.toml
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import grp
import os
import pwd
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field  # noqa: TID251 - the standard library alone
from pathlib import Path
from typing import NoReturn

LISTENING = 3  # the descriptor of the daemon's socket, as in sd_listen_fds(3)
REQUEST_BYTES, REQUEST_S, CHILD_S = 32, 2.0, 20
"""Limits of a request's size, the time to receive it, and the total time of a child: name services may hang."""
CHILDREN, CHILDREN_OF_PEER, WINDOW_S = 32, 4, 60.0
NO_UIDS = (0, 65534, 65535, 0xFFFFFFFF)  # root, the overflow uid, and the two values that mean "no user" (chown(2))
_REQUEST = re.compile(rb"ensure ([1-9][0-9]{0,9})\n")
_SUBUID = re.compile(rb"^[^:\n]*:([0-9]+):([0-9]+)\s*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,127}\$?", re.ASCII)
OTHER_UIDS = ((0, 999), (61184, 65535), (524288, 1879048191))  # of systems, DynamicUser= and nspawn (systemd.io)
KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 288}  # the number of keyctl(2)
PAM_SILENT = 0x8000  # <security/_pam_types.h>


class Refused(Exception):
    """The request is refused; its text is sent to the caller."""


@dataclass(frozen=True)
class Site:
    """The table `[spawner]` of the site file."""

    hub_user: str = "ffdl"
    """The account of the hub, which may ask for every user's daemon."""
    allowed_groups: list[str] = field(default_factory=list)
    """Only members of one of these groups get a daemon; [] = every account that PAM admits."""
    min_uid: int = 1000
    run_dir: str = "/run/ffdl"
    state_dir: str = "/var/lib/ffdl"
    """On a local disk. Each user has a directory in it, named by the uid."""
    pam_service: str = "ffdl-user"
    systemd: bool = True
    """Whether each daemon is a unit of systemd. Without it, only PAM limits daemons: for tests and containers."""
    starts_per_minute: int = 6
    """How often the daemon of one user may be started. A user may make ten times as many requests."""
    no_new_privs: bool = True
    tenants: Mapping[str, int] = field(default_factory=dict)
    """Tenants with a daemon but no account, by name: the uid of the daemon, which uses Kubernetes only."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables for every daemon, such as SLURM_CONF."""


def load(path: Path) -> Site:
    """Read the site file. Raises ValueError if its content is wrong, and OSError."""
    check_root_owned(path := path.resolve())
    table = tomllib.loads(path.read_text(encoding="utf-8")).get("spawner", {})
    for key, value in table.items():
        if (default := getattr(Site(), key, None)) is None:
            raise ValueError(f"[spawner] has no key {key}")
        parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        kind = int if key == "tenants" else str
        wrong = type(value) is not type(default) or not all(type(one) is kind and "\0" not in str(one) for one in parts)
        if wrong or (key.endswith("_dir") and not value.startswith("/")):
            raise ValueError(f"{key} in [spawner] must be like {default!r}")
    return Site(**table)


def check_root_owned(path: Path) -> None:
    """Refuse a file that a user other than root can replace or write. Raises ValueError, OSError."""
    for place in (path.resolve(), *path.resolve().parents):
        found = place.stat()
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (found.st_mode & 0o022 and not sticky):
            raise ValueError(f"{place} can be changed by users other than root (owner {found.st_uid})")


def answer(connection: socket.socket, text: str) -> None:
    """Send one line. A caller who has gone, or does not read, gets none."""
    with contextlib.suppress(OSError):
        connection.settimeout(REQUEST_S)
        connection.sendall(text.encode("ascii", "backslashreplace")[:500] + b"\n")


def log(text: str) -> None:
    """Write a line to standard error, which systemd passes to the journal. Do not log text from a caller."""
    with contextlib.suppress(OSError):
        os.write(2, f"ffdl-spawner: {text}\n".encode("ascii", "backslashreplace"))


class Spawner:
    """The main process until `_fork`, then the child that handles one request."""

    def __init__(self, config: Path) -> None:
        self.config, self.site = config, (site := load(config))
        self.tenants = {uid: name for name, uid in site.tenants.items()}
        if len(self.tenants) < len(site.tenants):
            raise ValueError("two tenants in [spawner] have the same uid")
        self.hub_uid, self.hub_gid = pwd.getpwnam(site.hub_user)[2:4]
        self.children: dict[int, int] = {}  # uid of the peer by process id
        self.requests, self.window = Counter[int](), time.monotonic()

    def serve(self, listening: socket.socket) -> NoReturn:
        """Accept connections forever."""
        while True:
            self._reap()
            try:
                connection, _ = listening.accept()
                with connection:
                    uid = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
                    uid = NO_UIDS[1] if is_subordinate(uid) else uid  # all count as one user
                    if (why := self._limit(uid)) or not self._fork(listening, connection, uid):
                        answer(connection, f"later {why or 'the host cannot start another process'}")
            except OSError:  # a time-out, or no descriptor is free
                time.sleep(0.05)

    def _limit(self, uid: int) -> str:
        """Return why this peer must wait; "" if it need not."""
        if time.monotonic() - self.window >= WINDOW_S:
            self.requests, self.window = Counter(), time.monotonic()
        self.requests[uid] += 1
        if uid != self.hub_uid and self.requests[uid] > 10 * self.site.starts_per_minute:
            return "you sent too many requests; wait a minute"
        running = [one for one in self.children.values() if (one == self.hub_uid) == (uid == self.hub_uid)]
        if len(running) >= CHILDREN or (uid != self.hub_uid and running.count(uid) >= CHILDREN_OF_PEER):
            return "too many requests are being handled"
        return ""

    def _fork(self, listening: socket.socket, connection: socket.socket, uid: int) -> bool:
        try:
            child = os.fork()
        except OSError:
            return False
        if child:
            self.children[child] = uid
            return True
        try:
            listening.close()
            signal.alarm(CHILD_S)  # its default action ends the child, whatever hangs
            self._handle(connection, uid)
        except BaseException as error:  # noqa: BLE001
            log(f"request of user {uid} failed: {error!r}")
        finally:
            os._exit(0)  # the child must never return into the loop

    def _reap(self) -> None:
        """Forget the children that have ended."""
        while self.children:
            child, _ = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            self.children.pop(child, None)

    def _handle(self, connection: socket.socket, peer: int) -> None:
        """Read the request and answer it. The socket keeps messages apart, so one call receives all of it."""
        try:
            connection.settimeout(REQUEST_S)
            if (found := _REQUEST.fullmatch(connection.recv(REQUEST_BYTES))) is None:
                raise Refused("the request is not `ensure UID`")
            uid = int(found[1])
            if peer not in (self.hub_uid, uid):
                raise Refused(f"user {peer} may not ask for the daemon of user {uid}")
            place = self._ensure(self._check(uid))
        except (Refused, KeyError, ValueError) as refusal:  # KeyError: there is no such account or group
            log(f"user {peer}: refused: {refusal}")
            answer(connection, f"refused {refusal}")
        except OSError as error:
            log(f"user {peer}: {error}")
            answer(connection, f"later the daemon could not be started: {error.strerror or 'unknown error'}")
        else:
            answer(connection, f"ok {place}")

    def _check(self, uid: int) -> pwd.struct_passwd:
        """Return the account, if it may have a daemon now. Queries name services and PAM each time."""
        if not self.site.min_uid <= uid < NO_UIDS[-1] or uid in (*NO_UIDS, self.hub_uid) or is_subordinate(uid):
            raise Refused(f"uid {uid} is not a user account: reserved, below min_uid, or in a range of /etc/subuid")
        if uid in self.tenants:
            return self._make_account(uid, self.tenants[uid])
        account = pwd.getpwuid(uid)
        if account.pw_uid != uid or not _NAME.fullmatch(account.pw_name) or account.pw_gid == 0:
            raise Refused(f"the account of uid {uid} has an unusable name or group")
        if self.site.allowed_groups:
            allowed = {grp.getgrnam(name).gr_gid for name in self.site.allowed_groups}
            if not allowed & set(os.getgrouplist(account.pw_name, account.pw_gid)):
                raise Refused(f"user {uid} is in none of the groups {', '.join(self.site.allowed_groups)}")
        call_pam("pam_acct_mgmt", self.site.pam_service, account.pw_name)  # locked, expired, not admitted to this host
        return account

    def _make_account(self, uid: int, tenant: str) -> pwd.struct_passwd:
        """Return the account of a tenant's daemon, which no name service has. Raises Refused if the uid is not free."""
        for find in (pwd.getpwuid, grp.getgrgid):
            with contextlib.suppress(KeyError):
                raise Refused(f"uid {uid} of tenant {tenant!r} already belongs to account or group {find(uid)[0]!r}")
        ranges = any(first <= uid <= last for first, last in OTHER_UIDS)
        if ranges or not _NAME.fullmatch(tenant) or os.getgrouplist(tenant, uid) != [uid]:
            raise Refused(f"tenant {tenant!r} has an invalid name or is listed in a group, or its uid {uid} is in a "
                          "reserved range (DynamicUser=, containers); choose another in [spawner] tenants")  # fmt: skip
        return pwd.struct_passwd((tenant, "x", uid, uid, "", f"{self.site.state_dir}/{uid}/state", ""))

    def _ensure(self, account: pwd.struct_passwd) -> str:
        """Start the daemon if nothing listens at its socket; return the path of the socket."""
        own = Path(self.site.run_dir, "users", str(account.pw_uid))
        make_root_directory(own)
        place = own / "daemon.sock"
        with (own / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._make_state(account)
            if not is_listening(place):
                self._count_start(own)
                self._start(account, place)
        return str(place)

    def _count_start(self, own: Path) -> None:
        """Record the start. Raises OSError if there were too many."""
        file, now = own / "starts", time.monotonic()
        recent = [t for t in (file.read_text().split() if file.exists() else []) if 0 <= now - float(t) < WINDOW_S]
        if len(recent) >= self.site.starts_per_minute:
            raise OSError(errno.EAGAIN, f"it was started {len(recent)} times within a minute; read its log")
        file.write_text(" ".join([*recent, f"{now:.3f}"]))

    def _make_state(self, account: pwd.struct_passwd) -> None:
        """Create the user's directory, bound to the account's name, so that a later owner of the uid cannot use it."""
        own = Path(self.site.state_dir, str(account.pw_uid))
        make_root_directory(own)
        name, state = own / "account", own / "state"
        if (name.read_text() if name.exists() else "") != account.pw_name:
            if state.exists():
                raise Refused(f"uid {account.pw_uid} had another name before; an administrator must move {own} away")
            name.write_text(account.pw_name)
        state.mkdir(mode=0o700, exist_ok=True)
        os.chown(state, account.pw_uid, account.pw_gid, follow_symlinks=False)

    def _start(self, account: pwd.struct_passwd, place: Path) -> None:
        """Start the process that becomes the daemon; return when it listens. Raises OSError, Refused."""
        place.unlink(missing_ok=True)
        argv = [sys.executable, "-I", "-m", "ffdl_batch.site.spawner", str(self.config), str(account.pw_uid)]
        kind = "tenant" if account.pw_uid in self.tenants else "user"  # each kind has a drop-in with its sandbox
        unit = f"ffdl-{kind}-{account.pw_uid}-{os.getpid()}.service"  # not an earlier daemon's, whose jobs may run
        if self.site.systemd:
            names = [f"--unit={unit}", f"--slice=ffdl-users-{account.pw_uid}.slice", "--collect", "--no-ask-password"]
            properties = ["-pType=notify", "-pKillMode=process", f"-pTimeoutStartSec={CHILD_S}"]
            argv = ["/usr/bin/systemd-run", *names, *properties, "--", *argv]
        no, pipe = subprocess.DEVNULL, subprocess.PIPE
        process = subprocess.Popen(argv, stdin=no, stdout=no, stderr=pipe, env={"LC_ALL": "C"}, start_new_session=True)

        def end(*_: object) -> NoReturn:
            process.kill()  # else the daemon would listen at a lost socket; systemd ends its unit by TimeoutStartSec=
            raise TimeoutError(errno.ETIMEDOUT, f"it did not listen within {CHILD_S} s")

        signal.signal(signal.SIGALRM, end)
        while not is_listening(place):
            time.sleep(0.01)
            if (status := process.poll()) is not None and not is_listening(place):
                if status < 0:
                    raise OSError(errno.EINTR, f"signal {-status} ended it")
                said = b"" if process.stderr is None else os.read(process.stderr.fileno(), 4096)
                why = " ".join(said.decode("ascii", "replace").split())[-400:] or "it ended at once"
                raise Refused(f"the daemon of user {account.pw_uid} could not be started: {why}")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        log(f"started {unit if self.site.systemd else f'process {process.pid}'} as user {account.pw_uid}")

    def become(self, uid: int) -> NoReturn:
        """Become the daemon: bind its socket, set limits and identity, leave no way back to root, then execve."""
        signal.alarm(CHILD_S)
        site, account = self.site, self._check(uid)
        place = Path(site.run_dir, "users", str(uid), "daemon.sock")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # SO_PEERCRED names the process that listens
        bound.bind(str(place))
        place.chmod(0o660)
        os.chown(place, uid, self.hub_gid, follow_symlinks=False)
        if uid not in self.tenants:
            call_pam("pam_open_session", site.pam_service, account.pw_name)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        Path("/proc/self/oom_score_adj").write_text("0")  # not the spawner's
        os.dup2(fcntl.fcntl(bound, fcntl.F_DUPFD, LISTENING + 1), LISTENING)
        os.closerange(LISTENING + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        drop_privileges(account, no_new_privs=site.no_new_privs)
        os.chdir("/")
        os.umask(0o077)
        signal.alarm(0)
        environment = {
            **{"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", **site.environment},
            **{"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name},
            **{"SHELL": account.pw_shell or "/bin/sh", "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())},
            **{"FFDL_STATE_DIR": f"{site.state_dir}/{uid}/state", "FFDL_SOCKET": str(place)},
            **{"FFDL_HUB_UID": str(self.hub_uid), "FFDL_TENANT": self.tenants.get(uid, "")},
            **{name: os.environ[name] for name in ("NOTIFY_SOCKET",) if name in os.environ},
        }
        if "NOTIFY_SOCKET" not in environment:  # systemd sets it, and gives standard error to the journal
            os.dup2(0, 2)
        os.execve(sys.executable, [sys.executable, "-I", "-m", "ffdl_batch.daemon.main", "--site"], environment)  # noqa: S606


def is_subordinate(uid: int) -> bool:
    """Return whether /etc/subuid (subuid(5)) assigns the uid to a user's namespaces."""
    file = Path("/etc/subuid")
    ranges = _SUBUID.findall(file.read_bytes() if file.exists() else b"")
    return any(int(start) <= uid < int(start) + int(count) for start, count in ranges)


def make_root_directory(place: Path) -> None:
    """Create a directory of root that others may traverse, unless it exists. Raises Refused if it is another user's."""
    for directory in (place.parent, place):
        try:
            directory.mkdir(mode=0o711)
            directory.chmod(0o711)  # whatever the umask is
        except FileExistsError:
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
                raise Refused(f"{directory} is not a directory that only root can change") from None


def is_listening(place: Path, kind: int = socket.SOCK_STREAM) -> bool:
    """Return whether a process listens at the socket. A hanging one counts: the connection stays in its backlog."""
    with socket.socket(socket.AF_UNIX, kind) as asked:
        asked.setblocking(False)
        return asked.connect_ex(str(place)) in (0, errno.EAGAIN)


def drop_privileges(account: pwd.struct_passwd, *, no_new_privs: bool) -> None:
    """Become the user permanently. Raises RuntimeError if the process could become root again."""
    uid, gid = account.pw_uid, account.pw_gid
    os.initgroups(account.pw_name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    keyring = libc.syscall(KEYCTL[os.uname().machine], 1, None)  # KEYCTL_JOIN_SESSION_KEYRING, else it is root's
    if (keyring < 0 and ctypes.get_errno() != errno.ENOSYS) or (no_new_privs and libc.prctl(38, 1, 0, 0, 0) != 0):
        raise OSError(ctypes.get_errno(), "the keyring or no_new_privs cannot be set")  # 38: PR_SET_NO_NEW_PRIVS
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or 0 in os.getgroups():
        raise RuntimeError("the process still has an identity of root")
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")) and int(line.split()[1], 16) != 0:
            raise RuntimeError("the process still has a capability")
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise RuntimeError("the process could become root again")


def call_pam(function: str, service: str, name: str) -> None:
    """Call a function of PAM (pam(3)) for an account, without password or prompt. Raises Refused.

    The session is not closed: its limits stay with this process, which becomes the daemon.
    """
    pam = ctypes.CDLL("libpam.so.0")
    pam.pam_strerror.restype = ctypes.c_char_p
    handle, conversation = ctypes.c_void_p(), (ctypes.c_void_p * 2)()  # struct pam_conv without a function
    status = pam.pam_start(service.encode(), name.encode(), ctypes.byref(conversation), ctypes.byref(handle))
    if status == 0:
        status = getattr(pam, function)(handle, PAM_SILENT)
    if status != 0:
        raise Refused(f"PAM does not admit the account: {pam.pam_strerror(handle, status).decode('ascii', 'replace')}")


def main() -> None:
    """Check what root will execute, bind the socket, and serve."""
    config = Path(sys.argv[1] if len(sys.argv) > 1 else "/etc/ffdl/site.toml").absolute()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.geteuid() != 0 or not sys.flags.isolated:
            raise ValueError("run it as root, with python -I")
        programs = [Path(text) for text in (__file__, os.__file__, sys.executable, *sys.path) if Path(text).exists()]
        for place in (config.parent, Path(sys.executable).parent, *programs):
            check_root_owned(place)
        spawner = Spawner(config)
        os.umask(0o077)
        if spawner.site.systemd and not Path("/run/systemd/system").is_dir():  # sd_booted(3)
            raise ValueError("systemd is not running on this host; set systemd = false")
        for directory in (Path(spawner.site.run_dir, "users"), Path(spawner.site.state_dir)):
            make_root_directory(directory)
            check_root_owned(directory)
        if len(sys.argv) > 2:
            spawner.become(int(sys.argv[2]))
        place = Path(spawner.site.run_dir, "spawner.sock")
        if is_listening(place, socket.SOCK_SEQPACKET):
            raise ValueError(f"another spawner listens at {place}")
        place.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(place))
        place.chmod(0o666)  # every user may ask for their own daemon
        listening.listen(128)
        listening.settimeout(1.0)
    except (ValueError, OSError, KeyError, RuntimeError, Refused) as error:
        log(f"cannot start with {config}: {error}")
        sys.exit(78)
    log(f"serving at {place}")
    spawner.serve(listening)


if __name__ == "__main__":
    main()
