"""Programs for which the modes of files count, also if root starts them."""

from __future__ import annotations

import os

_OF_ROOT = "-dac_override,-dac_read_search"
AS_OTHERS = ("setpriv", f"--inh-caps={_OF_ROOT}", f"--bounding-set={_OF_ROOT}") if os.geteuid() == 0 else ()
"""Goes before a command."""
