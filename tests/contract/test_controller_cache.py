"""Controllers whose data and image come from the node's cache: once for all jobs, and held as long as they are used."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, NodeCache, encode
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.staging.cache.capacity import discard
from ffdl_batch.staging.cache.user_cache import Shelf
from tests.contract.controller_rig import rig
from tests.contract.test_controller_data import Site
from tests.contract.test_staging_images import ImageRig
from tests.fakes.registry import PASSWORD, USER
from tests.fakes.s3_server import S3Server
from tests.staging_rig import KEY, SECRET

SLOW = 'cat "$DATA_DIR/a"; while [ ! -e "$CHECKPOINT_DIR/go" ]; do sleep 0.1; done'


class Cachy(Site):
    """A site whose nodes have a cache."""

    def cached(self, command: str, *, link: bool = True, **changes: object) -> LaunchFile:
        fetch = Transfer(self.store(self.data), "set", self.run.attempt.data, link=link)
        place = NodeCache(str(self.run.base / "cache"))
        return self.write(command, fetches=(fetch,), cache=place, uploads=(), **changes)

    @property
    def shelf(self) -> Shelf:
        return Shelf(str(self.run.base / "cache"), os.getuid())

    def downloads(self) -> int:
        return sum(1 for method, path, _ in self.proxy.requests if method == "GET" and path.endswith("/set/a"))

    def forget(self) -> None:
        """As for another job: nothing was done, and nothing is there."""
        kept = {path: path.read_bytes() for path in Path(self.run.attempt.path).iterdir() if path.is_file()}
        shutil.rmtree(self.run.job.path)
        Path(self.run.job.checkpoints).mkdir(parents=True)
        Path(self.run.attempt.path).mkdir(mode=0o700)
        for path in map(Path, (self.run.attempt.launch, self.run.attempt.environment)):
            path.write_bytes(kept[path])
            path.chmod(0o600)
        Path(self.run.attempt.secrets).write_text(json.dumps({"the-key": KEY, "the-secret": SECRET}))


@pytest.fixture(name="site")
def made(tmp_path: Path, s3_server: S3Server) -> Iterator[Cachy]:
    with rig(tmp_path) as run:
        site = Cachy(run, s3_server)
        site.put("set/a", b"from the bucket\n")
        yield site
        site.proxy.stop()


@pytest.mark.parametrize("link", [True, False])
def test_second_attempt_reads_cached_data_without_download(site: Cachy, link: bool) -> None:
    """A linked entry is not discarded as long as a learner uses it."""
    site.cached(SLOW, link=link)
    head = site.run.start_until("from the bucket")
    (key,) = site.shelf.names()
    assert Path(site.run.attempt.data).is_symlink() is link
    assert not link or not discard(site.shelf, key)
    Path(site.run.job.checkpoints, "go").touch()
    assert head.wait(timeout=240) == 0, site.run.errors
    assert "are kept in the cache of this node" in site.run.log()
    site.forget()
    Path(site.run.job.checkpoints, "go").touch()
    assert site.run.run() == 0, site.run.errors
    assert site.downloads() == 1
    assert "come from the cache of this node" in site.run.log()
    assert re.search(r"(?<!\d)0 B/s", site.run.log()) is None
    assert "from the bucket\n" in site.run.log()
    assert discard(site.shelf, key)


def test_restarted_attempt_refills_cache_when_entry_is_missing(site: Cachy) -> None:
    """The scheduler starts the attempt again: what was loaded is said to be done, and the link leads nowhere."""
    site.cached(SLOW)
    head = site.run.start_until("from the bucket")
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, site.run.errors
    shutil.rmtree(site.run.base / "cache")
    Path(site.run.job.checkpoints, "go").touch()
    assert site.run.run() == 0, site.run.errors
    assert site.run.log().count("from the bucket") == 2
    assert site.downloads() == 2
    assert (Path(site.run.attempt.data) / "a").read_bytes() == b"from the bucket\n"


def test_controller_logs_note_and_copies_data_when_cache_is_unusable(site: Cachy) -> None:
    (site.run.base / "cache").mkdir()
    (site.run.base / "cache").chmod(0o777)
    site.cached('cat "$DATA_DIR/a"')
    assert site.run.run() == 0, site.run.errors
    assert "the cache is not used" in site.run.log()
    assert not Path(site.run.attempt.data).is_symlink()


@pytest.fixture(name="images")
def image_rig(tmp_path: Path) -> Iterator[ImageRig]:
    found = ImageRig(tmp_path)
    yield found
    found.registry.stop()


def with_image(site: Cachy, images: ImageRig, name: str) -> LaunchFile:
    reference = f"docker://{images.registry.host}/{name}"
    cache = NodeCache(str(site.run.base / "cache"), image=reference, program=str(images.program))
    launch = site.write("true", fetches=(), uploads=(), cache=cache)
    shown = LearnerCommand(("sh", "-c", 'cat "$0" || echo "by $0"', "{image}"), launch.learner.env)
    return site.write("true", fetches=(), uploads=(), cache=cache, learner=shown)


def test_image_is_cached_as_sif_file_built_once(site: Cachy, images: ImageRig) -> None:
    digest = images.pusher.push("some/image", "one", {"a": b"1"})
    with_image(site, images, "some/image:one")
    for _ in range(2):
        assert site.run.run() == 0, site.run.errors
        assert f"sif of docker://{images.registry.host}/some/image@{digest}" in site.run.log()
        site.forget()
    assert len(images.calls()) == 1


def test_private_image_is_stored_for_user_without_node_cache(site: Cachy, images: ImageRig) -> None:
    images.pusher.push("some/image", "one", {"a": b"1"})
    images.registry.token = "a-token-that-is-given"
    launch = with_image(site, images, "some/image:one")
    assert launch.cache is not None
    known = {"user_name": "me", "password": "word"}
    own = replace(launch.cache, directory="", images=str(site.run.base / "images"), credentials=known)
    shown = replace(launch, cache=own)
    Path(site.run.attempt.launch).write_text(encode(shown))
    Path(site.run.attempt.secrets).write_text(json.dumps({"me": USER, "word": PASSWORD}))
    assert site.run.run() == 0, (site.run.errors, site.run.log())
    assert f"sif of docker://{images.registry.host}/some/image@sha256:" in site.run.log()
    assert list((site.run.base / "images").glob("*/entries/*/tree/image.sif"))
    Path(f"{images.program}.calls").unlink()
    for path in (one for one in site.run.base.rglob("*") if one.is_file() and one.name != "secrets.json"):
        assert PASSWORD.encode() not in path.read_bytes(), path


def test_attempt_fails_with_c103_when_registry_rejects_password(site: Cachy, images: ImageRig) -> None:
    images.pusher.push("some/image", "one", {"a": b"1"})
    images.registry.token = "a-token-that-is-given"
    launch = with_image(site, images, "some/image:one")
    assert launch.cache is not None
    site.write("true", fetches=(), uploads=(), cache=replace(launch.cache, credentials={"password": "word"}))
    Path(site.run.attempt.secrets).write_text(json.dumps({"word": "planted-wrong"}))
    assert site.run.run() != 0
    final = site.run.final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "C103")
    assert "it answered 401" in final.message
    assert "planted-wrong" not in final.message


def test_attempt_fails_with_s103_when_image_is_missing(site: Cachy, images: ImageRig) -> None:
    with_image(site, images, "no/image:one")
    assert site.run.run() != 0
    final = site.run.final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "S103")
    assert "no/image:one: it answered 404" in final.message


def test_image_reference_is_passed_to_apptainer_when_cache_build_fails(site: Cachy, images: ImageRig) -> None:
    images.pusher.push("some/image", "one", {"a": b"1"})
    images.flag("fails", "FATAL: broken")
    with_image(site, images, "some/image:one")
    assert site.run.run() == 0, site.run.errors
    assert f"by docker://{images.registry.host}/some/image:one" in site.run.log()
