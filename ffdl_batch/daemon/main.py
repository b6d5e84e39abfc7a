"""The command ``ffdl-submitd``. It imports the web framework and the database only after it has the lock."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import pwd
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch import __version__
from ffdl_batch.config.daemon_location import LOG_NAME, PlaceRefused, this_machine
from ffdl_batch.daemon.socket_file import (
    BACKLOG,
    INHERITED,
    InheritedListener,
    Listener,
    is_inherited,
    report_readiness,
)
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.resource_exhaustion import FILES, explain_lack
from ffdl_batch.host.users import TENANT

if TYPE_CHECKING:
    from ffdl_batch.config import Settings
    from ffdl_batch.daemon.platform import Platform
    from ffdl_batch.daemon.settings_watch import SettingsWatch
    from ffdl_batch.services.daemon_lock import Hold, TakeOver

_STDERR = 2
FEWEST_DESCRIPTORS = 16
"""Minimum limit of descriptors. With fewer, the daemon could open database and socket, but answer no request."""
_OF_THOSE_THAT_RUN = ("; the daemon continues by itself", "; what was accepted continues by itself")
Opener = Callable[["Settings"], "Platform"]
"""Opens the platform; tests pass one with their own scheduler."""


def main(arguments: Sequence[str] | None = None, *, opener: Opener | None = None) -> int:
    """Run the command; return its exit status."""
    try:
        return _main(arguments, opener)
    finally:
        _drop_unwritten()


def _main(arguments: Sequence[str] | None, opener: Opener | None) -> int:
    options = _parser().parse_args(arguments)
    options.restarts = arguments is None and not options.site  # else another program, or the spawner, began this
    os.umask(0o077)
    if options.site:
        if not is_inherited(os.environ):
            return _end("--site is for the site's spawner, which passes a socket", ExitCode.USAGE)
        with contextlib.closing(socket.socket(fileno=os.dup(INHERITED))) as bound:
            bound.listen(BACKLOG)  # before the large imports; clients wait in the backlog
        report_readiness(os.environ)
    try:
        if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < FEWEST_DESCRIPTORS:
            return _end(f"the daemon ends: {FILES}", ExitCode.TRY_AGAIN)
        gc.disable()  # enabled again when the server has created its permanent objects
        return _serve(options, opener)
    except PlaceRefused as refusal:
        return _end(f"{refusal}" + (f" ({refusal.cure})" if refusal.cure else ""), refusal.exit_code)
    except Exception as error:
        lack = explain_lack(error)
        if not lack:
            raise
        return _end(f"the daemon ends: {lack}", ExitCode.TRY_AGAIN)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ffdl-submitd",
        description="Run the daemon of ffdl_batch. Commands start it when they need it, and it exits by itself.",
    )
    parser.add_argument("--version", action="version", version=f"ffdl-submitd {__version__}")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--personal", action="store_true", help="one daemon for this user, with its own socket (default)")
    mode.add_argument("--site", action="store_true", help="serve at the socket that the site's spawner has bound")
    parser.add_argument("--foreground", action="store_true", help=f"log to standard error instead of {LOG_NAME}")
    parser.add_argument(
        "--take-over", action="store_true", help="replace a lock holder that is proven dead, else print why it is not"
    )
    parser.add_argument(
        "--force-take-over-from",
        metavar="HOST",
        default="",
        help="replace the lock holder on HOST; use it only if HOST is permanently gone, or two daemons write to one "
        "database",
    )
    parser.add_argument(
        "--directory", metavar="DIR", type=Path, help="read ffdl.toml in DIR instead of the working directory's"
    )
    return parser


def _serve(options: argparse.Namespace, opener: Opener | None) -> int:
    from ffdl_batch.config import ConfigError, load_settings
    from ffdl_batch.config.load import home_directory
    from ffdl_batch.services.daemon_lock import AlreadyServed, HeldElsewhere, TakeOver

    try:
        if not os.environ.get(TENANT):
            pwd.getpwuid(os.getuid())
    except KeyError:
        who = f"user {os.getuid()} is not in the password database, so jobs would have no owner name"
        return _end(f"{who}; check `getent passwd {os.getuid()}` on this host", ExitCode.UNAVAILABLE)
    # cron sets no HOME in some shells, and our children (sbatch, apptainer) need it.
    os.environ.setdefault("HOME", str(home_directory(os.environ)))
    try:
        settings = load_settings(cwd=options.directory, site=options.site)
        if not options.site:
            _refuse_moved(Path(settings.state_dir))
        elif _takes_over(settings):
            settings = load_settings(cwd=options.directory, site=True)
        hold = _hold(settings, TakeOver(options.take_over, options.force_take_over_from))
    except ConfigError as error:
        return _end(f"the configuration cannot be used: {error}", ExitCode.BAD_MANIFEST)
    except AlreadyServed as served:
        return _end(str(served), ExitCode.OK)
    except HeldElsewhere as held:
        return _end(str(held), held.exit_code)
    except OSError as error:
        return _end(f"the configuration or the state directory cannot be used: {describe(error)}", ExitCode.TRY_AGAIN)
    watch = _watch(settings, options.directory) if options.restarts else None
    try:
        ended = _run(settings, hold, opener, watch, options)
    finally:
        hold.release()
    if watch is not None and watch.restarts:
        _restart(options)
    return ended


def _watch(settings: Settings, directory: Path | None) -> SettingsWatch | None:
    """Return the watch of the configuration files; None if this process does not know the command that began it."""
    from ffdl_batch.daemon.settings_watch import SettingsWatch

    given = sys.argv[1:]
    return SettingsWatch(settings, directory) if sys.orig_argv[len(sys.orig_argv) - len(given) :] == given else None


def _restart(options: argparse.Namespace) -> None:
    """Execute this program again, in this process and with its environment. A lock of another host is not taken over
    again."""
    begin = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    given = ["--personal", *(["--foreground"] if options.foreground else [])]
    given += ["--directory", str(options.directory)] if options.directory else []
    _drop_unwritten()
    os.execv(sys.executable, [sys.executable, *begin, *given])  # noqa: S606 - without a shell


def _refuse_moved(state_dir: Path) -> None:
    """Raise PlaceRefused if the site's daemon has taken over the jobs of this state directory."""
    from ffdl_batch.config.load import TAKEN_OVER

    mark = state_dir / TAKEN_OVER
    if mark.exists():
        raise PlaceRefused(
            f"the site's daemon has taken over the jobs in {state_dir}",
            "run ffdl on the hub's host without FFDL_STATE_DIR and FFDL_SOCKET, or log in: ffdl login https://HUB; "
            f"if the site no longer has a hub, put its database back and remove {mark} (docs/site-mode.md)",
            ExitCode.UNAVAILABLE,
        )


def _takes_over(settings: Settings) -> bool:
    """Return whether the jobs of the user's personal daemon were taken over now."""
    from ffdl_batch.config.load import personal_state_dir
    from ffdl_batch.config.settings import database_file

    if settings.database_url or database_file(settings.state_dir).exists():
        return False
    from ffdl_batch.daemon.personal_jobs import take_over_personal_jobs

    return take_over_personal_jobs(Path(settings.state_dir), personal_state_dir(os.environ))


def _hold(settings: Settings, take_over: TakeOver) -> Hold:
    """Take the lock of the state directory; it contains this process's name and the digests of its settings."""
    from ffdl_batch.config.fingerprint import take_fingerprints
    from ffdl_batch.services.daemon_lock import acquire, own_record

    machine = this_machine()
    record = replace(own_record(machine), settings=take_fingerprints(settings, os.environ))
    return acquire(Path(settings.state_dir), record, machine, take_over)


def _run(
    settings: Settings, hold: Hold, opener: Opener | None, watch: SettingsWatch | None, options: argparse.Namespace
) -> int:
    from ffdl_batch.daemon.log_file import log_to
    from ffdl_batch.daemon.platform import open_platform
    from ffdl_batch.store import DatabaseMissing, StoreError, StoreUnavailable

    with _without_pydantic_v1():
        from ffdl_batch.daemon.server import Daemon

    log_path = Path(settings.state_dir) / LOG_NAME
    faulthandler.register(signal.SIGUSR1, _STDERR, all_threads=True)  # works if all threads hang
    try:
        log_to(None if options.foreground else log_path, log_json=settings.log_json)
        platform = (opener or open_platform)(settings)
    except StoreUnavailable as error:
        return _end(explain_lack(error) or without_promises(str(error)), ExitCode.TRY_AGAIN)
    except DatabaseMissing as error:
        return _end(str(error), ExitCode.BAD_MANIFEST)
    except StoreError as error:
        return _end(str(error), ExitCode.UNAVAILABLE)
    except OSError as error:
        return _end(f"a directory cannot be created or written to: {describe(error)}", ExitCode.TRY_AGAIN)
    # The socket's path depends on the state directory, also if ffdl.toml sets that.
    environ = {**os.environ, "FFDL_STATE_DIR": settings.state_dir}
    try:
        listener = (InheritedListener if options.site else Listener)(environ)
        Daemon(platform, hold, listener, "standard error" if options.foreground else str(log_path), watch).run()
    finally:
        platform.close()
    return ExitCode.OK


@contextlib.contextmanager
def _without_pydantic_v1() -> Iterator[None]:
    """Inside, an import of `pydantic.v1` raises ImportError, as None in `sys.modules` does.

    FastAPI imports it for the question whether a type is one of its models, and takes ImportError for no. No type of
    this package is one, and the import costs every daemon 1.5 MiB.
    """
    name = "pydantic.v1"
    if name in sys.modules:  # another part of this process has it already
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented for sys.modules
    try:
        yield
    finally:
        del sys.modules[name]


def describe(error: OSError) -> str:
    """Return why a daemon cannot start, with the cure if there is one."""
    from ffdl_batch.services.os_errors import explain

    return explain_lack(error) or without_promises(str(explain(error, str(error.filename or "")) or error))


def without_promises(sentence: str) -> str:
    """Return `sentence` without the promises of a running daemon: one that ends at its start continues nothing."""
    for promise in _OF_THOSE_THAT_RUN:
        sentence = sentence.replace(promise, "")
    return sentence


def _end(sentence: str, code: int) -> int:
    """Print why the daemon ends on standard error, which is the log if a client started the daemon; return `code`.

    If the log's disk is full, the exit status still reaches the client, which checks the disk itself.
    """
    with contextlib.suppress(OSError):
        print(f"ffdl-submitd: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
    return code


def _drop_unwritten() -> None:
    """Discard what could not be written to standard output and error. Otherwise the interpreter would try again at its
    end, and exit with status 120 instead of ours."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
