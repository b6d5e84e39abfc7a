"""boto3's own transfer, as a program: all below a prefix to a directory, or all of a directory below a prefix.

python plain_transfer.py in|out ENDPOINT BUCKET PREFIX DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.config import Config

PARALLEL = 8
"""As many as the staging program has."""


def bring(manager: Any, client: Any, bucket: str, prefix: str, directory: Path) -> None:
    """All objects below the prefix."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    coming = []
    for key in (one["Key"] for page in pages for one in page.get("Contents", [])):
        path = directory / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        coming.append(manager.download(bucket, key, os.fspath(path)))
    for one in coming:
        one.result()


def send(manager: Any, bucket: str, prefix: str, directory: Path) -> None:
    """All files of the directory."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    going = [manager.upload(os.fspath(path), bucket, f"{prefix}/{path.relative_to(directory)}") for path in paths]
    for one in going:
        one.result()


def main(direction: str, endpoint: str, bucket: str, prefix: str, directory: str) -> None:
    """One of both."""
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=2 * PARALLEL)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="anybody",
        aws_secret_access_key="anything",
        config=config,
    )
    with create_transfer_manager(client, TransferConfig(max_concurrency=PARALLEL)) as manager:
        if direction == "in":
            bring(manager, client, bucket, prefix, Path(directory))
        else:
            send(manager, bucket, prefix, Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
