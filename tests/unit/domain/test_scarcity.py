"""What a process lacked, from its exceptions and from its last words."""

from __future__ import annotations

import errno
import os

import pytest

from ffdl_batch.host.resource_exhaustion import (
    ALL_FILES,
    FILES,
    MEMORY,
    THREADS,
    WHOSE_LIMITS,
    explain_disk,
    explain_lack,
    explain_unstarted,
    find_lack,
    of_daemon,
)


@pytest.mark.parametrize(
    ("error", "lack"),
    [
        (MemoryError(), MEMORY),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), MEMORY),
        (ImportError("x.so: failed to map segment from shared object"), MEMORY),
        (ImportError("libz.so.1: cannot open shared object file: Error 24: Too many open files"), FILES),
        (SystemError("error return without exception set"), MEMORY),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), FILES),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), ALL_FILES),
        (RuntimeError("can't start new thread"), THREADS),
        (OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), ""),  # a queue of connections may be full
        (OSError(errno.ENOENT, os.strerror(errno.ENOENT)), ""),
        (ImportError("No module named 'x'"), ""),
        (RuntimeError("dictionary changed size during iteration"), ""),
        (ValueError("too many open files"), ""),  # somebody's text
        (None, ""),
    ],
)
def test_explain_lack_distinguishes_missing_resource_from_defect(error: BaseException | None, lack: str) -> None:
    assert explain_lack(error) == lack


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "-", "/a/b"), "/a/b cannot be written: no space is left on its file system"),
        (OSError(errno.EDQUOT, "-", "/a/b"), "/a/b cannot be written: your disk quota is used up"),
        (OSError(errno.EROFS, "-", "/a/b"), "/a/b cannot be written: its file system is read-only"),
        (OSError(errno.ENOSPC, "-"), "a file cannot be written: no space is left"),
        (OSError(errno.EACCES, "-", "/a/b"), ""),
        (ValueError("No space left on device"), ""),
    ],
)
def test_explain_disk_names_file_and_cure(error: Exception, sentence: str) -> None:
    found = explain_disk(error)
    assert found.startswith(sentence) and bool(found) == bool(sentence)


def test_explain_lack_follows_exception_cause_and_terminates_on_cyclic_context() -> None:
    error = ValueError("the configuration cannot be used")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert explain_lack(error) == FILES
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert explain_lack(one) == ""


@pytest.mark.parametrize(
    ("words", "lack"),
    [
        ("Traceback (most recent call last):\n  ...\nMemoryError", MEMORY),
        ("memory allocation of 4096 bytes failed\nnote: run with `RUST_BACKTRACE=1` environment variable", MEMORY),
        ("OSError: [Errno 23] Too many open files in system", ALL_FILES),
        ("OSError: [Errno 24] Too many open files: '/x'", FILES),
        ("NameError: name 'x' is not defined", ""),
    ],
)
def test_find_lack_recognizes_missing_resource_in_process_output(words: str, lack: str) -> None:
    assert find_lack(words) == lack


@pytest.mark.parametrize(("number", "lack"), [(errno.EAGAIN, THREADS), (errno.EMFILE, FILES), (errno.ENOENT, "")])
def test_explain_unstarted_maps_eagain_to_thread_limit(number: int, lack: str) -> None:
    assert explain_unstarted(OSError(number, os.strerror(number))) == lack


@pytest.mark.parametrize("lack", [MEMORY, FILES, THREADS])
def test_of_daemon_message_names_limit_or_sysctl_and_restart_without_try_again(lack: str) -> None:
    said = of_daemon(lack)
    assert "raise the limit (ulimit -" in said and said.endswith(f"; {WHOSE_LIMITS}")
    assert "try again" not in said and ",;" not in said and ";;" not in said
    assert of_daemon(ALL_FILES).endswith("have fs.file-max raised (sysctl)")
