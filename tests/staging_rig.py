"""Staging as tests run it: a bucket of a real server, a proxy in front of it, and the program."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from ffdl_batch.domain.data.staging_protocol import (
    Direction,
    Done,
    Failed,
    Line,
    StageTask,
    Transfer,
    encode_task,
    read_line,
)
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.program import run_program
from tests.fakes.fault_proxy import FaultProxy
from tests.fakes.s3_server import S3Server

SECRET, KEY = "planted-Secret/Key+0123456789", "PLANTEDACCESSKEY0001"
MIB = 1 << 20
# Each run within this process makes a client of its own; the files that describe S3 are read once for all of them.
vars(botocore.session)["create_loader"] = functools.cache(botocore.session.create_loader)


@dataclass(frozen=True)
class Outcome:
    """What one run of the program came to."""

    status: int
    lines: list[Line]

    @property
    def last(self) -> Line:
        """What it came to."""
        return self.lines[-1]

    @property
    def done(self) -> Done:
        """The last line, which is of success."""
        assert isinstance(self.last, Done), self.last
        assert self.status == 0
        return self.last

    @property
    def failed(self) -> Failed:
        """The last line, which is of a failure."""
        assert isinstance(self.last, Failed), self.last
        return self.last

    def of(self, kind: type[Any]) -> list[Any]:
        """Lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]


class StagingRig:
    """A bucket, a proxy in front of it, and directories."""

    def __init__(self, server: S3Server, directory: Path) -> None:
        self.server, self.directory, self.client = server, directory, server.client
        self.bucket = f"b-{abs(hash(str(directory))):x}"
        self.client.create_bucket(Bucket=self.bucket)
        self.proxy = FaultProxy(server.port)
        self.local, self.state = directory / "data", directory / "state"
        self.secrets = directory / "secrets.json"
        self.secrets.write_text(json.dumps({"the-key": KEY, "the-secret": SECRET}))
        self.secrets.chmod(0o600)
        self.store = StoreAddress(
            StoreKind.S3,
            endpoint=self.proxy.endpoint,
            container=self.bucket,
            credentials={"user_name": "the-key", "password": "the-secret"},
            options={"timeout_s": "60"},
        )

    def put(self, key: str, data: bytes) -> str:
        """Store an object behind the proxy's back; its ETag."""
        return str(self.client.put_object(Bucket=self.bucket, Key=key, Body=data)["ETag"]).strip('"')

    def put_in_parts(self, key: str, *parts: bytes) -> str:
        """Store an object in parts; its ETag."""
        at = {"Bucket": self.bucket, "Key": key}
        upload = self.client.create_multipart_upload(**at)["UploadId"]
        etags = [
            self.client.upload_part(**at, UploadId=upload, PartNumber=n, Body=part)["ETag"]
            for n, part in enumerate(parts, 1)
        ]
        done = [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(etags, 1)]
        made = self.client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": done})
        return str(made["ETag"]).strip('"')

    def get(self, key: str) -> bytes:
        """An object's content."""
        with self.client.get_object(Bucket=self.bucket, Key=key)["Body"] as body:
            return bytes(body.read())

    def keys(self) -> list[str]:
        """Of the first 1,000 objects."""
        return [found["Key"] for found in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])]

    def uploads(self) -> list[str]:
        """Keys of uploads in parts that are not complete."""
        found = self.client.list_multipart_uploads(Bucket=self.bucket)
        return [upload["Key"] for upload in found.get("Uploads", [])]

    def task(self, direction: Direction = Direction.IN, prefix: str = "", **changes: Any) -> StageTask:
        """A task with one transfer, which is quick to try again."""
        only = changes.pop("only", ())
        transfer = Transfer(changes.pop("store", self.store), prefix, str(self.local), only)
        task = StageTask(
            direction, (transfer,), str(self.state), str(self.secrets), parallel=4, pause_s=0.01, part_bytes=MIB
        )
        return replace(task, **changes)

    def run(self, task: StageTask, *, check: bool = False, lists: bool = False) -> Outcome:
        """Do it within this process."""
        output = self.directory / "output"
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            status = run_program(str(self.written(task)), check=check, output=descriptor, lists=lists)
        finally:
            os.close(descriptor)
        return Outcome(status, lines_of(output.read_text()))

    def start(self, task: StageTask, *options: str) -> subprocess.Popen[str]:
        """Do it in a process of its own; its output goes to `output`."""
        argv = [sys.executable, "-m", "ffdl_batch.staging", str(self.written(task)), *options]
        with (self.directory / "output").open("w") as output, (self.directory / "errors").open("w") as errors:
            return subprocess.Popen(argv, stdout=output, stderr=errors, text=True)

    def said(self) -> list[Line]:
        """What the last process said until now."""
        return lines_of((self.directory / "output").read_text())

    def written(self, task: StageTask) -> Path:
        """The task's file."""
        path = self.directory / "task.json"
        path.write_text(encode_task(task))
        path.chmod(0o600)
        return path

    def files(self) -> dict[str, bytes]:
        """Local files by name, half-made ones among them."""
        found = (path for path in self.local.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.local)): path.read_bytes() for path in found}

    def require_no_secret(self) -> None:
        """Grep all that was written here, but the file of secrets, for its values."""
        for path in self.directory.rglob("*"):
            if path.is_file() and path != self.secrets:
                data = path.read_bytes()
                assert SECRET.encode() not in data, path
                assert KEY.encode() not in data, path
        assert SECRET in self.secrets.read_text()


def lines_of(text: str) -> list[Line]:
    """Whole lines, each of which is one of the program's."""
    found = [read_line(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    assert None not in found, text
    return [line for line in found if line is not None]


@pytest.fixture
def rig(s3_server: S3Server, tmp_path: Path) -> Iterator[StagingRig]:
    """A bucket and directories of the test's own."""
    made = StagingRig(s3_server, tmp_path)
    yield made
    made.proxy.stop()
