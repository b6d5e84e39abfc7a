"""The server of figures does what a store does, as far as the clients that are compared ask it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from tests.fakes.s3_server import QuickServer

ODD = ["a b+c%2F&<>\"'", "dir/é/ü", "dir0", "~"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuickServer]:
    made = QuickServer(tmp_path_factory.mktemp("quick") / "log")
    for bucket in ("few", "many", "many2"):
        made.client.create_bucket(Bucket=bucket)
    yield made
    made.stop()


def test_quick_s3_lists_objects_in_pages_and_by_prefix(server: QuickServer) -> None:
    names = sorted([f"below/{number:04}" for number in range(2001)] + ODD)
    server.put_many("many2", [("elsewhere", b"")])
    for name in ODD:
        server.client.put_object(Bucket="many", Key=name, Body=name.encode())
    server.put_many("many", ((name, b"x") for name in names if name not in ODD))
    pages = list(server.client.get_paginator("list_objects_v2").paginate(Bucket="many"))
    assert [len(page["Contents"]) for page in pages] == [1000, 1000, 5]
    assert [found["Key"] for page in pages for found in page["Contents"]] == names
    below = server.client.list_objects_v2(Bucket="many", Prefix="dir/", MaxKeys=5)
    assert [found["Key"] for found in below["Contents"]] == ["dir/é/ü"]
    after = server.client.list_objects_v2(Bucket="many", Prefix="below/", StartAfter="below/1998")
    assert [found["Key"] for found in after["Contents"]] == ["below/1999", "below/2000"]
    assert after["IsTruncated"] is False
    assert "Contents" not in server.client.list_objects_v2(Bucket="few")


def test_quick_s3_reads_object_and_ranges_while_etag_matches(server: QuickServer) -> None:
    data = bytes(range(256)) * 8192
    etag = server.client.put_object(Bucket="few", Key="one", Body=io.BytesIO(data))["ETag"]  # asks whether it may
    assert etag.strip('"') == hashlib.md5(data).hexdigest()
    assert server.client.get_object(Bucket="few", Key="one", IfMatch=etag)["Body"].read() == data
    part = server.client.get_object(Bucket="few", Key="one", Range="bytes=10-2099")
    assert (part["Body"].read(), part["ContentLength"]) == (data[10:2100], 2090)
    assert server.client.head_object(Bucket="few", Key="one")["ContentLength"] == len(data)
    for key, expected, status in (("one", '"other"', 412), ("none", etag, 404)):
        with pytest.raises(ClientError) as refused:
            server.client.get_object(Bucket="few", Key=key, IfMatch=expected)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status


def test_quick_s3_joins_parts_of_multipart_upload(server: QuickServer) -> None:
    client, at = server.client, {"Bucket": "few", "Key": "large"}
    upload, parts = client.create_multipart_upload(**at)["UploadId"], [b"1" * 100_000, b"2" * 10]
    etags = {
        number: client.upload_part(**at, UploadId=upload, PartNumber=number, Body=parts[number - 1])["ETag"]
        for number in (2, 1)
    }
    named = [{"PartNumber": number, "ETag": etags[number]} for number in (1, 2)]
    made = client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": named})
    joined = b"".join(hashlib.md5(part).digest() for part in parts)
    assert made["ETag"].strip('"') == f"{hashlib.md5(joined).hexdigest()}-2"
    assert client.get_object(**at)["Body"].read() == b"".join(parts)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.abort_multipart_upload(**at, UploadId=upload)
