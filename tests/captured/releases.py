"""What earlier releases left, databases of each schema and the files of a job, put in place as if they had run here."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from sqlalchemy import make_url

from ffdl_batch.ports.clock import SystemClock
from ffdl_batch.store.database import connect
from ffdl_batch.store.schema_upgrade import alembic_config

HERE = Path(__file__).parent
SCHEMAS = HERE / "schemas"
RELEASED = tuple(sorted(path.stem for path in SCHEMAS.glob("*.sql")))
"""The revisions of released schemas."""
FORMATS_1 = HERE / "formats-1"
JOB_ID = "training-53fesprzc"
"""Of the job in FORMATS_1; three attempts."""
ELSEWHERE = "node1"
_TIME = re.compile(r"@T([+-][\d.]+)@")
_REFERRED_FIRST = ("jobs", "attempts", "history", "leases")


def put_schema(revision: str, url: str) -> None:
    """Make the database behind `url`, which is empty, that of the captured schema: on SQLite by the release's own dump,
    on PostgreSQL by the migrations up to there and the rows of the dump."""
    text = (SCHEMAS / f"{revision}.sql").read_text(encoding="utf-8")
    file = make_url(url).database
    if make_url(url).get_backend_name() == "sqlite":
        put_dump(text, Path(str(file)))
        return
    migrate_to(revision, url)
    rows = [statement for statement in statements(text) if statement.startswith("INSERT INTO")]
    with psycopg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    ) as connection:
        for table in _REFERRED_FIRST:
            for row in rows:
                if row.startswith(f'INSERT INTO "{table}"'):
                    connection.execute(row.encode())


def put_dump(text: str, file: Path) -> None:
    """Make a SQLite file of a dump, in the mode in which daemons keep it on a local disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(text)


def migrate_to(revision: str, url: str) -> None:
    """Apply the migrations up to `revision`, as releases did that kept no record of it."""
    database = connect(url, False, SystemClock())
    try:
        with database.writing(begin="EXCLUSIVE") as connection:
            command.upgrade(alembic_config(connection), revision)
    finally:
        database.close()


def statements(text: str) -> Iterator[str]:
    """The statements of a dump; texts in them have line breaks and semicolons."""
    gathered = ""
    for line in text.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered.strip()
            gathered = ""


def as_read(revision: str) -> Mapping[str, Any]:
    """Jobs, attempts and histories as the release read them."""
    read: dict[str, Any] = json.loads((SCHEMAS / f"{revision}.json").read_text(encoding="ascii"))
    for job in read["jobs"]:
        job["spec"] = read["spec"]
    return read


def put_job(base: Path, at: float, words: Mapping[str, str]) -> Path:
    """The job's directory as its release left it, below `base`, submitted at the time `at`; returns the directory.

    `words` are the texts for PYTHON, CODE, HOST and BOOT.
    """
    target = base / "jobs" / "jobs" / JOB_ID
    for path in sorted(FORMATS_1.rglob("*")):
        name = path.relative_to(FORMATS_1)
        if path.is_file() and name.parts[0] not in ("slurm", "running.sql"):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(here(path.read_text(encoding="utf-8"), base, at, words), encoding="utf-8")
    (target / "checkpoints").mkdir()
    (base / "jobs" / "doorbell").mkdir()
    for attempt in target.glob("attempt-*"):
        for directory in ("state", "model", "data", "results", "logs/learner-1"):
            (attempt / directory).mkdir(parents=True, exist_ok=True)
    return target


def running_dump(base: Path, at: float, words: Mapping[str, str]) -> str:
    """The dump of its database, revision 0002, while the first attempt ran."""
    return here((FORMATS_1 / "running.sql").read_text(encoding="utf-8"), base, at, words)


def here(text: str, base: Path, at: float, words: Mapping[str, str]) -> str:
    """`text` with this machine's places and times."""
    for word, value in {**words, "BASE": str(base)}.items():
        text = text.replace(f"@{word}@", value)
    return _TIME.sub(lambda match: f"{at + float(match[1]):.6f}", text)


def take_away(job: Path, *names: str) -> dict[str, str]:
    """Take files away that are not written yet at some moment; their texts by name, for :func:`give_back`."""
    kept = {}
    for name in names:
        for path in filter(Path.is_file, sorted(job.glob(name))):
            kept[str(path.relative_to(job))] = path.read_text(encoding="utf-8")
            path.unlink()
    return kept


def give_back(job: Path, files: Mapping[str, str]) -> None:
    """Write what was taken away."""
    for name, text in files.items():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        whole = job / f"{name}.whole"  # who reads it meanwhile sees all of it or nothing
        whole.write_text(text, encoding="utf-8")
        whole.replace(job / name)


def copy_of(file: Path, target: Path) -> Path:
    """A copy of a file, for what would change it."""
    shutil.copy2(file, target)
    return target
