"""A tree with everything that object stores do not keep: links, modes, a hole, empty directories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ffdl_batch.domain.data.staging_protocol import Direction, StageTask
from ffdl_batch.domain.data.store_kinds import StoreAddress
from tests.staging_rig import StagingRig

OUT, IN = Direction.OUT, Direction.IN
INDEX = "job/.ffdl-index.json"
LINKS = {"latest": "epoch3", "deep/up": "../epoch3/weights", "contained": "/job/results/epoch3", "dangling": "none"}
KEPT_LINKS = {**LINKS, "contained": "epoch3"}
MODES = {
    "run.sh": 0o755, "secret": 0o600, "closed": 0o555, "empty": 0o750, "closed/tool": 0o555, "plain": 0o755,
    "sticky": 0o1755, "shared": 0o1777, "shared/of all": 0o1770,
}  # fmt: skip


def lay(top: Path) -> None:
    for name in ("epoch3", "deep", "closed", "empty", "plain/er", "sticky", "shared/of all"):
        (top / name).mkdir(parents=True)
    for name in ("epoch3/weights", "run.sh", "secret", "closed/tool"):
        (top / name).write_text(name)
    with (top / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.write(b"start")
    for name, target in LINKS.items():
        (top / name).symlink_to(target)
    for name, mode in MODES.items():
        (top / name).chmod(mode)


def task_of(rig: StagingRig, direction: Direction, place: Path | None = None, **changes: Any) -> StageTask:
    task = rig.task(direction, "job", **changes)
    roots = (str(rig.local), "/job/results")
    return replace(task, transfers=(replace(task.transfers[0], local=str(place or rig.local), roots=roots),))


def links_of(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): str(path.readlink()) for path in top.rglob("*") if path.is_symlink()}


def check_back(place: Path) -> None:
    """It came back whole."""
    assert links_of(place) == KEPT_LINKS
    assert {name: (place / name).stat().st_mode & 0o7777 for name in MODES} == MODES
    assert (place / "plain" / "er").is_dir()
    assert (place / "sparse").stat().st_blocks * 512 < 64 << 10
    assert not (place / ".ffdl-index.json").exists()


def check_round_trip(rig: StagingRig, store: StoreAddress) -> None:
    """It is stored, and comes back whole, also the second time."""
    lay(rig.local)
    assert rig.run(task_of(rig, OUT, store=store)).done.skipped == 0
    place = rig.directory / "back"
    for _ in range(2):
        assert rig.run(task_of(rig, IN, place, store=store)).done.skipped == 0
        check_back(place)
