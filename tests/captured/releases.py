"""Put in place what another release left: an earlier one the database and the files of a job, a later one a schema.

A later release adds a directory `release-N` beside `release-1` (see `capture_formats.py`); RELEASES has them all.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ffdl_batch.store import schema_upgrade

RELEASES = tuple(sorted(Path(__file__).parent.glob("release-*")))
JOB_ID = "training-j94a2km8r"
"""The job of each release: three attempts, each but the last interrupted by its time limit."""
ELSEWHERE = "node1"
_TIME = re.compile(r"@T([+-][\d.]+)@")
LATER = tuple(f"{int(schema_upgrade.HEAD) + number:04}" for number in (1, 2))
"""The revisions that a later release has beside those of this one."""
_REVISION = '''"""Add the column later_{revision} and its index."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{revision}", "{before}", None, None


def upgrade() -> None:
    op.add_column("history", sa.Column("later_{revision}", sa.Text()))
    op.create_index("ix_later_{revision}", "history", ["later_{revision}"])
'''


@contextlib.contextmanager
def later_release(directory: Path) -> Iterator[None]:
    """Inside, this process is a later release, with the revisions LATER. Files are written below `directory`."""
    migrations = directory / "migrations"
    shutil.copytree(schema_upgrade.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    known = (*schema_upgrade.REVISIONS, *LATER)
    for before, revision in zip(known[-len(LATER) - 1 :], LATER, strict=False):
        text = _REVISION.format(revision=revision, before=before)
        (migrations / "versions" / f"v{revision}_later.py").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_upgrade, "MIGRATIONS", migrations)
        patch.setattr(schema_upgrade, "REVISIONS", known)
        patch.setattr(schema_upgrade, "HEAD", known[-1])
        yield


def put_dump(text: str, file: Path) -> None:
    """Make a SQLite file of a dump, in the mode in which daemons keep it on a local disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(text)


def put_job(release: Path, base: Path, at: float, words: Mapping[str, str]) -> Path:
    """Write the job's directory as `release` left it, below `base`, submitted at the time `at`; return its path.

    `words` are the texts for PYTHON, CODE, HOST and BOOT.
    """
    target = base / "jobs" / "jobs" / JOB_ID
    for path in sorted(release.rglob("*")):
        name = path.relative_to(release)
        if path.is_file() and name.parts[0] not in ("slurm", "running.sql", "tree"):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(here(path.read_text(encoding="utf-8"), base, at, words), encoding="utf-8")
    (target / "checkpoints").mkdir()
    (base / "jobs" / "doorbell").mkdir()
    shutil.copy(release / "tree", base / "jobs" / ".tree")
    for attempt in target.glob("attempt-*"):
        for directory in ("state", "model", "data", "results", "logs/learner-1"):
            (attempt / directory).mkdir(parents=True, exist_ok=True)
    return target


def running_dump(release: Path, base: Path, at: float, words: Mapping[str, str]) -> str:
    """Return the dump of its database while the first attempt ran."""
    return here((release / "running.sql").read_text(encoding="utf-8"), base, at, words)


def here(text: str, base: Path, at: float, words: Mapping[str, str]) -> str:
    """Return `text` with the paths, names and times of this machine."""
    for word, value in {**words, "BASE": str(base)}.items():
        text = text.replace(f"@{word}@", value)
    return _TIME.sub(lambda match: f"{at + float(match[1]):.6f}", text)


def take_away(job: Path, *names: str) -> dict[str, str]:
    """Remove files that were not written yet at some moment; return their texts by name, for :func:`give_back`."""
    kept = {}
    for name in names:
        for path in filter(Path.is_file, sorted(job.glob(name))):
            kept[str(path.relative_to(job))] = path.read_text(encoding="utf-8")
            path.unlink()
    return kept


def give_back(job: Path, files: Mapping[str, str]) -> None:
    """Write the files that :func:`take_away` removed."""
    for name, text in files.items():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        whole = job / f"{name}.whole"  # a concurrent reader sees the old file or the new one
        whole.write_text(text, encoding="utf-8")
        whole.replace(job / name)
