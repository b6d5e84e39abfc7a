"""What a client of S3 knows: the task, and nothing of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.domain.staging import StoreAddress, StoreKind
from ffdl_batch.staging.stores.s3 import S3Store


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
