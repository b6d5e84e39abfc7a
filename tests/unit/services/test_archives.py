"""Model archives: kept whole or not at all."""

from __future__ import annotations

import hashlib
import io
import re
import stat
import zipfile
from pathlib import Path

import pytest

from ffdl_batch.services import archives
from ffdl_batch.services.archives import has_archive, receive_archive
from ffdl_batch.services.problems import Refused
from tests.unit.services.conftest import Site, model_zip


def send(site: Site, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    receive_archive(site.platform, digest, [data[:10], data[10:]])
    return digest


def kept(site: Site) -> set[str]:
    return {path.name for path in Path(site.platform.root.models).iterdir()}


def test_receive_archive_stores_same_digest_once(site: Site) -> None:
    data = model_zip({"a.py": "1"})
    digest = hashlib.sha256(data).hexdigest()
    assert receive_archive(site.platform, digest, [data])
    assert not receive_archive(site.platform, digest, [data])
    assert has_archive(site.platform, digest)
    assert Path(site.platform.root.model(digest)).read_bytes() == data


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("fine.py", "x")
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, "target")
    return buffer.getvalue()


def encrypted() -> bytes:
    data = bytearray(model_zip({"a.py": "1"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the first flag in the directory of the archive
    return bytes(data)


OUTSIDE = ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:/evil", "a/.."]
SPECIAL = [stat.S_IFLNK, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((entry(name), "reaches outside") for name in OUTSIDE),
        *((entry("x", kind | 0o777), "'x' of the model archive is neither a file nor a dir") for kind in SPECIAL),
        (encrypted(), "'a.py' of the model archive is encrypted"),
        (model_zip({"a": "1", "a/b": "2"}), "'a' is a file of the model archive, and a directory (a/b)"),
        *((damaged, "not a readable zip") for damaged in (b"", b"not a zip", model_zip()[:-10])),
        (b"PK\x05\x06" + b"\0" * 18, "holds no file"),
    ],
)
def test_receive_archive_rejects_unsafe_or_damaged_archive_and_keeps_nothing_of_it(
    site: Site, data: bytes, words: str
) -> None:
    before = kept(site)
    with pytest.raises(Refused, match=re.escape(words)):
        send(site, data)
    assert kept(site) == before


def test_receive_archive_rejects_zip_bomb_by_declared_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "RATIO_FLOOR_BYTES", 1000_000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 5_000_000)
    with pytest.raises(Refused, match="would unpack to 5000000 bytes"):
        send(site, buffer.getvalue())


def test_receive_archive_rejects_digest_mismatch(site: Site) -> None:
    before = kept(site)
    with pytest.raises(Refused, match="damaged on its way"):
        receive_archive(site.platform, "0" * 64, [model_zip()])
    assert kept(site) == before


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "Z" * 64, "0" * 63])
def test_archives_reject_malformed_digest(site: Site, digest: str) -> None:
    assert not has_archive(site.platform, digest)
    with pytest.raises(Refused, match="SHA-256"):
        receive_archive(site.platform, digest, [b""])
