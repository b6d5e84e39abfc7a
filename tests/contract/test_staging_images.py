"""Images of registries become SIF files once per digest; a fake Apptainer says how it was called."""

from __future__ import annotations

import base64
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.data.image_task import SIF, ImageTask, encode_image_task
from ffdl_batch.domain.data.staging_protocol import Cache, Cached, Done, Failed, FaultClass, Line, Note, Retry
from ffdl_batch.staging.cache.user_cache import Shelf
from tests import preloaded
from tests.cache_rig import until
from tests.fakes.registry import PASSWORD, USER, Pusher, Registry
from tests.staging_rig import lines_of

APPTAINER = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "apptainer version ${VERSION:-1.4.2}"; exit; fi
if [ "$2" = --help ]; then [ -e "$0.old" ] || echo "  --authfile string"; exit; fi
for word; do [ "$last" != --authfile ] || auth=$(cat "$word"); last=$word; done
if [ -n "$APPTAINER_CONFIGDIR" ]; then auth=$(cat "$APPTAINER_CONFIGDIR/docker-config.json"); fi
env >>"$0.env"
echo "$$ $* user=$APPTAINER_DOCKER_USERNAME password=$APPTAINER_DOCKER_PASSWORD auth=$auth" >>"$0.calls"
for word; do target=$before; before=$word; done
echo layers >"$APPTAINER_CACHEDIR/blob"; mkdir -p "$APPTAINER_TMPDIR/root/usr"; chmod 0555 "$APPTAINER_TMPDIR/root"
while [ -e "$0.wait" ]; do sleep 0.05; done
if [ -e "$0.fails" ]; then cat "$0.fails" >&2; exit 255; fi
echo "sif of $before" >"$target"
"""


class ImageRig:
    """A registry, an Apptainer, and a cache."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.registry = directory, Registry()
        self.pusher = Pusher(self.registry.endpoint)
        self.program = directory / "apptainer"
        self.program.write_text(APPTAINER)
        self.program.chmod(0o755)
        self.secrets = directory / "secrets.json"
        self.secrets.write_text(json.dumps({"user": USER, "pass": PASSWORD}))
        self.shelf = Shelf(str(directory / "cache"), os.getuid())
        self.number = 0
        self.digest = self.pusher.push("some/image", "one", {"bin/a": b"1"})

    def task(self, name: str = "some/image:one", **changes: Any) -> ImageTask:
        reference = f"docker://{self.registry.host}/{name}"
        cache = Cache(f"{self.directory}/cache", 10**9, stale_s=60.0)
        return replace(ImageTask(reference, cache, str(self.program), pause_s=0.01), **changes)

    def private_task(self, **credentials: str) -> ImageTask:
        credentials = credentials or {"user_name": "user", "password": "pass"}
        return self.task(credentials=credentials, secrets_file=str(self.secrets))

    def start(self, task: ImageTask, env: Mapping[str, str] | None = None) -> tuple[subprocess.Popen[bytes], Path]:
        self.number += 1
        path, output = self.directory / f"task-{self.number}", self.directory / f"output-{self.number}"
        path.write_text(encode_image_task(task))
        argv = [sys.executable, "-m", "ffdl_batch.staging", "--image", str(path)]
        with output.open("wb") as file:
            whole = {**os.environ, **(env or {})}
            return preloaded.PopenTree(argv, stdout=file, stderr=subprocess.STDOUT, env=whole), output

    def run(self, task: ImageTask, env: Mapping[str, str] | None = None) -> tuple[int, list[Line]]:
        process, output = self.start(task, env)
        return process.wait(timeout=180), lines_of(output.read_text())

    def calls(self) -> list[str]:
        path = Path(f"{self.program}.calls")
        return path.read_text().splitlines() if path.exists() else []

    def passed_credentials(self) -> str:
        """What the only call got in a file; neither they nor their encoding are left in any."""
        (call,) = self.calls()
        assert "user= password= " in call
        auth = str(json.loads(call.partition(" auth=")[2])["auths"][self.registry.host]["auth"])
        Path(f"{self.program}.calls").unlink()
        for path in self.directory.rglob("*"):
            if path.is_file() and path != self.secrets:
                data = path.read_bytes()
                assert PASSWORD.encode() not in data and auth.encode() not in data, path
        return base64.b64decode(auth).decode()

    def flag(self, name: str, text: str = "") -> Path:
        path = Path(f"{self.program}.{name}")
        path.write_text(text)
        return path


@pytest.fixture(name="images")
def made(tmp_path: Path) -> Iterator[ImageRig]:
    rig = ImageRig(tmp_path)
    yield rig
    rig.registry.stop()


def of(kind: type[Any], lines: list[Line]) -> list[Any]:
    return [line for line in lines if isinstance(line, kind)]


def test_image_cache_builds_once_per_digest_and_apptainer_version(images: ImageRig) -> None:
    status, lines = images.run(images.task())
    (said,) = of(Cached, lines)
    pinned = f"docker://{images.registry.host}/some/image@{images.digest}"
    assert (status, said.filled, said.bytes) == (0, True, len(f"sif of {pinned}\n"))
    assert (Path(said.tree) / SIF).read_text() == f"sif of {pinned}\n"
    assert [path.name for path in Path(said.tree).parent.iterdir() if path.name.startswith("work")] == []
    assert "--no-https" in images.calls()[0]

    images.pusher.push("some/image", "two", {"bin/a": b"1"})
    (again,) = of(Cached, images.run(images.task("some/image:two"))[1])
    assert (again.key, again.filled) == (said.key, False)
    pinned_task = replace(images.task(), reference=pinned)
    assert of(Cached, images.run(pinned_task)[1])[0].key == said.key
    assert len(images.calls()) == 1

    images.pusher.push("some/image", "one", {"bin/a": b"2"})
    (newer,) = of(Cached, images.run(images.task())[1])
    assert newer.key != said.key
    assert of(Cached, images.run(images.task(), {"VERSION": "2.0.0"})[1])[0].key not in (said.key, newer.key)
    assert len(images.calls()) == 3


def test_image_cache_builds_once_for_concurrent_jobs(images: ImageRig) -> None:
    wait = images.flag("wait")
    jobs = [images.start(images.task()) for _ in range(4)]
    until(lambda: sum("fills the cache" in output.read_text() for _, output in jobs) == 3, "three wait for the first")
    wait.unlink()
    for process, output in jobs:
        assert process.wait(timeout=180) == 0, output.read_text()
    assert len(images.calls()) == 1
    assert sum(of(Cached, lines_of(output.read_text()))[0].filled for _, output in jobs) == 1


def test_image_cache_waiter_rebuilds_after_builder_and_its_apptainer_are_killed(images: ImageRig) -> None:
    wait = images.flag("wait")
    first, _ = images.start(images.task())
    until(images.calls, "it is being made")
    second, output = images.start(images.task())
    until(lambda: "fills the cache" in output.read_text(), "the second waits")
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: len(images.calls()) == 2, "the second makes it")
    gone = int(images.calls()[0].split()[0])
    until(lambda: not Path(f"/proc/{gone}").exists(), "the first Apptainer is gone")
    wait.unlink()
    assert second.wait(timeout=180) == 0
    (said,) = of(Cached, lines_of(output.read_text()))
    assert [path.name for path in Path(said.tree).parent.iterdir() if path.name.startswith("work")] == []


def test_image_cache_selects_machine_architecture_and_fails_if_absent(images: ImageRig) -> None:
    mine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    wanted = images.pusher.push("some/image", "mine", {"a": b"1"})
    other = images.pusher.push("some/image", "other", {"a": b"2"})
    images.pusher.push_index("some/image", "one", {"s390x": other, mine: wanted})
    assert of(Cached, images.run(images.task())[1])
    assert images.calls()[0].split(" user=")[0].endswith(f"some/image@{wanted}")
    images.pusher.push_index("some/image", "none", {"s390x": other})
    status, lines = images.run(images.task("some/image:none"))
    assert status == 66
    assert isinstance(lines[-1], Failed)
    assert (lines[-1].code, "there is none for" in lines[-1].message) == ("S103", True)


def test_image_cache_authenticates_to_private_registry_without_leaking_password(images: ImageRig) -> None:
    images.registry.token = "a-token-that-is-given"
    status, lines = images.run(images.private_task())
    assert status == 0
    assert of(Cached, lines)
    assert images.registry.tokens == ["repository:some/image:pull"]
    assert images.passed_credentials() == f"{USER}:{PASSWORD}"
    status, lines = images.run(images.task())
    assert (status, of(Cached, lines), type(lines[-1])) == (0, [], Done)
    assert "the cache is not used for the image" in of(Note, lines)[0].why


def test_image_cache_passes_token_in_docker_config_to_apptainer_without_authfile(images: ImageRig) -> None:
    images.flag("old")
    status, lines = images.run(images.private_task(password="pass"), {"VERSION": "1.2.0"})
    assert (status, len(of(Cached, lines))) == (0, 1)
    assert images.passed_credentials() == f"token:{PASSWORD}"


@pytest.mark.parametrize("version", ["1.1.9", "0.9.0"])
def test_image_cache_rejects_private_image_if_apptainer_is_older_than_1_2(images: ImageRig, version: str) -> None:
    images.flag("old")
    status, lines = images.run(images.private_task(), {"VERSION": version})
    assert (status, images.calls()) == (69, [])
    assert isinstance(lines[-1], Failed)
    assert lines[-1].code == "S105"
    assert f"apptainer {version[:3]} on node " in lines[-1].message
    assert "a private image needs Apptainer 1.2 or newer there" in lines[-1].message


def test_image_cache_fails_job_when_registry_rejects_credentials(images: ImageRig) -> None:
    """They were meant: Apptainer would be refused, too, in words that say less."""
    images.registry.token = "a-token-that-is-given"
    images.secrets.write_text(json.dumps({"user": USER, "pass": "planted-wrong-word"}))
    status, lines = images.run(images.private_task())
    last = lines[-1]
    assert isinstance(last, Failed)
    assert (status, last.code, last.class_) == (77, "C103", FaultClass.CREDENTIALS)
    assert "it answered 401" in last.message
    assert "access_token of framework.image_location" in last.message
    assert "planted-wrong-word" not in str(lines)
    assert images.calls() == []


def test_image_cache_fails_job_when_image_does_not_exist(images: ImageRig) -> None:
    status, lines = images.run(images.task("no/image:one"))
    assert status == 66
    last = lines[-1]
    assert isinstance(last, Failed)
    assert last.code == "S103"
    assert f"image docker://{images.registry.host}/no/image:one: it answered 404" in last.message
    assert images.calls() == []


def test_image_cache_retries_when_manifest_does_not_match_digest(images: ImageRig) -> None:
    images.registry.spoil = 1
    status, lines = images.run(images.task(f"some/image@{images.digest}"))
    assert (status, len(of(Retry, lines))) == (0, 1)
    assert of(Cached, lines)


@pytest.mark.parametrize(
    ("said", "told"), [("FATAL: no space left on device", "no space left"), ("FATAL: broken layer", "broken layer")]
)
def test_image_cache_notes_apptainer_build_failure_and_is_bypassed(images: ImageRig, said: str, told: str) -> None:
    images.flag("fails", said)
    status, lines = images.run(images.task())
    assert (status, of(Cached, lines), type(lines[-1])) == (0, [], Done)
    assert told in of(Note, lines)[0].why
    assert list(Path(images.shelf.root, "filling").iterdir()) == []


@pytest.mark.parametrize("wrong", ["program", "registry", "reference"])
def test_image_cache_is_bypassed_when_program_registry_or_reference_is_unusable(images: ImageRig, wrong: str) -> None:
    task = images.task(tries=2)
    if wrong == "program":
        task = replace(task, program=str(images.directory / "nothing"))
    elif wrong == "registry":
        task = replace(task, reference="docker://127.0.0.1:1/some/image:one")
    else:
        task = replace(task, reference="docker://Not A Name")
    status, lines = images.run(task)
    assert (status, of(Cached, lines), type(lines[-1])) == (0, [], Done)
    assert "the cache is not used for the image" in of(Note, lines)[0].why
    assert images.calls() == []
