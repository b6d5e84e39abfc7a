"""Model archives: kept whole or not at all."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from ffdl_batch.services.data.model_archives import has_archive, receive_archive
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import Site, model_zip


def send(site: Site, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    receive_archive(site.platform.storage.root, digest, [data[:10], data[10:]])
    return digest


def kept(site: Site) -> set[str]:
    return {path.name for path in Path(site.platform.storage.root.models).iterdir()}


def test_receive_archive_stores_same_digest_once(site: Site) -> None:
    data = model_zip({"a.py": "1"})
    digest = hashlib.sha256(data).hexdigest()
    assert receive_archive(site.platform.storage.root, digest, [data])
    assert not receive_archive(site.platform.storage.root, digest, [data])
    assert has_archive(site.platform.storage.root, digest)
    assert Path(site.platform.storage.root.model(digest)).read_bytes() == data


def damaged(data: bytes) -> bytes:
    """Return the archive with another checksum in its directory, which only reading the entry reveals."""
    at = data.index(b"PK\x01\x02") + 16
    return data[:at] + b"\0\0\0\0" + data[at + 4 :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (model_zip({"../evil": "1"}), "entry '../evil' of the model archive points outside"),
        (model_zip({".": "1"}), "entry '.' of the model archive is a file with an empty name"),
        (damaged(model_zip({"a.py": "1"})), "entry 'a.py' of the model archive is damaged: Bad CRC-32"),
        (b"not a zip", "not a readable zip"),
    ],
    ids=["outside", "without a name", "damaged", "no zip"],
)
def test_receive_archive_rejects_unsafe_or_damaged_archive_and_keeps_nothing_of_it(
    site: Site, data: bytes, words: str
) -> None:
    before = kept(site)
    with pytest.raises(Refused, match=re.escape(words)) as refused:
        send(site, data)
    assert (refused.value.problem.code, refused.value.problem.exit_code) == ("C102", 78)
    assert "zip the model's" in refused.value.problem.cure
    assert kept(site) == before


def test_receive_archive_rejects_digest_mismatch(site: Site) -> None:
    before = kept(site)
    with pytest.raises(Refused, match="arrived damaged"):
        receive_archive(site.platform.storage.root, "0" * 64, [model_zip()])
    assert kept(site) == before


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "Z" * 64, "0" * 63])
def test_archives_reject_malformed_digest(site: Site, digest: str) -> None:
    assert not has_archive(site.platform.storage.root, digest)
    with pytest.raises(Refused, match="SHA-256"):
        receive_archive(site.platform.storage.root, digest, [b""])
