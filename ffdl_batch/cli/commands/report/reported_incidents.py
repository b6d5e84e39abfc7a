"""What a report for cron has told already: a file that is written when the report was delivered, and whole."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.incidents.report import FaultsReport
from ffdl_batch.domain.incidents.view import IncidentRow

FORMAT = 1
LAG_S = 300.0
"""An incident may become visible so long after the time that its row has: its transaction takes a while."""
LOCK_S = 120.0
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Told:
    """Everything was told that was noticed up to `noticed_at`, but for what became visible later; and the keys of those
    of the last LAG_S before it. None of both, and nothing was told yet."""

    noticed_at: float
    keys: frozenset[str] = frozenset()
    ahead: Mapping[str, Told] = field(default_factory=dict)
    """What was told to those who took a mail that others did not, by their addresses."""

    @property
    def rows_after(self) -> float:
        """What may be new was noticed after this."""
        return self.noticed_at - LAG_S

    @property
    def is_empty(self) -> bool:
        """Whether nothing was told to all."""
        return self.noticed_at <= 0


def new_rows(report: FaultsReport, told: Told | None) -> tuple[IncidentRow, ...]:
    """The incidents that nobody was told of."""
    if told is None:
        return report.rows
    return tuple(row for row in report.rows if row.noticed_at > told.rows_after and row.key not in told.keys)


def told_by(report: FaultsReport, told: Told | None) -> Told:
    """What was told, once this report is delivered; never less than before."""
    until = min(report.until, report.as_of)
    if told is not None and told.noticed_at > until:
        return replace(told, ahead={})
    recent = {row.key for row in report.rows if row.noticed_at > until - LAG_S}
    kept = told.keys if told is not None and told.noticed_at > until - LAG_S else frozenset()
    return Told(until, frozenset(recent | kept))


def told_in_part(report: FaultsReport, told: Told | None, taken: Collection[str]) -> Told:
    """What was told where only those of `taken` took the mail: to all as much as before, and to these all of it."""
    before = told or Told(0.0)
    return replace(before, ahead={**before.ahead, **{one: told_by(report, told_to(told, one)) for one in taken}})


def told_to(told: Told | None, who: str) -> Told | None:
    """What was told to this one."""
    return told.ahead.get(who, told) if told is not None else None


@contextmanager
def locked(path: str) -> Iterator[None]:
    """One report at a time for a state file; a lock beside it that stays there. Raises Stop."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"{path}.lock cannot be opened: {error.strerror}") from error
    try:
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Stop(ExitCode.TRY_AGAIN, f"another report holds {path}.lock; try again") from None
                time.sleep(_TICK_S)
        yield
    finally:
        os.close(lock)


def read_told(path: str) -> Told | None:
    """None where the file is not there yet. Raises Stop for one that is damaged: what was told is not guessed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    try:
        body = json.loads(text)
        if body["format"] != FORMAT:
            raise _unusable(path, f"its format is {body['format']!r}, of another release")
        keys = body["keys"]
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise TypeError
        ahead = {
            str(who): Told(float(one["noticed_at"]), frozenset(one["keys"]))
            for who, one in body.get("ahead", {}).items()
        }
        return Told(float(body["noticed_at"]), frozenset(keys), ahead)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, "it is damaged") from error


def _unusable(path: str, why: str) -> Stop:
    cure = "remove it, and the next report tells all of its period"
    return Stop(ExitCode.BAD_MANIFEST, f"the state file {path} cannot be used: {why}; {cure}")


def write_told(path: str, told: Told) -> None:
    """Beside, then in its place. Raises Stop."""
    beside = f"{path}.{os.getpid()}.part"
    ahead = {who: {"noticed_at": one.noticed_at, "keys": sorted(one.keys)} for who, one in told.ahead.items()}
    body = {"format": FORMAT, "noticed_at": told.noticed_at, "keys": sorted(told.keys)}
    body |= {"ahead": ahead} if ahead else {}
    try:
        with open(beside, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(body, file)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except OSError as error:
        Path(beside).unlink(missing_ok=True)
        told_twice = "what this report told will be told again"
        raise Stop(ExitCode.TRY_AGAIN, f"{path} cannot be written: {error.strerror}; {told_twice}") from error
