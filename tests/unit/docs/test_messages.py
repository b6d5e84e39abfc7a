"""What the operators' page quotes of messages is what they say."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator

import pytest

from ffdl_batch.host import resource_exhaustion
from ffdl_batch.services.os_errors import explain
from ffdl_batch.store.errors import translate
from tests.unit.docs.shown import ROOT

PAGE = " ".join((ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split())


def refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def of_database(code: int) -> str:
    error = sqlite3.OperationalError("refused")
    error.sqlite_errorcode = code
    return str(translate(error, "/state/ffdl.sqlite3"))


def messages() -> Iterator[tuple[str, str]]:
    """A message, and what of it the page quotes ("..." = whatever stands there)."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        yield str(explain(refusal(number), "/jobs")), "no space is left in ..."
    yield str(explain(refusal(errno.EROFS), "/jobs")), "... is read-only"
    yield str(explain(refusal(errno.EIO), "/jobs")), "the file system of ... does not answer as it should"
    yield of_database(sqlite3.SQLITE_FULL), "the disk (or the quota) is full"
    yield of_database(sqlite3.SQLITE_FULL), "the database ... cannot be used"
    for lack in (resource_exhaustion.MEMORY, resource_exhaustion.FILES, resource_exhaustion.THREADS):
        yield lack, "... raise the limit (ulimit -...)"


@pytest.mark.parametrize(("message", "quoted"), list(messages()))
def test_operations_page_quotes_actual_messages(message: str, quoted: str) -> None:
    assert f'"{quoted}"' in PAGE
    at = 0
    for part in quoted.split("..."):
        found = message.find(part.strip(") "), at)
        assert found >= 0, (part, message)
        at = found + len(part.strip())
