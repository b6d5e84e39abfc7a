"""Two users share a small cache on a real node, made as docs/cache.md has it: who fills it does not flush the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.test_data import KEY, PYTHON, SECRET

pytestmark = pytest.mark.full

ADDRESS, PORT, NODE = "10.77.0.1", 5134, "n1"
URL = f"http://{ADDRESS}:{PORT}"
CACHE = "/var/cache/ffdl"
CONFIG = f'cache_dir = "{CACHE}"\ncache_bytes = "5MB"\n'
"""Two sets of 2 MB fit, and no third one; an equal share is 2.5 MB."""
SETS = ("one", "two", "three")
FILL = f"""\
import random, time, boto3
client = boto3.client("s3", endpoint_url="{URL}", region_name="us-east-1", aws_access_key_id="x",
                      aws_secret_access_key="x")
for _ in range(300):
    try:
        client.list_buckets()
        break
    except Exception:
        time.sleep(0.1)
client.create_bucket(Bucket="small")
for name in {SETS!r}:
    client.put_object(Bucket="small", Key=f"{{name}}/file", Body=random.Random(name).randbytes(2_000_000))
"""
STORE = """\
data_stores:
  - id: cos
    type: mount_cos
    training_data: {{container: small/{name}}}
    connection: {{auth_url: "{url}", user_name: {key}, password: {secret}}}
"""


@dataclass
class Tenant:
    """One of the users, with a configuration that has the cache."""

    person: Person

    def train(self, name: str) -> str:
        """A job on the node that reads a set; its log."""
        extra = STORE.format(name=name, url=URL, key=KEY, secret=SECRET)
        command = 'wc -c <"$DATA_DIR/file"'
        job = self.person.finish(self.person.start(f"cached-{name}", command, "-w", NODE, extra=extra, gpus=0))
        log = self.person.logs(job["id"])
        assert (job["state"], log.endswith("\n2000000\n")) == ("COMPLETED", True), (job, log)
        return log

    def holds(self) -> list[str]:
        """The sets that are kept for them, by `ffdl cache`."""
        return sorted(one["source"].rsplit(maxsplit=1)[-1].rsplit("/", 1)[-1] for one in self.cache()["entries"])

    def cache(self) -> dict[str, Any]:
        return dict(json.loads(self.person.run("ffdl", "cache", "--json", node=NODE).stdout))


@pytest.fixture(scope="module")
def tenants(cluster: Cluster, alice: Person, bob: Person) -> Iterator[tuple[Tenant, Tenant]]:
    cluster.run(NODE, ["install", "-d", "-m", "1777", CACHE])
    server = alice.popen(PYTHON, "-W", "ignore", "-m", "moto.server", "-H", ADDRESS, "-p", str(PORT))
    people = [person.at("shared-cache", CONFIG) for person in (alice, bob)]
    try:
        alice.run(PYTHON, alice.write("~/s3/fill-small.py", FILL))
        yield Tenant(people[0]), Tenant(people[1])
    finally:
        cluster.kill(server)
        for person in people:
            person.leave()
        cluster.run(NODE, ["rm", "-rf", CACHE])


def test_shared_cache_evicts_only_entries_of_user_above_equal_share(
    cluster: Cluster, tenants: tuple[Tenant, Tenant]
) -> None:
    alice, bob = tenants
    for name in ("one", "two"):
        assert "are kept in the cache of this node" in alice.train(name)
    assert alice.holds() == ["one", "two"]
    assert bob.cache()["share_bytes"] == 2_500_000, "who looks counts"

    # All of it is hers. He cannot take it, goes on without, and says what he wants.
    assert "it has no room for 1.91 MiB" in bob.train("one")
    assert (bob.holds(), bob.cache()["own_wanted_bytes"] > 2_000_000) == ([], True)
    shown = alice.person.run("ffdl", "cache", node=NODE).stdout
    assert "by other users; users who hold more than an equal share give it back" in shown

    # Her next job gives what she did not use for longest; what she has then is below an equal share.
    assert "come from the cache of this node" in alice.train("two")
    assert alice.holds() == ["two"]
    assert "are kept in the cache of this node" in bob.train("one")

    # He goes on and on: it is his own that go.
    for name in ("two", "three"):
        assert "are kept in the cache of this node" in bob.train(name)
        assert bob.holds() == [name]
    assert "come from the cache of this node" in alice.train("two")
    assert alice.holds() == ["two"]

    # Root, who measures, has nothing to do.
    done = cluster.run(NODE, ["env", f"FFDL_CACHE_DIR={CACHE}", "FFDL_CACHE_BYTES=5MB", "/opt/ffdl/venv/bin/ffdl-admin",
                              "cache", "trim"])  # fmt: skip
    assert "2 users hold " in done.stdout and "0 entries" in done.stdout, done
