"""The learner: holds each file against its digest, makes results of them. Runs in the image; standard library alone.

python3 learner.py check|copy|hold
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

BLOCK = 1 << 20
FLIP = bytes(byte ^ 0x5A for byte in range(256))


def names_below(top: str) -> set[str]:
    """All files."""
    return {os.path.relpath(Path(place, name), top) for place, _, names in os.walk(top) for name in names}


def digest(path: Path) -> tuple[int, str]:
    """Size and SHA-256."""
    size, seen = 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            seen.update(block)
    return size, seen.hexdigest()


def check(top: str, wanted: dict[str, list[object]]) -> None:
    """Print what was compared, and what is missing, too much or wrong."""
    found = names_below(top)
    wrong = [f"{name}: missing" for name in wanted.keys() - found]
    wrong += [f"{name}: not in the data set" for name in found - wanted.keys()]
    size = 0
    for name in sorted(found & wanted.keys()):
        seen = digest(Path(top, name))
        size += seen[0]
        if list(seen) != wanted[name]:
            wrong.append(f"{name}: {seen[0]} bytes, another digest")
    report = {"files": len(found & wanted.keys()), "bytes": size, "wrong": sorted(wrong)}
    print("report", json.dumps(report), flush=True)


def copy(top: str, results: str, learner: int, shares: int) -> None:
    """Each learner makes results of its share."""
    for name in sorted(names_below(top))[learner - 1 :: shares]:
        target = Path(results, f"copy-{learner}", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with Path(top, name).open("rb") as source, target.open("wb") as file:
            while block := source.read(BLOCK):
                file.write(block.translate(FLIP))


def hold() -> None:
    """Until a halt is asked for; then again from what was saved."""
    saved = Path(os.environ["CHECKPOINT_DIR"], "last")
    print("secret", hashlib.sha256(os.environ.get("HUB", "").encode()).hexdigest(), flush=True)
    if os.environ["RESUME"] == "1":
        Path(os.environ["RESULT_DIR"], "after").write_text(f"resumed from {saved.read_text()}")
        return
    Path(os.environ["RESULT_DIR"], "before").write_text("written before the halt")
    print("holding", flush=True)
    halt = Path(os.environ["JOB_STATE_DIR"], "halt")
    while not halt.exists():
        time.sleep(0.1)
    saved.write_text("7")


if __name__ == "__main__":
    what, data = sys.argv[1], os.environ["DATA_DIR"]
    check(data, json.loads(Path("digests.json").read_text(encoding="utf-8")))
    if what == "copy":
        copy(data, os.environ["RESULT_DIR"], int(os.environ["LEARNER_ID"]), int(sys.argv[2]))
    if what == "hold":
        hold()
