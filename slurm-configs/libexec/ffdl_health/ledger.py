"""Stores the findings of this node since its boot.

All users can read `incidents`, with one line per finding, and `lasting`, with those that still last. Only root can read
`state.json`. Each line is written once, even if a run is killed while it writes: `state.json` first gets the new lines
and the size of the file. At most two files of BYTES_MOST are kept, the older one as `incidents.1`. `lasting` is derived
from `state.json`, and replaced as a whole when a state begins or ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

from .findings import Finding, line_of

BYTES_MOST = 256 << 10
ALIKE_MOST = 10
"""Maximum number of findings of one kind and device that one check records. The last one has the number of the rest."""
LASTING_MOST = 64
"""Maximum number of lines of `lasting`. Findings that make the node unfit come first."""
_FORMAT = 1


@contextlib.contextmanager
def held(place: Path) -> Iterator[bool]:
    """Hold the lock, and yield whether no other check runs on this node. Raises OSError."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    place.mkdir(mode=0o755, exist_ok=True)
    descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


class Ledger:
    """The files of findings. No other process writes them while the lock is `held`."""

    def __init__(self, place: Path, boot_id: str) -> None:
        self._file, self._state_file, self._boot_id = place / "incidents", place / "state.json", boot_id
        self._lasting_file = place / "lasting"
        self._state: dict[str, Any] = {"format": _FORMAT, "boot_id": boot_id}

    def load(self) -> None:
        """Load the state of earlier checks since this boot. Raises OSError.

        State of another boot or of another release is ignored. Then nothing lasts until it is found again.
        """
        try:
            state = json.loads(self._state_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            state = None
        if isinstance(state, dict) and (state.get("format"), state.get("boot_id")) == (_FORMAT, self._boot_id):
            self._state = state
            self._append()
        self._publish()

    def memory(self, source: str) -> dict[str, Any]:
        """Return the memory of a source. The next `add` stores its changes."""
        memory: dict[str, Any] = self._state.setdefault("sources", {}).setdefault(source, {})
        return memory

    def is_time_for_all(self, pause_s: float) -> bool:
        """Return whether the last check of all sources is `pause_s` ago or longer, and if so, record a new one."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if now - self._state.get("looked_at_all", -pause_s) < pause_s:
            return False
        self._state["looked_at_all"] = now
        return True

    def note_look(self, interval_s: int, at: float) -> None:
        """Publish to all users that the kernel log has been read up to the time `at`."""
        looked = self._file.with_name("looked")
        new = looked.with_name(".looked.new")
        new.write_text(f"{interval_s}\n", encoding="ascii")
        new.chmod(0o644)
        os.utime(new, (at, at))
        new.replace(looked)

    @property
    def bad(self) -> list[str]:
        """The findings since the boot that make the node unfit: lasting states and events."""
        return [*self._state.get("standing_badly", {}).values(), *self._state.get("happened_badly", [])]

    def add(self, source: str, found: Sequence[Finding], *, looked: bool = True) -> list[Finding]:
        """Record and return the new findings of `source`.

        `looked`: the source was checked completely, so lasting states that are not in `found` have ended.
        """
        standing = self._state.setdefault("standing", {})
        before = set(standing.get(source, ()))
        now = {one.standing for one in found if one.standing}
        standing[source] = sorted(now if looked else before | now)
        fresh = bounded([one for one in found if one.standing not in before or not one.standing])
        badly = self._state.setdefault("standing_badly", {})
        lasting = self._state.setdefault("lasting", {})
        for key in before - set(standing[source]):
            badly.pop(key, None)
            lasting.pop(key, None)
        badly.update({one.standing: words(one) for one in found if one.badly and one.standing})
        for one in found:
            if one.standing:  # keep the record of its beginning
                lasting.setdefault(one.standing, self._lasting_words(one))
        happened = [one for one in fresh if one.badly and not one.standing]
        self._remember("happened_badly", [words(one) for one in happened])
        self._remember("lasts_until_reboot", [self._lasting_words(one) for one in happened])
        self._state["pending"] = "".join(one.line(self._boot_id) for one in fresh)
        if self._state["pending"] and _size(self._file) >= BYTES_MOST:
            self._file.replace(self._file.with_name(f"{self._file.name}.1"))
        self._state["size"] = _size(self._file)
        self._save()
        self._append()
        self._publish()
        return fresh

    def _remember(self, name: str, happened: list[Any]) -> None:
        self._state[name] = [*self._state.get(name, []), *happened][:ALIKE_MOST]

    def _lasting_words(self, one: Finding) -> dict[str, Any]:
        return {**one.record(self._boot_id), "lasts": True, "drains": one.badly}

    def _publish(self) -> None:
        """Publish the lasting findings to all users, each as it was recorded when it began."""
        records = [*self._state.get("lasting", {}).values(), *self._state.get("lasts_until_reboot", [])]
        records.sort(key=lambda one: (not one["drains"], one["at"]))
        text = "".join(line_of(one) for one in records[:LASTING_MOST])
        if text != _text(self._lasting_file):
            _replace(self._lasting_file, text, 0o644)

    def _append(self) -> None:
        """Append the pending lines that are not yet in the file."""
        pending = self._state.pop("pending", "").encode()
        written = _size(self._file) - int(self._state.pop("size", 0))
        if not pending or not 0 <= written < len(pending):
            return
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # regardless of the umask
            os.write(descriptor, pending[written:])
        finally:
            os.close(descriptor)

    def _save(self) -> None:
        _replace(self._state_file, json.dumps(self._state), 0o600)


def bounded(found: Sequence[Finding]) -> list[Finding]:
    """Return at most ALIKE_MOST findings of each kind and device. The last one has the number of the rest."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        alike.setdefault((one.kind, one.device), []).append(one)
    kept: list[Finding] = []
    for group in alike.values():
        kept += group[:ALIKE_MOST]
        more = len(group) - ALIKE_MOST
        if more > 0:
            kept[-1] = kept[-1]._replace(text=f"{kept[-1].text[:300]} (and {more} more until now)")
    return sorted(kept, key=lambda one: one.at)


def words(finding: Finding) -> str:
    """Return a finding as the reason of a drain."""
    return " ".join(f"{finding.kind} {finding.device} {finding.text}".split())[:120]


def _replace(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)  # regardless of the umask
        file.write(text)
    new.replace(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
