"""Jobs in images of Debian's own registry, on real Slurm with Apptainer: once per digest, with and without a password.

The registry is on a node's loopback, which is spoken to without TLS; the jobs run there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import bcrypt
import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.python_layers import SOURCE
from tests.cluster.test_cached_images import registry_program
from tests.cluster.test_data import PYTHON

pytestmark = pytest.mark.full

NODE, PORT, OPEN_PORT = "n1", 5141, 5142
HOST, OPEN_HOST = f"127.0.0.1:{PORT}", f"127.0.0.1:{OPEN_PORT}"
USER, PASSWORD = "planted-registry-user", "planted-Registry-Word-0123456789"
PLACE, CACHE = "/shared/registry", "/tmp/ffdl-images-of-alice"
COMMAND = 'echo "it says: $(< /etc/hello)"; echo "in: ${APPTAINER_CONTAINER-}"; env -0 2>/dev/null; set'
PUSH = f"""\
import re, subprocess, sys, time, urllib.error, urllib.request
sys.path.insert(0, {SOURCE!r})
from tests.fakes.registry import Pusher
for port in ({PORT}, {OPEN_PORT}):
    for _ in range(1500):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{{port}}/v2/", timeout=60)
            break
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.1)
needed = subprocess.run(["ldd", "/usr/bin/bash"], capture_output=True, text=True, check=True).stdout
files = {{path.lstrip("/"): open(path, "rb").read() for path in re.findall(r"(/\\S+) \\(", needed)}}
files |= dict.fromkeys(("bin/bash", "bin/sh"), open("/usr/bin/bash", "rb").read())
files["etc/hello"] = b"hello from the registry"
Pusher("http://{HOST}", {USER!r}, {PASSWORD!r}).push("tiny/bash", "v1", files)
"""


@dataclass
class Registry:
    """The jobs, what they said, and which blobs the registry had given when those with a cache had ended."""

    alice: Person
    given: list[str] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    def blobs(self, host: str) -> list[str]:
        """Blobs that were given, by the registry's log."""
        log = self.alice.run("cat", f"{PLACE}/{host.rpartition(':')[2]}.log", node=NODE).stdout
        return re.findall(r'"GET /v2/tiny/bash/blobs/(sha256:[0-9a-f]{64}) HTTP/1\.[01]" 200', log)

    def run(self, person: Person, **manifests: str) -> None:
        """Submit all of them, and wait for their ends."""
        model = person.model("empty", {"README": "nothing here\n"})
        paths = {name: person.write(f"~/manifests/{name}.yml", text) for name, text in manifests.items()}
        ids = {name: person.submit(path, model, "-w", NODE) for name, path in paths.items()}
        for name, job_id in ids.items():
            self.jobs[name] = person.finish(job_id)
            self.logs[name] = person.logs(job_id)


def manifest(name: str, version: str, location: str = "") -> str:
    located = f"  image_location: {location}\n" if location else ""
    return (
        f"name: {name}\ngpus: 0\ncpus: 1\nmemory: 256MiB\nframework:\n  name: {name}\n  version: '{version}'\n"
        f"  command: '{COMMAND}'\n{located}"
    )


@pytest.fixture(scope="module")
def registry(cluster: Cluster, alice: Person) -> Iterator[Registry]:
    place = cluster.path("ctl", PLACE)
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    shutil.copyfile(registry_program(), place / "docker-registry")
    (place / "docker-registry").chmod(0o755)
    known = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (place / "htpasswd").write_text(f"{USER}:{known}\n")
    storage = f"storage: {{filesystem: {{rootdirectory: {PLACE}/storage}}}}"
    auth = f"auth: {{htpasswd: {{realm: here, path: {PLACE}/htpasswd}}}}\n"
    servers = []
    for port, more in ((PORT, auth), (OPEN_PORT, "")):
        (place / f"{port}.yml").write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{more}")
        serve = f"exec {PLACE}/docker-registry serve {PLACE}/{port}.yml >{PLACE}/{port}.log 2>&1"
        servers.append(alice.popen("sh", "-c", serve, node=NODE))
    made = Registry(alice)
    cached = alice.at("images", f'cache_dir = "{CACHE}"\ncache_bytes = "4GB"\n')
    own = alice.at("own-images", "")
    try:
        alice.run(PYTHON, "-c", PUSH, node=NODE)
        for person in (cached, own):
            given = person.write("~/word.txt", PASSWORD)
            person.run("ffdl", "secret", "set", "registry", "--from-file", given)
            person.run("rm", given)
        by_name = f"{{user_name: {USER}, access_token: '${{secret:registry}}'}}"
        located = f"{{registry: '{HOST}', namespace: tiny, user_name: {USER}, access_token: {{}}}}"
        made.run(
            cached,
            first=manifest("custom", f"{HOST}/tiny/bash:v1", by_name),
            second=manifest("bash", "v1", located.replace("{}", PASSWORD)),
            open_one=manifest("custom", f"{OPEN_HOST}/tiny/bash:v1"),
            open_two=manifest("custom", f"{OPEN_HOST}/tiny/bash:v1"),
            refused=manifest("bash", "v1", located.replace("{}", "planted-wrong-word")),
        )
        made.given = made.blobs(HOST)
        made.run(own, own=manifest("custom", f"{HOST}/tiny/bash:v1", by_name))
        yield made
    finally:
        for server in servers:
            cluster.kill(server)
        cached.run("ffdl", "cache", "rm", "--all", node=NODE, check=False)
        cached.leave()
        own.leave()


def test_jobs_share_cached_sif_after_one_download_from_registry(registry: Registry) -> None:
    for name in ("first", "second", "open_one", "open_two"):
        assert registry.jobs[name]["state"] == "COMPLETED", (registry.jobs[name], registry.logs[name])
        assert "it says: hello from the registry\n" in registry.logs[name]
        assert re.search(rf"in: {CACHE}/[0-9]+/entries/[0-9a-f]+/tree/image\.sif\n", registry.logs[name])
    for blobs in (registry.given, registry.blobs(OPEN_HOST)):
        assert len(blobs) == len(set(blobs)) == 2, blobs  # the layer and the configuration


def test_job_fails_with_c103_when_registry_token_is_wrong(registry: Registry) -> None:
    job = registry.jobs["refused"]
    assert (job["state"], job["error_code"]) == ("FAILED", "C103"), job
    assert "it answered 401" in job["message"]
    assert "access_token" in job["message"]


def test_private_image_is_stored_in_user_state_without_cache(registry: Registry) -> None:
    assert registry.jobs["own"]["state"] == "COMPLETED", (registry.jobs["own"], registry.logs["own"])
    assert re.search(r"in: \S*/own-images/state/images/[0-9]+/entries/\S*/image\.sif\n", registry.logs["own"])


def test_registry_password_is_only_in_secret_store_and_resumable_job(registry: Registry) -> None:
    alice = registry.alice
    places = (f"{alice.home}/images", f"{alice.home}/own-images", alice.state, CACHE)
    words = ("-e", PASSWORD, "-e", "planted-wrong-word")
    found = alice.run("sh", "-c", 'grep -rlaF "$@" || true', "sh", *words, *places, node=NODE).stdout.split()
    kept = {f"{alice.home}/{name}/state/secrets/registry" for name in ("images", "own-images")}
    bad = {path for path in found if path not in kept and not path.endswith("/secrets.json")}
    assert bad == set(), found
    assert kept <= set(found), "the search finds what is there"
    failed = f"{alice.home}/images/state/jobs/{registry.jobs['refused']['id']}/secrets.json"
    others = {path for path in found if path.endswith("/secrets.json")}
    assert others <= {failed}, "only a job that can be resumed keeps what it brought along"
    assert not any(PASSWORD in log for log in registry.logs.values())
