"""Tests the epilog that unmounts data stores of ended jobs, with real FUSE mounts of a hostile user."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.private_mounts import private_mounts

CONFIGS = Path(__file__).resolve().parents[2] / "slurm-configs"
JOB, USER, OTHER = "41", 43210, 43211
SOURCE = f"ffdl-batch:{JOB}:7:9"
NODE = Path("/srv")
_NOSUID_NODEV = 6  # <sys/mount.h>
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import ffdl_mounts
ffdl_mounts.OPEN_S = ffdl_mounts.WHOLE_S = 120.0
plain = ffdl_mounts._opened
def _opened(place, uid, limit_s):
    {before}
    descriptor = plain(place, uid, limit_s)
    {after}
    return descriptor
ffdl_mounts._opened = _opened
sys.exit(ffdl_mounts.main(os.environ))
"""


@pytest.fixture(scope="module")
def libexec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the root programs as a site does."""
    place = tmp_path_factory.mktemp("site")
    (place / "site.env").write_text(f"ACCOUNTING_STORAGE_HOST=db\nFFDL_LIBEXEC={place}/etc/libexec\n")
    files = ["--values", str(CONFIGS / "values.env"), "--values", str(place / "site.env")]
    subprocess.run([sys.executable, str(CONFIGS / "render.py"), *files, "--out", str(place / "etc")], check=True)
    return place / "etc" / "libexec"


_DAEMONS: list[int] = []
"""Descriptors of the daemons of FUSE file systems."""


@pytest.fixture(autouse=True)
def own_mounts() -> Iterator[None]:
    """Mount over a directory that the node's users can reach, so that all mounts are this test's alone."""
    with private_mounts():
        mount("tmpfs", "tmpfs", NODE, "mode=1777")
        yield
        while _DAEMONS:
            os.close(_DAEMONS.pop())


def mount(source: str, kind: str, place: Path | bytes, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), os.fsencode(place), kind.encode())
    assert libc.mount(*words, _NOSUID_NODEV, options.encode()) == 0, os.strerror(ctypes.get_errno())


def fuse(place: Path | bytes, source: str = SOURCE, user: int = USER, kind: str = "fuse.rclone") -> None:
    """Mount a FUSE file system at a directory of the user, as fusermount does. Its daemon never answers."""
    directory = Path(os.fsdecode(place))
    with contextlib.suppress(FileExistsError):
        directory.mkdir(parents=True)
        os.chown(directory, user, user)
    _DAEMONS.append(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    mount(source, kind, place, f"fd={_DAEMONS[-1]},rootmode=40000,user_id={user},group_id={user}")


def mounted() -> list[str]:
    """Return the mounts below the node's directory, as the kernel writes them."""
    found = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_bytes().decode().split("\n") if line]
    return sorted(point.removeprefix(f"{NODE}/") for point in found if point.startswith(f"{NODE}/"))


def epilog(libexec: Path, *, before: str = "pass", after: str = "pass") -> tuple[int, str]:
    """Run the program and return its status and output. The user acts just before or after a mount point is opened."""
    argv = [sys.executable, "-IS", "-c", PROGRAM.format(before=before, after=after), str(libexec)]
    environ = {"SLURM_JOB_ID": JOB, "SLURM_JOB_UID": str(USER), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


NAMES = (
    *(b"plain", b"a 1 b", b"a\tb", b"line\nbreak", b"carriage\rreturn", b"form\ffeed", b"\\040 \\134 \\x2f"),
    *(b"%b$(id)`id`'\"", b"- fuse.rclone ffdl-batch:41:", b"-l", b"not utf-8 \xff\xfe", "\u2028".encode()),
)


def test_epilog_unmounts_stores_at_paths_with_any_bytes(libexec: Path) -> None:
    for name in NAMES:
        fuse(os.fsencode(NODE / "job") + b"/" + name)
    assert epilog(libexec) == (0, "")
    assert mounted() == []


def test_epilog_unmounts_stacked_stores_without_waiting_for_their_daemons(libexec: Path) -> None:
    (NODE / "job").mkdir()
    for name in ("a", "a", "b"):
        fuse(NODE / "job" / name)
    assert epilog(libexec) == (0, "")
    assert mounted() == []


OTHERS = {
    "other user": (SOURCE, OTHER, "fuse.rclone"),
    "root": (SOURCE, 0, "fuse.rclone"),
    "longer number": (f"ffdl-batch:{JOB}1:7:9", USER, "fuse.rclone"),
    "not at the start": (f"x ffdl-batch:{JOB}:7:9", USER, "fuse.rclone"),
    "forged line": (f"x - fuse.rclone {SOURCE} user_id={USER}", OTHER, "fuse.rclone"),
    "other program": (SOURCE, USER, "fuse"),
    "forged kind": (SOURCE, USER, "fuse.x - fuse.rclone"),
}


def test_epilog_leaves_mounts_of_other_jobs_users_and_kinds(libexec: Path) -> None:
    for name, (source, user, kind) in OTHERS.items():
        fuse(NODE / name, source, user, kind)
    (NODE / "tmpfs").mkdir()
    mount(SOURCE, "tmpfs", NODE / "tmpfs", "size=1m")
    assert epilog(libexec) == (0, "")
    assert mounted() == sorted([*(name.replace(" ", "\\040") for name in OTHERS), "tmpfs"])


SWAPS = {
    "link in place of a parent": "os.rename('/srv/job', '/srv/old'); os.symlink('/srv/site', '/srv/job')",
    "directory in place of a parent": "os.rename('/srv/job', '/srv/old'); os.rename('/srv/site', '/srv/job')",
}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_epilog_unmounts_no_other_file_system_if_user_swaps_directories(libexec: Path, swap: str, moment: str) -> None:
    fuse(NODE / "job/data")
    (NODE / "site/data").mkdir(parents=True)
    mount("important", "tmpfs", NODE / "site/data", "mode=755")
    status, _ = epilog(libexec, **{moment: swap})
    points = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " important " in line]
    assert len(points) == 1
    assert (status, len(mounted())) == ((1, 2) if moment == "before" else (0, 1))


def test_epilog_opens_mount_point_with_rights_of_user(libexec: Path) -> None:
    fuse(NODE / "job/data")
    (NODE / "job").chmod(0o700)  # owned by root, like the target of an attacker's link
    assert epilog(libexec) == (1, "1 mounts of data stores remain, the last one at '/srv/job/data'\n")
    os.chown(NODE / "job", USER, USER)
    assert epilog(libexec) == (0, "")


def test_epilog_abandons_path_that_never_answers_and_unmounts_the_others(libexec: Path) -> None:
    for name, source in (("first", SOURCE), ("silent", "another"), ("last", SOURCE)):
        fuse(NODE / "job" / name, source)
    leads = "place, limit_s = ('/srv/job/silent/x', 0.3) if place.endswith('/last') else (place, limit_s)"
    status, printed = epilog(libexec, before=leads)
    assert (status, mounted()) == (1, ["job/last", "job/silent"]), printed
