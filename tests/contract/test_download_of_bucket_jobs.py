"""``ffdl download`` of a job whose results went to a bucket: they come from there. The credentials that stood in its
manifest are gone with its end, so they are given anew."""

from __future__ import annotations

from pathlib import Path

from tests import preloaded
from tests.contract.test_data_jobs import Data, data
from tests.contract.test_download import found_in
from tests.preloaded import FFDL
from tests.staging_rig import KEY, SECRET

__all__ = ["data"]

KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def download(data: Data, where: Path, *words: str) -> None:
    done = preloaded.run(
        [*FFDL, "download", *words],
        cwd=where,
        env={**data.site.environment(), "XDG_CACHE_HOME": str(where / "cache"), **KEYS},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_download_fetches_results_of_bucket_job_from_bucket(data: Data, tmp_path: Path) -> None:
    job_id = data.submit()["id"]
    assert data.ended(job_id)["state"] == "COMPLETED"
    data.proxy.requests.clear()
    data.proxy.authorizations.clear()
    download(data, tmp_path, job_id)
    stored = {name.removeprefix(f"out/{job_id}/"): content for name, content in data.stored().items() if job_id in name}
    stored = {name: content for name, content in stored.items() if not name.startswith("out/")}
    assert found_in(tmp_path / job_id / "results") == stored
    assert {"here", "learner-1/training-log.txt", "_submitted_code/model.zip"} == set(stored)
    assert {method for method, _, _ in data.proxy.requests} == {"GET"}
    assert KEY in data.proxy.authorizations[0]

    data.proxy.requests.clear()
    download(data, tmp_path, job_id, "--attempt", "1", "--out", "own")
    assert list(found_in(tmp_path / "own")) == ["here"]
    download(data, tmp_path, job_id, "--checkpoint")
    assert found_in(tmp_path / job_id / "checkpoint") == {"c": b"1\n"}
    assert data.proxy.requests == []
    for path in (tmp_path / "cache").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
