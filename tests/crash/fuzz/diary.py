"""What users asked for and what they were told: one line each, written before the next thing is asked."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Note:
    """One line. `answered`: the daemon has said yes; else it is about to be asked. `fault`: an answer that no daemon
    may give."""

    verb: str
    job_id: str = ""
    answered: bool = False
    fault: str = ""


class Diary:
    """Appends notes; several threads may."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, note: Note) -> None:
        """Add a note, whole."""
        line = json.dumps([note.verb, note.job_id, note.answered, note.fault]) + "\n"
        os.write(self._descriptor, line.encode())


@dataclass(slots=True)
class Promises:
    """What a diary comes to. A job's notes are in the order in which they were written: one user has it.

    `requests` are those that were granted last and not asked back since; `asked_back` counts how often they were, and
    `resumed` granted resumes.
    """

    acknowledged: list[str] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)
    asked: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    asked_back: Counter[str] = field(default_factory=Counter)
    resumed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    faults: list[str] = field(default_factory=list)

    def add(self, note: Note) -> None:
        """One more note."""
        if note.fault:
            self.faults.append(f"{note.verb} {note.job_id}: {note.fault}")
        elif note.verb == "submit":
            self.acknowledged.append(note.job_id)
        elif not note.answered:
            self.asked[note.job_id].add(note.verb)
            if note.verb == "resume":
                self.requests.pop(note.job_id, None)
                self.asked_back[note.job_id] += 1
        elif note.verb == "resume":
            self.resumed[note.job_id] += 1
        else:
            self.requests[note.job_id] = note.verb


class DiaryReader:
    """Reads on where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.promises = Promises()

    def read(self) -> Promises:
        """Everything up to now."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.decode().splitlines():
                verb, job_id, answered, fault = json.loads(line)
                self.promises.add(Note(verb, job_id, answered, fault))
        return self.promises
