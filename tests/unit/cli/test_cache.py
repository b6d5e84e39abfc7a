"""ffdl cache: what is there, what is in use, and what is removed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.data.staging_protocol import Cached
from ffdl_batch.staging.cache.user_cache import WANTED_S, Usage, lock
from tests.filled_cache import fill
from tests.unit.cli.programs import FFDL, run


@pytest.fixture(name="cache")
def made(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def ffdl(cache: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(FFDL, "cache", *words, env={"FFDL_CACHE_DIR": str(cache), "FFDL_CACHE_BYTES": "1MB"})


@pytest.fixture(name="entries")
def filled(tmp_path: Path, cache: Path) -> list[Cached]:
    return [fill(tmp_path, cache, name, size) for name, size in (("first", 5000), ("second", 70_000))]


def test_cache_list_prints_size_and_use_of_entries(cache: Path, entries: list[Cached]) -> None:
    os.utime(entries[0].lock, (1_800_000_000, 1_800_000_000))
    held = lock(entries[1].lock, exclusive=False, wait=True)
    assert held is not None
    done, plain = ffdl(cache), ffdl(cache, "list", "--json")
    os.close(held)
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = done.stdout.splitlines()
    assert header.split("  ")[0] == "KEY"
    found = {row.split()[0]: row for row in rows}
    first, second = (found[entry.key[:12]] for entry in entries)
    assert all(word in first for word in ("directory ", "4.88 KiB", " no "))
    assert all(word in second for word in ("68.4 KiB", " yes "))
    assert f"{cache} on {os.uname().nodename}" in done.stdout
    assert "of 977 KiB, 1 user\n" in done.stdout
    assert "Wanted" not in done.stdout
    told = json.loads(plain.stdout)
    assert (told["users"], told["limit_bytes"], told["share_bytes"]) == (1, 10**6, 10**6)
    uses = {one["key"]: (one["bytes"], one["in_use"]) for one in told["entries"]}
    assert uses == {entries[0].key: (5000, False), entries[1].key: (70_000, True)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a part of another user's")
def test_cache_list_prints_wanted_space_and_equal_share(cache: Path) -> None:
    """A user of whom nothing is there yet sees the share that they have when they come."""
    cache.mkdir(mode=0o755)
    publish(cache, 65534, Usage(900_000, 250_000, time.time()))
    shown, told = ffdl(cache), json.loads(ffdl(cache, "--json").stdout)
    assert (told["users"], told["share_bytes"], told["own_bytes"]) == (2, 500_000, 0)
    assert (told["own_wanted_bytes"], told["others_wanted_bytes"]) == (0, 250_000)
    assert "244 KiB by other users; users who hold more than an equal share give it back" in shown.stdout
    publish(cache, os.getuid(), Usage(0, 300_000, time.time()))
    assert "293 KiB for one of your jobs, which ran without the cache" in ffdl(cache).stdout
    publish(cache, os.getuid(), Usage(0, 300_000, time.time() - 2 * WANTED_S))
    assert "of yours" not in ffdl(cache).stdout


def publish(cache: Path, uid: int, usage: Usage) -> None:
    """What a user tells the others."""
    part = cache / str(uid)
    part.mkdir(mode=0o711, exist_ok=True)
    file = part / "usage.json"
    file.write_text(json.dumps(to_plain(usage)))
    for path in (file, part):
        os.chown(path, uid, -1)


def test_cache_rm_keeps_entries_in_use(cache: Path, entries: list[Cached]) -> None:
    held = lock(entries[1].lock, exclusive=False, wait=True)
    assert held is not None
    done = ffdl(cache, "rm", "--all")
    os.close(held)
    assert done.returncode == 75
    assert done.stdout == f"{entries[0].key[:12]} removed\n"
    assert f"in use, and not removed: {entries[1].key[:12]}" in done.stderr
    assert not Path(entries[0].tree).exists()
    assert Path(entries[1].tree).exists()
    assert ffdl(cache, "rm", entries[1].key[:6]).returncode == 0
    assert not Path(entries[1].tree).exists()
    assert json.loads((cache / str(os.getuid()) / "usage.json").read_text())["bytes"] == 0


def test_cache_verify_removes_damaged_entries(cache: Path, entries: list[Cached]) -> None:
    victim = Path(entries[0].tree) / "file"
    found = victim.stat()
    victim.chmod(0o644)
    victim.write_bytes(b"x" * 5000)
    os.utime(victim, ns=(found.st_atime_ns, found.st_mtime_ns))
    done = ffdl(cache, "verify")
    assert done.returncode == 1
    assert f"{entries[0].key[:12]} damaged: file has another content; removed" in done.stdout
    assert f"{entries[1].key[:12]} ok" in done.stdout
    assert not Path(entries[0].tree).exists()
    assert ffdl(cache, "verify").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("rm",), 2, "or give --all"),
        (("rm", "--all", "0"), 2, "or give --all"),
        (("rm", "zz"), 66, "no entry of yours begins with zz"),
    ],
)
def test_cache_rm_rejects_missing_surplus_or_unknown_key(
    cache: Path, entries: list[Cached], words: tuple[str, ...], code: int, said: str
) -> None:
    done = ffdl(cache, *words)
    assert done.returncode == code
    assert said in done.stderr


def test_cache_exits_by_cause_without_usable_cache_dir(cache: Path) -> None:
    none = ffdl("")
    assert (none.returncode, "no cache is configured" in none.stderr) == (69, True)
    missing = ffdl(cache)
    assert (missing.returncode, "srun -w NODE ffdl cache" in missing.stderr) == (69, True)
    cache.mkdir()
    cache.chmod(0o777)
    assert ffdl(cache).returncode == 77
