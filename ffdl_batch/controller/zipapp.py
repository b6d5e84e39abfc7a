"""Build the controller as one file: a zipapp (PEP 441) that any ``python3 >= 3.9`` runs, also with ``-I -S``.

It contains the controller, `attempt`, `host` and exactly the domain modules that these import. Each is also included as
bytecode of the interpreter that builds it. An interpreter of the same version then starts a controller in half the
time, and any other ignores the bytecode (zipimport checks its magic number). The same sources and interpreter give the
same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import zipfile
from pathlib import Path
from typing import Dict

from ffdl_batch import __version__
from ffdl_batch.attempt.file_writer import write_bytes

DOMAIN = (
    "data/__init__",
    "job/__init__",
    "launch/__init__",
    "metrics/__init__",
    "outcome/__init__",
    "codec",
    "data/image_task",
    "data/mounts",
    "data/staging_protocol",
    "data/store_kinds",
    "file_format",
    "job/environment_variables",
    "launch/attach_protocol",
    "launch/devices",
    "launch/launch_file",
    "launch/learner_text",
    "launch/limits",
    "launch/network_level",
    "launch/placeholders",
    "launch/pod_protocol",
    "metrics/records",
    "metrics/usage",
    "network_address",
    "number_text",
    "outcome/continuation",
    "outcome/controller_events",
    "terminal_text",
    "untrusted_json",
)
_MAIN = "import sys\n\nfrom ffdl_batch.controller.__main__ import main\n\nsys.exit(main())\n"
_PACKAGE = '"""The controller\'s part of ffdl_batch."""\n'
_ROOT = f'{_PACKAGE}__version__ = "{__version__}"\n'
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def place_zipapp(directory: Path) -> Path:
    """Return the zipapp of this release in `directory`. Write it if it does not exist. Raises OSError.

    Its name has a digest of its content, so a file that a running job uses is never replaced.
    """
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, text in sorted(_contents().items()):
        digest.update(f"{name}\0{text}\0".encode())
    target = directory / f"controller-{digest.hexdigest()[:16]}.pyz"
    if not target.exists():
        build_zipapp(target)
    return target


def build_zipapp(target: Path) -> None:
    """Write the zipapp to `target` by rename, mode 0755. Several threads and hosts may do so at once. Raises
    OSError."""
    file = io.BytesIO()
    file.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(_contents().items()):
            _add(archive, name, text.encode())
            if name != "__main__.py":
                _add(archive, f"{name}c", _bytecode(name, text))
    write_bytes(str(target), file.getvalue(), 0o755, durable=False)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _LONG_AGO)
    info.external_attr = 0o100644 << 16
    archive.writestr(info, content)


def _bytecode(name: str, text: str) -> bytes:
    """Return the module's bytecode file, which is not compared with the source (PEP 552), since both are included."""
    code = compile(text, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little") + importlib.util.source_hash(text.encode())
    return head + marshal.dumps(code)


def _contents() -> Dict[str, str]:
    package = Path(__file__).parent.parent
    contents = {"__main__.py": _MAIN, "ffdl_batch/__init__.py": _ROOT, "ffdl_batch/domain/__init__.py": _PACKAGE}
    for folder in ("controller", "attempt", "host"):
        for path in sorted((package / folder).rglob("*.py")):
            if path.name != "zipapp.py":
                contents[f"ffdl_batch/{path.relative_to(package).as_posix()}"] = path.read_text(encoding="utf-8")
    for module in DOMAIN:
        contents[f"ffdl_batch/domain/{module}.py"] = (package / "domain" / f"{module}.py").read_text(encoding="utf-8")
    return contents
