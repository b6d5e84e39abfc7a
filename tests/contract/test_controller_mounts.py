"""Controllers that mount a real S3 server's bucket by rclone: what learners see, and what is left when parts die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ffdl_batch.controller.mounts.mount_process import Mounted, own_mounts
from ffdl_batch.domain.data.mounts import Mounts
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.host.processes import all_processes, descendants
from tests import preloaded
from tests.contract.controller_rig import Rig, content, files_below, rig, two_nodes
from tests.contract.test_controller_data import Site
from tests.fakes.fault_proxy import Rule
from tests.fakes.s3_server import S3Server
from tests.private_mounts import private_mounts
from tests.staging_rig import KEY, SECRET

LOOK = 'cat "$DATA_DIR/deep/a"; grep -c " $DATA_DIR ro," /proc/self/mountinfo'
READS = 'for n in 1 2 3; do cat "$DATA_DIR/b" >/dev/null; done'
WAIT = (
    f"{LOOK}; echo begun; "
    'while [ ! -e "$RESULT_DIR/go" ]; do sleep 0.05; cat "$DATA_DIR/deep/a" >/dev/null || exit 9; done'
)

DOUBTS = """
if "node" in sys.orig_argv:
    from ffdl_batch.controller.node import supervisor
    supervisor.DOUBT_DATA_S = 60.0
"""
"""Who holds a mount says in time that it is gone, also where a learner failed first."""


@pytest.fixture
def unseen() -> Iterator[None]:
    """Controllers of other tests do not see the mounts, and so clear no dead one."""
    with private_mounts() if os.geteuid() == 0 else nullcontext():
        yield


@pytest.fixture(name="site")
def made(tmp_path: Path, s3_server: S3Server) -> Iterator[Site]:
    with rig(tmp_path) as run:
        run.have_controllers_do(DOUBTS)
        site = Site(run, s3_server)
        Path(run.attempt.event_file("head")).parent.mkdir()  # as a head does, for node controllers without one
        site.put("set/deep/a", b"the data\n")
        site.put("set/b", b"b" * 100_000)
        yield site
        site.proxy.stop()
        for left in mounts_of(run):  # a test that failed
            preloaded.run(["fusermount3", "-u", "-z", left.point], check=False)


def link(path: Path) -> str:
    """Where it leads, "" = it is gone."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def mounts_of(run: Rig) -> list[Mounted]:
    """Mounts below the test's directory, living and dead ones."""
    return [one for one in own_mounts() if one.point.startswith(str(run.base))]


def in_table(run: Rig) -> list[str]:
    """Lines of the kernel's table that name the test's directory, whoever made them."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(run.base) in line]


def programs(run: Rig) -> list[int]:
    """Processes of the test's that hold a mount, or are rclone."""
    found = []
    for pid in all_processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if str(run.base).encode() in words and (b"rclone" in words or b"mount_holder" in words):
            found.append(pid)
    return found


def rclone_of(run: Rig) -> int:
    """The program under the holder."""
    (mount,) = mounts_of(run)
    return next(pid for pid in descendants(mount.owner.pid, all_processes()) if pid != mount.owner.pid)


def write(site: Site, command: str, *, cache: int = 0, stores: bool = False) -> LaunchFile:
    """Results go to their bucket only if that is wanted: each start of the program that does it takes a while."""
    changes: dict[str, object] = {} if stores else {"uploads": ()}
    return site.write(command, mounts=Mounts((0,), False, cache), **changes)


def how(site: Site) -> list[tuple[object, object]]:
    return [(one["fetch"], one["how"]) for one in site.events(EventKind.DATA)]


def require_hidden(site: Site, *values: str) -> None:
    """No argument, variable or file has one of the values, but for the attempt's file of secrets. The job waits."""
    hidden = [value.encode() for value in values]
    (mount,) = mounts_of(site.run)
    for pid in {*descendants(mount.owner.pid, all_processes()), rclone_of(site.run)}:
        for name in ("cmdline", "environ"):
            said = Path(f"/proc/{pid}/{name}").read_bytes()
            assert not [value for value in hidden if value in said], (pid, name)
    for path in files_below(site.run.base):
        under = Path(site.run.attempt.data) in path.parents
        if path.is_file() and not under and str(path) != site.run.attempt.secrets:
            text = content(path)
            assert not [value for value in hidden if value in text], path


def require_nothing_left(run: Rig) -> None:
    assert in_table(run) == []
    assert programs(run) == []


def test_learner_reads_mounted_bucket_without_copy_and_credentials_stay_hidden(site: Site) -> None:
    look = 'ls -A "$DATA_DIR"; touch "$DATA_DIR/new" 2>&1; cp "$DATA_DIR/b" "$RESULT_DIR"'
    write(site, f"{look}; {READS}; {WAIT}", cache=10**9, stores=True)
    site.run.start_until("begun")
    log = site.run.log()
    assert log.startswith(f"ffdl: loading data: {site.data}/set is mounted\nb\ndeep\n"), log
    assert "Read-only file system" in log and "\nthe data\n1\nbegun" in log
    require_hidden(site, SECRET, KEY)
    # The same search finds it where the program legitimately has it: it reads its configuration from memory.
    texts = [content(one) for one in Path(f"/proc/{rclone_of(site.run)}/fd").iterdir() if "memfd:" in link(one)]
    assert any(SECRET.encode() in text for text in texts)
    (Path(site.run.attempt.results) / "go").touch()
    assert site.run.await_end() == 0, site.run.errors + site.run.log()
    assert (site.run.final().outcome, site.run.final().stored) == (Outcome.COMPLETED, True)
    assert (Path(site.run.attempt.results) / "b").read_bytes() == b"b" * 100_000
    assert how(site) == [(0, "mounted")]
    assert list(Path(site.run.attempt.data).iterdir()) == []
    assert len([1 for method, path, _ in site.proxy.requests if method == "GET" and path.endswith("set/b")]) == 1
    assert not list(site.run.base.glob("ffdl-*")), "the node's scratch directory"
    require_nothing_left(site.run)


def test_attempt_fails_with_s302_when_rclone_is_killed(site: Site) -> None:
    write(site, WAIT, stores=True)
    site.run.start_until("begun")
    os.kill(rclone_of(site.run), signal.SIGKILL)
    assert site.run.await_end() != 0
    final = site.run.final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "S302"), final
    assert "learner 1 lost its data: rclone was killed by signal 9" in final.message
    assert final.stored, "what it wrote until then"
    require_nothing_left(site.run)


def test_attempt_fails_with_s302_when_mount_holder_is_killed(site: Site) -> None:
    write(site, WAIT)
    site.run.start_until("begun")
    (mount,) = mounts_of(site.run)
    os.kill(mount.owner.pid, signal.SIGKILL)
    assert site.run.await_end() != 0
    assert site.run.final().error_code == "S302", site.run.final()
    site.run.wait(lambda: not programs(site.run), "rclone's end")
    site.run.wait(lambda: not in_table(site.run), "the end of the mount")


def test_mount_stays_for_learner_that_outlives_its_controller(site: Site) -> None:
    write(site, f'{WAIT}; echo "still $(cat "$DATA_DIR/deep/a")"')
    site.run.start("node", FFDL_NODE_RANK="0")
    site.run.wait_for_log("begun")
    os.kill(site.run.node_pid(), signal.SIGKILL)
    site.run.await_end()
    time.sleep(1.0)  # longer than the holder's look
    assert len(mounts_of(site.run)) == 1
    (Path(site.run.attempt.results) / "go").touch()
    site.run.wait(lambda: "still the data" in site.run.log(), "the learner's last word")
    site.run.wait(lambda: not in_table(site.run), "the end of the mount")
    site.run.wait(lambda: not programs(site.run), "the end of its programs")


def test_next_run_replaces_mount_left_by_killed_controller(site: Site) -> None:
    write(site, WAIT)
    site.run.start("node", FFDL_NODE_RANK="0")
    site.run.wait_for_log("begun")
    (before,) = mounts_of(site.run)
    os.kill(site.run.node_pid(), signal.SIGKILL)
    site.run.await_end()
    site.run.start()
    site.run.wait(lambda: site.run.log().count("begun") == 2, "the next learner")
    (after,) = mounts_of(site.run)
    assert after.owner != before.owner
    (Path(site.run.attempt.results) / "go").touch()
    assert site.run.await_end() == 0, site.run.errors
    assert how(site) == [(0, "mounted"), (0, "mounted")]
    require_nothing_left(site.run)


def test_next_run_clears_dead_mount(unseen: None, site: Site) -> None:
    write(site, WAIT)
    site.run.start("node", FFDL_NODE_RANK="0")
    site.run.wait_for_log("begun")
    (mount,) = mounts_of(site.run)
    # As a scheduler ends a job: everything at once, and nobody is left to unmount.
    everything = [site.run.node_pid(), mount.owner.pid, rclone_of(site.run)]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    for pid in everything:
        os.kill(pid, signal.SIGKILL)
    site.run.await_end()
    site.run.wait(lambda: not programs(site.run), "the end of all")
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.listdir(mount.point)  # noqa: PTH208
    site.run.start()
    site.run.wait(lambda: site.run.log().count("begun") == 2, "the next learner")
    (Path(site.run.attempt.results) / "go").touch()
    assert site.run.await_end() == 0, site.run.errors
    require_nothing_left(site.run)


def test_data_is_copied_when_rclone_fails(site: Site, tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "rclone"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'no such flag' >&2; exit 3\n")
    broken.chmod(0o755)
    write(site, LOOK)
    site.run.run(PATH=f"{broken.parent}:{os.environ['PATH']}")
    log = site.run.log()
    why = "rclone exited with status 3: no such flag; its data are copied\n"
    assert f"ffdl: loading data: {site.data}/set is not mounted: {why}" in log
    assert "ffdl: loading data: 2 files, " in log and log.endswith("the data\n0\n")
    assert how(site) == [(0, "staged")]
    require_nothing_left(site.run)


def test_attempt_fails_with_c103_when_mounted_store_rejects_credentials(site: Site) -> None:
    site.proxy.rules.append(Rule("GET", site.data, status=403, code="InvalidAccessKeyId"))
    write(site, LOOK)
    assert site.run.run() != 0
    assert site.run.final().error_code == "C103", site.run.final()
    require_nothing_left(site.run)


def test_bucket_is_mounted_on_each_node(site: Site) -> None:
    plain = write(site, "true")
    two_nodes(site.run, LOOK, limits=plain.limits, stores=plain.stores, fetches=plain.fetches, mounts=plain.mounts,
              staging=plain.staging)  # fmt: skip
    assert site.run.run() == 0, site.run.errors
    for rank in (0, 1):
        found = [e.fields for e in site.run.events(f"node-{rank}") if e.kind is EventKind.DATA]
        assert [(one["fetch"], one["how"]) for one in found] == [(0, "mounted")], rank
    require_nothing_left(site.run)
