"""The nodes' cache on real Slurm: the second job on a node downloads nothing, and its container reads the entry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.test_data import FILL, KEY, PYTHON, SECRET

pytestmark = pytest.mark.full

ADDRESS, PORT = "10.77.0.1", 5124
URL = f"http://{ADDRESS}:{PORT}"
CACHE = "/tmp/ffdl-cache-of-alice"
COMMAND = "cat $DATA_DIR/deep/a; { echo 1 > $DATA_DIR/new; } 2>/dev/null && echo written; df --output=target $DATA_DIR"
STORE = f"""\
data_stores:
  - id: cos
    type: mount_cos
    training_data: {{container: sets/digits}}
    connection: {{auth_url: "{URL}", user_name: {KEY}, password: {SECRET}}}
"""


@dataclass(frozen=True)
class Ended:
    """Two jobs on one node, with their logs, and what the cache holds then."""

    jobs: list[dict[str, Any]]
    logs: list[str]
    cache: dict[str, Any]
    requests: str


@pytest.fixture(scope="module")
def ended(cluster: Cluster, alice: Person) -> Iterator[Ended]:
    cached = alice.at("cached", f'cache_dir = "{CACHE}"\ncache_bytes = "1GB"\n')
    fill = alice.write("~/s3/fill-cached.py", FILL)
    log = f"{alice.home}/s3/requests"
    serve = f"exec {PYTHON} -W ignore -m moto.server -H {ADDRESS} -p {PORT} 2>{log}"
    server = alice.popen("sh", "-c", serve)
    try:
        alice.run(PYTHON, fill, URL, json.dumps({"digits/deep/a": "from the bucket\n"}))
        jobs = [cached.finish(cached.start(f"cached-{n}", COMMAND, "-w", "n1", extra=STORE, gpus=0)) for n in range(2)]
        requests = alice.read(log)
    finally:
        cluster.kill(server)
    logs = [cached.run("ffdl", "logs", job["id"]).stdout for job in jobs]
    listed = cached.run("ffdl", "cache", "--json", node="n1").stdout
    yield Ended(jobs, logs, json.loads(listed), requests)
    cached.run("ffdl", "cache", "rm", "--all", node="n1")
    cached.leave()


def test_second_job_on_node_reads_data_from_node_cache_without_download(ended: Ended) -> None:
    assert [job["state"] for job in ended.jobs] == ["COMPLETED"] * 2, ended.logs
    assert ended.requests.count("GET /sets/digits/deep/a ") == 1, ended.requests
    first, second = ended.logs
    assert "are kept in the cache of this node" in first
    assert "come from the cache of this node" in second
    for log in ended.logs:
        assert "from the bucket\n" in log
        assert "written" not in log


def test_cache_command_lists_entry_source_files_and_host_as_json(ended: Ended) -> None:
    (entry,) = ended.cache["entries"]
    assert (entry["files"], entry["in_use"], entry["damaged"]) == (1, False, False)
    assert URL in entry["source"]
    assert ended.cache["host"] == "n1"
