"""What libraries behind fsspec say of an object, and what their failures are."""

from __future__ import annotations

import base64
import errno
import hashlib
import socket
from datetime import UTC, datetime

import pytest

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.stores.fsspec import _fault, _item
from ffdl_batch.staging.stores.sftp import why_unreachable
from ffdl_batch.staging.stores.store import UNKNOWN

MD5 = hashlib.md5(b"1").digest()


@pytest.mark.parametrize(
    "more",
    [{"md5": MD5.hex()}, {"md5Hash": base64.b64encode(MD5).decode()},
     {"content_settings": {"content_md5": bytearray(MD5)}}],
)  # fmt: skip
def test_fsspec_item_takes_md5_from_protocol_fields(more: dict[str, object]) -> None:
    item = _item("a", {"type": "file", "size": 1, "ETag": '"0x8D"', **more})
    assert item is not None
    assert (item.etag, item.opaque, item.digests) == ("0x8D", True, {"md5": MD5.hex()})


@pytest.mark.parametrize("value", ["", "no digest", b"short", None, 7, base64.b64encode(b"short").decode()])
def test_fsspec_item_ignores_invalid_checksum(value: object) -> None:
    item = _item("a", {"type": "file", "size": 1, "md5": value})
    assert item is not None and item.digests == {}


def test_fsspec_item_derives_etag_from_size_and_time_and_skips_links() -> None:
    then = datetime(2026, 1, 2, tzinfo=UTC)
    made = [_item("a", {"type": "file", "size": size, "mtime": at}) for size in (1, 2) for at in (then, 5.5)]
    assert len({item.etag for item in made if item}) == 4
    plain = _item("a", {"type": "file", "size": 1})
    assert plain is not None
    assert (plain.etag, plain.mtime) == ("", 0.0)
    endless = _item("a", {"type": "file", "size": None})
    assert endless is not None
    assert (endless.size, endless.ranges) == (UNKNOWN, False)
    assert _item("a", {"type": "directory", "size": 0}) is None
    assert _item("a", {"type": "file", "size": 0, "islink": True}) is None


class ClientAuthenticationError(Exception):
    """As a library's own."""


class ServiceBusy(Exception):
    """As a library's own."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "no"), FaultClass.CREDENTIALS),
        (ClientAuthenticationError("no"), FaultClass.CREDENTIALS),
        (OSError(errno.ENOSPC, "full"), FaultClass.FULL),
        (OSError(errno.EDQUOT, "full"), FaultClass.FULL),
        (FileNotFoundError("a"), FaultClass.MISSING),
        (NotImplementedError(), FaultClass.REFUSED),
        (ValueError("a wrong option"), FaultClass.REFUSED),
        (ImportError("smbprotocol"), FaultClass.LIBRARY),
        (ConnectionResetError(), None),
        (TimeoutError(), None),
        (EOFError(), None),
        (OSError("Failure"), None),
        (ServiceBusy(), None),
    ],
)
def test_fsspec_fault_classifies_permanent_and_returns_none_for_temporary_failure(
    error: Exception, kind: FaultClass | None
) -> None:
    fault = _fault(error, "key")
    assert (fault and fault.kind) == kind


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "h:22 did not answer within 5 s"),
        (socket.gaierror(-2, "Name not known"), "h:22: the host's name cannot be looked up (Name not known"),
        (OSError(113, "No route to host"), "h:22 cannot be reached: No route to host"),
        (FileNotFoundError(2, "No such file"), ""),
        (ValueError("q"), ""),
    ],
)
def test_why_unreachable_explains_network_errors_only(error: Exception, said: str) -> None:
    why = why_unreachable(error, "h:22", 5.0)
    assert why.startswith(said) and bool(why) == bool(said)
