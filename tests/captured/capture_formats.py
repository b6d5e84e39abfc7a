"""Copy the files by which a release's daemon and controllers talk about one job, without the traces of the machine.

    python3 tests/captured/capture_formats.py <job's directory> <database> tests/captured/release-<N> NAME=TEXT ...

The job was run by that release with the local backend: ``docs/examples/loop`` with ``--steps 120``, a time limit of
10 s and the network level ``host``, so it has three attempts. The database was copied (sqlite3's ``.backup``) while the
first of them ran. ``ffdl-controller upload`` of that release wrote ``uploaded.json``. Each TEXT is replaced by
``@NAME@``: BASE (the directory that holds everything), PYTHON, CODE (the directory of the release), HOST,
BOOT (the boot's id). Times become ``@T+<seconds since the submission>@``. ``tree`` is a copy of ``.tree``, and
``slurm/launch.json`` of a golden file.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path

WANTED = (
    "manifest.yml",
    *(f"attempt-*/{name}.json" for name in ("launch", "environment", "control", "stop", "final", "uploaded", "local")),
    *(f"attempt-*/{name}" for name in ("claim/owner.json", "events/*.jsonl", "submit/begun", "local/*.json")),
)
_TIME = re.compile(r"\b[12]\d{9}(?:\.\d+)?\b(?!e)|\b[12]\.\d+e\+09\b")


def main() -> None:
    """Copy."""
    job, database, target = (Path(argument) for argument in sys.argv[1:4])
    traces = dict(argument.split("=", 1) for argument in sys.argv[4:])
    connection = sqlite3.connect(database)
    (submitted_at,) = connection.execute("SELECT submitted_at FROM jobs").fetchone()

    def keep(text: str, name: str) -> None:
        for word, trace in sorted(traces.items(), key=lambda pair: -len(pair[1])):
            text = text.replace(trace, f"@{word}@")
        text = _TIME.sub(lambda match: f"@T{float(match[0]) - submitted_at:+.4f}@", text)
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)

    for pattern in WANTED:
        for path in sorted(job.glob(pattern)):
            keep(path.read_text(encoding="utf-8"), str(path.relative_to(job)))
    keep("\n".join(connection.iterdump()) + "\n", "running.sql")
    connection.close()


if __name__ == "__main__":
    main()
