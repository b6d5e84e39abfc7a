"""The record of a cluster that was started: what `down` must undo, also after a crash of whoever started it.

One JSON file per cluster below /run, so a reboot of the machine forgets it together with what it describes. Names of
network namespaces, cgroups and mounts follow from the cluster's id and are not recorded.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from .console import say
from .errors import Exit, RigError
from .processes import Process

RUN_DIR = Path("/run/ffdl-batch-rig")
DEFAULT_ID = "ffdl"
PLACES = 2
"""How many clusters may be up on one machine: for each, memory and cores must be there."""
_ID = re.compile(r"[a-z][a-z0-9]{0,7}")


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a cluster was made of; enough to boot a node again or to render its configuration again."""

    suite: str
    layers: tuple[str, ...]
    checkout: str
    slurm_version: str
    accounting: bool
    confined: bool
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """One cluster. `owner` None: it was started to stay (`up` on the command line) and ends with `down` only."""

    cluster_id: str
    state_dir: Path
    owner: Process | None
    complete: bool
    blueprint: Blueprint

    def abandoned(self) -> bool:
        """Its owner died, or died while starting it."""
        return self.owner is not None and not self.owner.alive()

    def describe(self) -> str:
        """For messages."""
        kept = f"(kept; end it with `python3 -m tests.cluster.rig --id {self.cluster_id} down`)"
        return f"cluster {self.cluster_id!r} " + (f"of process {self.owner.pid}" if self.owner else kept)


def check_id(cluster_id: str) -> None:
    """Ids become parts of interface and namespace names, which are short."""
    if _ID.fullmatch(cluster_id) is None:
        raise RigError(f"cluster id {cluster_id!r}: use at most 8 small letters and digits, a letter first")


def path_of(cluster_id: str) -> Path:
    """The record's file."""
    return RUN_DIR / f"{cluster_id}.json"


def write(record: Record) -> None:
    """Save, by rename so that a reader never meets half a record."""
    RUN_DIR.mkdir(parents=True, exist_ok=True)
    path = path_of(record.cluster_id)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({**asdict(record), "state_dir": str(record.state_dir)}))
    fresh.rename(path)


def read(cluster_id: str) -> Record | None:
    """The record of a cluster, None if there is none."""
    try:
        data = json.loads(path_of(cluster_id).read_text())
    except FileNotFoundError:
        return None
    owner = Process(**data["owner"]) if data["owner"] else None
    plan = data["blueprint"]
    blueprint = Blueprint(**{**plan, "layers": tuple(plan["layers"])})
    return Record(data["cluster_id"], Path(data["state_dir"]), owner, data["complete"], blueprint)


def forget(cluster_id: str) -> None:
    """Remove the record. The last step of `down`."""
    path_of(cluster_id).unlink(missing_ok=True)


def all_records() -> list[Record]:
    """Every cluster of this machine."""
    found = [read(path.stem) for path in sorted(RUN_DIR.glob("*.json"))]
    return [record for record in found if record is not None]


@contextmanager
def locked() -> Iterator[list[Record]]:
    """The records, which nobody else who locks them changes within the block."""
    RUN_DIR.mkdir(parents=True, exist_ok=True)
    with (RUN_DIR / "host.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield all_records()


@contextmanager
def place_on_host(cluster_id: str, wait_s: float) -> Iterator[list[Record]]:
    """Get a place for a cluster on this machine; yields abandoned records that must be cleaned up first.

    The place is kept by the record, which is to be written within the block. A cluster that is in the way, because it
    has the same id or because all places are taken, is waited for if it has an owner who will end it.
    """
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        with locked() as records:
            blockers = in_the_way(cluster_id, [record for record in records if not record.abandoned()])
            if not blockers:
                yield [record for record in records if record.abandoned()]
                return
        names = " and ".join(blocker.describe() for blocker in blockers)
        if all(blocker.owner is None for blocker in blockers) or time.monotonic() > deadline:
            raise RigError(f"{names} must end first: this machine has room for {PLACES}", Exit.TEMPORARY)
        if not told:
            say(f"waiting for the end of {names}, at most {wait_s:.0f} s")
            told = True
        time.sleep(0.5)


def in_the_way(cluster_id: str, living: list[Record]) -> list[Record]:
    """The clusters of which one must end before another of this id can begin."""
    same = [record for record in living if record.cluster_id == cluster_id]
    return same or (living if len(living) >= PLACES else [])


def only_one(records: list[Record]) -> str:
    """Return the default cluster id: the cluster of `up`, not one that a test run owns."""
    meant = [record for record in records if record.owner is None] or records
    if len(meant) > 1:
        names = ", ".join(record.cluster_id for record in meant)
        raise RigError(f'there are several clusters: {names}; name one: --id NAME (make: CLUSTER="--id NAME")')
    return meant[0].cluster_id if meant else DEFAULT_ID


def remove_state(state_dir: Path) -> None:
    """Delete a cluster's files. Only a directory that says it is one."""
    if (state_dir / ".ffdl-batch-rig").exists():
        shutil.rmtree(state_dir)
