"""``ffdl download`` of results in a real S3 server, and of files that a daemon sends."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.views import OutputView
from tests import preloaded
from tests.staging_rig import KEY, SECRET, StagingRig, rig
from tests.unit.cli.programs import FFDL, environment
from tests.unit.client.fake_daemon import FakeDaemon, make_job

__all__ = ["rig"]
JOB = "training-000000001"


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    """A fake daemon with one job."""
    with tempfile.TemporaryDirectory(prefix="ffdl-") as name:
        fake = FakeDaemon(Path(name) / "s" / "ffdl.sock").start()
        fake.jobs[JOB] = make_job(JOB, state="COMPLETED")
        yield fake
        fake.stop()


def ask(daemon: FakeDaemon, where: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = [*FFDL, "download", JOB, *words]
    env = environment(daemon, {"XDG_CACHE_HOME": str(where / "cache"), **more})
    return preloaded.run(argv, cwd=where, env=env, capture_output=True, text=True, timeout=180, check=False)


def test_download_fetches_results_from_s3_with_environment_or_secret_keys(rig: StagingRig, daemon: FakeDaemon) -> None:
    """With what the manifest held, what is among the person's secrets, or the environment."""
    rig.put(f"{JOB}/model.pt", b"weights")
    rig.put(f"{JOB}/learner-1/training-log.txt", b"line\n")
    rig.put("training-other/model.pt", b"another job's")
    secrets = rig.directory / "jobs-secrets.json"
    secrets.write_text(json.dumps({"the-key": KEY}))
    daemon.output = OutputView(JOB, "results", "COMPLETED", 1, store=rig.store, prefix=JOB, secrets=str(secrets))
    missing = ask(daemon, rig.directory)
    assert (missing.returncode, missing.stdout) == (77, "")
    assert "there is no secret the-secret (set it: ffdl secret set the-secret)" in missing.stderr

    by_shell = ask(daemon, rig.directory, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    assert by_shell.returncode == 0, by_shell.stderr
    own = daemon.path.parent / "state" / "secrets"
    own.mkdir(parents=True)
    (own / "the-secret").write_text(SECRET)
    rig.proxy.authorizations.clear()
    done = ask(daemon, rig.directory, "--json")
    assert json.loads(done.stdout)["done"]["kept"] == 2, done.stderr
    assert KEY in rig.proxy.authorizations[0]
    out = rig.directory / JOB / "results"
    assert (out / "model.pt").read_bytes() == b"weights"
    assert (out / "learner-1" / "training-log.txt").read_bytes() == b"line\n"
    secrets.unlink()
    for path in rig.directory.rglob("*"):
        if path.is_file() and path != rig.secrets:
            assert SECRET.encode() not in path.read_bytes(), path


def tar_of(files: dict[str, bytes]) -> bytes:
    """Links, and files whose sizes are whole blocks."""
    made = b""
    for name, target in {"\x1b[2Jlink": "/etc/passwd", "latest": "/job/results/a", "../x": "a"}.items():
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        made += link.tobuf()
    for name, data in files.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        assert entry.size % tarfile.BLOCKSIZE == 0
        made += entry.tobuf() + data
    return made + bytes(2 * tarfile.BLOCKSIZE)


def test_download_extracts_daemon_archive_without_outside_links_and_paths(tmp_path: Path, daemon: FakeDaemon) -> None:
    """The directory is not visible here; links and paths that lead out of it are left out."""
    daemon.output = OutputView(
        JOB, "results", "COMPLETED", 1, directory="/nowhere/at/all", inode=1, note="look at this"
    )
    daemon.output = replace(daemon.output, roots=("/job/results",))
    daemon.files = tar_of({"a/b": b"1" * 1024, "../outside": b"x" * 512, "/absolute": b"x" * 512})
    done = ask(daemon, tmp_path)
    elsewhere = "it has . or .. as a part, which would lead elsewhere"
    reported = [
        "look at this",
        "\\x1b[2Jlink is left out: it is a link that leads out of the directory, to /etc/passwd",
        f"../x is left out: {elsewhere}",
        f"../outside is left out: {elsewhere}",
        "/absolute is left out: it has an empty part (//, or / at its beginning), which no path can have",
    ]
    assert (done.returncode, done.stderr) == (0, "".join(f"ffdl: {line}\n" for line in reported))
    links = [path for path in (tmp_path / JOB).rglob("*") if path.is_symlink()]
    assert [(path.name, str(path.readlink())) for path in links] == [("latest", "a")]
    assert [path for path in (tmp_path / JOB).rglob("*") if path.is_file()] == [tmp_path / JOB / "results" / "a" / "b"]
    assert not list((tmp_path / "cache").rglob("sent"))
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("cut", [1100, -512, -1])
def test_download_writes_nothing_when_daemon_response_breaks_off(tmp_path: Path, daemon: FakeDaemon, cut: int) -> None:
    daemon.output = OutputView(JOB, "logs", "PROCESSING", 1, directory=str(tmp_path), is_partial=True)
    daemon.files = tar_of({"a/b": b"1" * 1024})
    daemon.files_cut_at = cut
    done = ask(daemon, tmp_path, "--logs")
    assert done.returncode == 75, done.stderr
    assert "broke off" in done.stderr
    assert not (tmp_path / JOB).exists()


def test_download_uses_daemon_when_local_directory_has_another_inode(tmp_path: Path, daemon: FakeDaemon) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "other").write_text("of another host")
    output = OutputView(JOB, "results", "COMPLETED", 1, directory=str(here), inode=here.stat().st_ino + 1)
    daemon.output, daemon.files = output, tar_of({"mine": b"1" * 512})
    assert ask(daemon, tmp_path, "--out", "one").returncode == 0
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["mine"]
    daemon.output = replace(output, inode=here.stat().st_ino)
    assert ask(daemon, tmp_path, "--out", "two").returncode == 0
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["other"]
