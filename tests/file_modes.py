"""Programs, and parts of tests, for which the modes of files count, also if root starts them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

_OF_ROOT = "-dac_override,-dac_read_search"
AS_OTHERS = ("setpriv", f"--inh-caps={_OF_ROOT}", f"--bounding-set={_OF_ROOT}") if os.geteuid() == 0 else ()
"""Goes before a command."""
FFDL_AS_OTHERS = (
    sys.executable,
    "-c",
    "from tests.file_modes import drop_overrides; drop_overrides(); from ffdl_batch.cli.main import main; main()",
)
"""The `ffdl` command in the same way, for :mod:`tests.preloaded`, which forks it."""
_CAPABILITIES = (1, 2)
_OVERRIDES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH (linux/capability.h)
_VERSION_3, _PR_CAPBSET_DROP = 0x20080522, 24


@contextlib.contextmanager
def modes_count() -> Iterator[None]:
    """Let the modes of files count for this thread, which may be root's, until the end of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, found = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, found) == 0
    without = (ctypes.c_uint32 * 6)(found[0] & ~_OVERRIDES, *found[1:])
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, found) == 0


def drop_overrides() -> None:
    """Let the modes of files count for this process, which may be root's, and for all that it starts."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, found = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, found) == 0
    for capability in _CAPABILITIES:
        assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
    for number in range(3):  # effective, permitted and inheritable
        found[number] &= ~_OVERRIDES
    assert libc.capset(header, found) == 0
