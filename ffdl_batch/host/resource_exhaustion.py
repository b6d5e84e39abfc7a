"""Explain errors that mean too little memory, too many files or too many threads, with what to do about them.

It imports nothing that must be opened, because it is called when a resource is exhausted.
"""

from __future__ import annotations

import errno

MEMORY = (
    "there is not enough memory for it: raise the limit (ulimit -v, or that of the session's control group), or end "
    "something here; then try again"
)
FILES = "it may not open as many files as it needs: raise the limit (ulimit -n), then try again"
ALL_FILES = "this machine has as many files open as it may: have fs.file-max raised (sysctl), then try again"
THREADS = (
    "no further thread or process can be started: raise the limit (ulimit -u or -v, or pids.max of the session's "
    "control group), or end something here; then try again"
)
WHOSE_LIMITS = "a daemon has the limits of the shell that started it: ffdl daemon restart in one without them"
_BY_ERRNO = {errno.ENOMEM: MEMORY, errno.EMFILE: FILES, errno.ENFILE: ALL_FILES}
_BY_PHRASE = (
    ("memoryerror", MEMORY),
    ("cannot allocate memory", MEMORY),  # strerror(ENOMEM)
    ("failed to map segment", MEMORY),  # dlopen(3)
    ("memory allocation of", MEMORY),  # alloc::alloc::handle_alloc_error of extensions in Rust, before they abort
    ("too many open files in system", ALL_FILES),
    ("too many open files", FILES),
    ("error return without exception set", MEMORY),  # of extensions in C that found none, and did not say so
    ("can't start new thread", THREADS),
)
WRAPPED = (ImportError, RuntimeError, SystemError)
"""Exceptions that may have such a cause. Only their text shows it."""


def explain_lack(error: BaseException | None) -> str:
    """Return the sentence for `error` if it, or its cause, means that memory, files or threads ran out; else ""."""
    seen = 0
    while error is not None and seen < len(_BY_PHRASE) * 2:  # a chain of exceptions may be circular
        if isinstance(error, MemoryError):
            return MEMORY
        if isinstance(error, OSError) and error.errno in _BY_ERRNO:
            return _BY_ERRNO[error.errno]
        if isinstance(error, WRAPPED) and (found := find_lack(str(error))):
            return found
        error, seen = error.__cause__ or error.__context__, seen + 1
    return ""


_OF_DISKS = {
    errno.ENOSPC: "no space is left on its file system: free some space, then try again",
    errno.EDQUOT: "your disk quota is used up: free some space or have the quota raised, then try again",
    errno.EROFS: "its file system is read-only: use another directory, or have it mounted for writing, then try again",
}


def explain_disk(error: BaseException) -> str:
    """Return the sentence for an error that means that nothing can be written there; else ""."""
    if not isinstance(error, OSError) or error.errno not in _OF_DISKS:
        return ""
    return f"{error.filename or 'a file'} cannot be written: {_OF_DISKS[error.errno]}"


def explain_unstarted(error: OSError) -> str:
    """Like :func:`explain_lack`, for starting a process: EAGAIN means a limit then (fork(2))."""
    return THREADS if error.errno == errno.EAGAIN else explain_lack(error)


def of_daemon(lack: str) -> str:
    """Return the sentence for a daemon, which tries again by itself."""
    whose = "" if lack == ALL_FILES else f"; {WHOSE_LIMITS}"
    return f"in the daemon, {lack.removesuffix('then try again').rstrip(',; ')}{whose}"


def find_lack(words: str) -> str:
    """Like :func:`explain_lack`, for the last output of another process."""
    lowered = words.lower()
    return next((sentence for sign, sentence in _BY_PHRASE if sign in lowered), "")
