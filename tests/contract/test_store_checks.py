"""What is known of a job's stores at its submission, from a real S3 server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.spec import DataStore, StoreType
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand
from ffdl_batch.services.data import data_store_checks
from ffdl_batch.services.data.data_store_checks import StoreChecks
from tests.fakes.fault_proxy import Rule
from tests.fakes.serving import serving_files
from tests.preloaded import PopenTree
from tests.staging_rig import KEY, SECRET, StagingRig, rig

__all__ = ["rig"]
SECRETS = {"the-key": KEY, "the-secret": SECRET}
MOUNTED = DataStore("one", StoreType.DIRECTORY, StoreType.DIRECTORY, "sets", connection={"path": "/data"})
STORES = (MOUNTED, DataStore("two", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "b/set", "b/out"))
"""The manifest's: what is asked is its second."""


def launch(rig: StagingRig, prefix: str = "set") -> LaunchFile:
    """Of a job that reads below the prefix, and stores elsewhere in the bucket."""
    return LaunchFile(
        job_id="training-000000000", attempt=1, token="training-000000000-1", job_dir="/j", attempt_dir="/j/attempt-1",
        doorbell="/d", learner=LearnerCommand((), {}), staging=(sys.executable, "-I", "-m", "ffdl_batch.staging"),
        fetches=(Transfer(rig.store, prefix, str(rig.local)),),
        uploads=(Transfer(rig.store, "out/training-000000000", "/j/results"),),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does much else is slow to begin processes, and to answer."""
    monkeypatch.setattr(data_store_checks, "CONNECTION_S", "60")
    monkeypatch.setattr(data_store_checks, "KNOWN_S", 600.0)
    monkeypatch.setattr(subprocess, "Popen", PopenTree)


def patient() -> StoreChecks:
    return StoreChecks(limit_s=120.0)


def check(checks: StoreChecks, job: LaunchFile, later: bool = False) -> list[Finding]:
    return list(checks.findings(job, STORES, SECRETS, later=later))


def test_store_check_caches_success_and_warns_about_other_prefix_that_is_missing_before_start(rig: StagingRig) -> None:
    rig.put("set/a", b"1")
    checks = patient()
    assert check(checks, launch(rig)) == []
    asked = len(rig.proxy.requests)
    assert asked == 2
    other = launch(rig)
    moved = replace(other.fetches[0], local="/elsewhere")
    assert check(checks, replace(other, fetches=(moved,))) == []
    assert len(rig.proxy.requests) == asked
    (missing,) = check(checks, launch(rig, "not-there"), later=True)
    assert (missing.severity, missing.code) == (Severity.WARNING, "C103")
    assert missing.path == "data_stores[1].training_data.container"
    assert "not-there" in missing.message
    assert len(rig.proxy.requests) > asked


def test_store_check_reports_missing_results_container(rig: StagingRig) -> None:
    rig.put("set/a", b"1")
    job = launch(rig)
    elsewhere = replace(job.uploads[0], store=replace(rig.store, container="none"))
    (found,) = check(patient(), replace(job, uploads=(elsewhere,)))
    assert (found.severity, found.code, found.path) == (
        Severity.ERROR, "C103", "data_stores[1].training_results.container",
    )  # fmt: skip


def test_store_check_reports_wrong_keys_once_without_secrets(rig: StagingRig) -> None:
    rig.proxy.rules.append(Rule(status=403, code="SignatureDoesNotMatch"))
    (found,) = check(patient(), launch(rig))
    assert (found.severity, found.code, found.path) == (Severity.ERROR, "C103", "data_stores[1].connection")
    assert found.message.startswith("the store of data and results cannot be used (C103): s3 store ")
    assert found.message.endswith("it answered 403 SignatureDoesNotMatch (by rule)"), found.message
    assert SECRET not in str(found)
    assert KEY not in str(found)


def test_store_check_warns_once_per_check_about_unreachable_store(rig: StagingRig) -> None:
    rig.proxy.rules.append(Rule(hang_s=600))
    checks, job = StoreChecks(limit_s=2.0), launch(rig)
    job = replace(job, uploads=(replace(job.uploads[0], store=replace(rig.store, container="another")),))
    for _ in range(2):
        (found,) = check(checks, job)
        assert (found.severity, found.code) == (Severity.WARNING, "S302")
        assert found.path == "data_stores[1].connection.auth_url"
        assert f"s3 store {rig.store.endpoint}" in found.message
        assert "it did not answer within 2 s" in found.message


def test_store_check_reaches_no_store_that_site_excludes(rig: StagingRig) -> None:
    rig.put("set/a", b"1")
    (found,) = check(StoreChecks(limit_s=120.0, egress=()), launch(rig))
    assert (found.severity, found.code, rig.proxy.requests) == (Severity.WARNING, "S302", [])
    assert check(StoreChecks(limit_s=120.0, egress=("127.0.0.0/8",)), launch(rig)) == []


def test_store_check_reports_404_of_server_that_is_not_s3(rig: StagingRig) -> None:
    """Its answer names no code of S3's."""
    rig.local.mkdir()
    with serving_files(rig.local) as endpoint:
        rig.store = replace(rig.store, endpoint=endpoint)
        found = check(patient(), launch(rig))
    assert [one.code for one in found] == ["C103"]
    assert found[0].message.endswith("it answered 404 (Not Found)"), found


def test_store_check_skips_store_if_secrets_are_unavailable(rig: StagingRig) -> None:
    assert list(StoreChecks().findings(launch(rig), STORES, {}, later=False)) == []
    assert rig.proxy.requests == []
