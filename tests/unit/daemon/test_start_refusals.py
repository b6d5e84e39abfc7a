"""What a daemon says that ends at its start: the cause and the cure, and no promise of what only a running one does."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator

import pytest

from ffdl_batch.daemon.main import promise_nothing
from ffdl_batch.services.file_troubles import explain
from ffdl_batch.store.errors import translate


def sentences() -> Iterator[str]:
    for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        error = sqlite3.OperationalError("refused")
        error.sqlite_errorcode = code
        yield str(translate(error, "/state/ffdl.sqlite3"))
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE):
        yield str(explain(OSError(number, os.strerror(number)), "/state"))


def test_daemon_errors_mention_automatic_recovery_while_running() -> None:
    """Else there would be nothing to leave out."""
    assert [text for text in sentences() if "by itself" in text]


@pytest.mark.parametrize("sentence", list(sentences()))
def test_daemon_start_errors_omit_automatic_recovery(sentence: str) -> None:
    said = promise_nothing(sentence)
    assert "by itself" not in said
    assert sentence.startswith(said.split(" (", maxsplit=1)[0])
