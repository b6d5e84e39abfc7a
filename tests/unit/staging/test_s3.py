"""What a client of S3 knows, the task and nothing of this machine, and how it reads the times in answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from botocore.utils import parse_timestamp

from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging.stores.s3 import S3Store, moment_of


def test_s3_store_reads_no_local_aws_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's own, nor what root has made of /dev/null by mistake."""
    wrong = tmp_path / ".aws" / "config"
    wrong.parent.mkdir()
    wrong.write_text("no configuration")
    monkeypatch.setattr(os, "devnull", str(wrong))
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, str(wrong))
    address = StoreAddress(StoreKind.S3, "http://127.0.0.1:9", container="b")
    S3Store(address, {"user_name": "k", "password": "s"}, 1).close()


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.6789012Z",
        "2026-01-02T03:04:05+02:00", "20260102T030405Z", "Fri, 02 Jan 2026 03:04:06 GMT",
        "Friday, 02-Jan-26 03:04:06 GMT", "2 Jan 2026 03:04:06 GMT", "1767322000.5", 1767322000,
    ],
)  # fmt: skip
def test_moment_of_reads_time_like_botocore(value: Any) -> None:
    wanted = parse_timestamp(value)
    found = moment_of(value)
    assert found.tzinfo is not None
    assert found.timestamp() == pytest.approx(wanted.timestamp(), abs=1e-6)


def test_moment_of_rejects_invalid_time() -> None:
    with pytest.raises(ValueError, match="never"):
        moment_of("never, at no time GMT")
