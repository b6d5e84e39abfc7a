"""The controller as one file: a zipapp (PEP 441) that any ``python3 >= 3.9`` runs, also with ``-I -S``.

It holds the controller and exactly the domain modules that it imports. The same sources give the same bytes.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Dict

DOMAIN = (
    "attach", "codec", "continuation", "devices", "events", "formats", "image_task", "jobdir", "launch", "limits",
    "log_names", "metrics", "mounting", "naming", "network_level", "numbers", "placeholders", "pod", "staging", "usage",
    "variables",
)  # fmt: skip
_MAIN = "import sys\n\nfrom ffdl_batch.controller.__main__ import main\n\nsys.exit(main())\n"
_PACKAGE = '"""The controller\'s part of ffdl_batch."""\n'
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def build_zipapp(target: Path) -> None:
    """Write the zipapp to `target` by rename, mode 0755. Raises OSError."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, text in sorted(_contents().items()):
                info = zipfile.ZipInfo(name, _LONG_AGO)
                info.external_attr = 0o100644 << 16
                archive.writestr(info, text)
    os.chmod(temporary, 0o755)  # noqa: S103 - a program; nothing in it is secret
    os.replace(temporary, target)


def _contents() -> Dict[str, str]:
    package = Path(__file__).parent.parent
    contents = {"__main__.py": _MAIN, "ffdl_batch/__init__.py": _PACKAGE, "ffdl_batch/domain/__init__.py": _PACKAGE}
    for path in sorted((package / "controller").rglob("*.py")):
        if path.name != "bundle.py":
            contents[f"ffdl_batch/{path.relative_to(package).as_posix()}"] = path.read_text(encoding="utf-8")
    for module in DOMAIN:
        contents[f"ffdl_batch/domain/{module}.py"] = (package / "domain" / f"{module}.py").read_text(encoding="utf-8")
    return contents
