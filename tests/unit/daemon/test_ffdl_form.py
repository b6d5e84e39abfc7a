"""The form of a new model in FfDL's API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.daemon.ffdl_api.form import MAX_MANIFEST, receive_form
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import model_zip

KIND = "multipart/form-data; boundary=limit"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(str(tmp_path))
    Path(made.models).mkdir(parents=True)
    return made


def form(**parts: bytes) -> bytes:
    head = '--limit\r\nContent-Disposition: form-data; name="{0}"; filename="{0}"\r\n\r\n'
    return b"".join(head.format(name).encode() + data + b"\r\n" for name, data in parts.items()) + b"--limit--\r\n"


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_form_in_any_pieces_and_order_is_read_and_archive_is_kept(root: Root, size: int) -> None:
    archive = model_zip()
    parts = [("manifest", b"name: x\n"), ("model_definition", archive)]
    for order in (parts, parts[::-1]):
        manifest, digest = receive_form(root, KIND, pieces(form(other=b"y", **dict(order)), size))
        assert (manifest, digest) == ("name: x\n", hashlib.sha256(archive).hexdigest())
        assert Path(root.model(digest)).read_bytes() == archive
    assert len(list(Path(root.models).iterdir())) == 1


@pytest.mark.parametrize(
    ("kind", "body", "status", "why"),
    [
        ("application/json", b"{}", 400, "multipart/form-data with a boundary"),
        ("multipart/form-data", form(), 400, "multipart/form-data with a boundary"),
        (KIND, b"nothing of a form", 400, "the form cannot be read"),
        (KIND, b"", 422, "has no manifest"),
        (KIND, form(model_definition=model_zip()), 422, "has no manifest"),
        (KIND, form(manifest=b"x"), 422, "has no model_definition"),
        (KIND, form(manifest=b"\xff", model_definition=model_zip()), 422, "is not UTF-8"),
        (KIND, form(manifest=b"x" * (MAX_MANIFEST + 1)), 422, "is larger than 1024 KiB"),
        (KIND, form(manifest=b"x", model_definition=b"no zip"), 422, "zip"),
        (KIND, form(model_definition=model_zip())[:-11] + form(model_definition=b""), 400, "more than one"),
    ],
)  # fmt: skip
def test_unusable_form_is_refused_and_leaves_nothing(root: Root, kind: str, body: bytes, status: int, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        receive_form(root, kind, pieces(body, 1000))
    assert refused.value.status == status
    assert list(Path(root.models).iterdir()) == []


def test_interrupted_upload_leaves_nothing(root: Root) -> None:
    def broken() -> Iterator[bytes]:
        yield form(model_definition=model_zip())[:200]
        assert len(list(Path(root.models).iterdir())) == 1  # where the quota of the user counts
        raise ConnectionError

    with pytest.raises(ConnectionError):
        receive_form(root, KIND, broken())
    assert list(Path(root.models).iterdir()) == []
