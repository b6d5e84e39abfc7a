"""Jobs of a daemon with a cache: ten that want the same data set have it downloaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.daemon_rig import PLAIN, site_in
from tests.contract.test_data_jobs import Data
from tests.fakes.fault_proxy import FaultProxy
from tests.fakes.s3_server import S3Server

pytestmark = pytest.mark.full

JOBS = 10


@pytest.fixture
def data(tmp_path: Path, s3_server: S3Server) -> Iterator[Data]:
    bucket = f"cached-{abs(hash(str(tmp_path))):x}"
    s3_server.client.create_bucket(Bucket=bucket)
    for key, content in {"set/a": b"from main\n", "more/b": b"from second\n"}.items():
        s3_server.client.put_object(Bucket=bucket, Key=key, Body=content)
    environment = {"FFDL_BACKEND": "local", "FFDL_CACHE_DIR": str(tmp_path / "cache"), "FFDL_CACHE_BYTES": "1GB"}
    with site_in(tmp_path, more_environment=environment) as site:
        site.start(program=PLAIN)
        made = Data(site, s3_server, FaultProxy(s3_server.port), bucket)
        yield made
        made.proxy.stop()


def test_ten_jobs_with_node_cache_download_data_set_once(data: Data) -> None:
    results = [data.submit() for _ in range(JOBS)]
    assert [result["problem"] for result in results] == [None] * JOBS
    jobs = [data.ended(result["id"]) for result in results]
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    read = [path for method, path, _ in data.proxy.requests if method == "GET" and "list-type" not in path]
    assert sorted(path.rpartition("/")[2] for path in read if "/set/" in path or "/more/" in path) == ["a", "b"]
    stored = data.stored()
    for job in jobs:
        log = stored[f"out/{job['id']}/learner-1/training-log.txt"]
        assert log.endswith(b"from main\nfrom second\n"), log
        assert b" the cache of this node" in log
