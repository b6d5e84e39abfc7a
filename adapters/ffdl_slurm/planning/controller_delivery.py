"""Deliver the controller to the compute nodes: the installed package if they see it, else a zipapp.

Nodes see the user's tree of job directories, and therefore other files on that file system and on network file systems.
If the package is elsewhere, one zipapp is written into the tree.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ffdl_batch import domain
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.filesystem import filesystem_type
from ffdl_batch.runtimes.learner_start import controller_arguments, staging_arguments

_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "wekafs", "panfs", "pvfs2", "9p"}
)
# A program, not an import: adapters and controller meet through files and argv only.
_BUILD = (
    "import sys, pathlib; sys.path.insert(0, sys.argv[1]); from ffdl_batch.controller.zipapp import place_zipapp; "
    "print(place_zipapp(pathlib.Path(sys.argv[2])).name)"
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The interpreter on the nodes, and its arguments that start the controller. `staging` starts the staging program
    (empty = the nodes see no installation)."""

    python: str
    controller: tuple[str, ...]
    staging: tuple[str, ...] = ()


def deliver_controller(root: str, python: str, staging_python: str = "") -> Delivery:
    """Return how the controller is started on the nodes. May write into `root`. `python` "" = choose an interpreter.
    `staging_python` is the interpreter of an installation there; "" = this one, if nodes see it.

    Raises NotNow if the tree cannot be written now (a full disk), which is not the fault of a job.
    """
    package = Path(domain.__file__).resolve().parents[1]
    is_seen = _is_installation_seen(root)
    found = staging_interpreter(root, staging_python)
    staging = staging_arguments(found) if found else ()
    if python in ("", sys.executable) and is_seen:
        return Delivery(sys.executable, controller_arguments(str(package.parent)), staging)
    try:
        archive = _write_archive(Path(root) / "controller")
    except OSError as error:
        raise NotNow(
            f"the controller cannot be written below {root}: {error}; free space there, it is tried again"
        ) from error
    return Delivery(python or "python3", controller_arguments(str(archive)), staging)


def staging_interpreter(root: str, staging_python: str) -> str:
    """Return the interpreter that starts the staging program on nodes; "" if they see no installation."""
    return staging_python or (sys.executable if _is_installation_seen(root) else "")


def _is_installation_seen(root: str) -> bool:
    package = Path(domain.__file__).resolve().parents[1]
    return all(_is_shared(path, root) for path in (package, Path(sys.executable)))


def _is_shared(path: Path, root: str) -> bool:
    try:
        real, tree = path.resolve(), Path(root).resolve()
        # The same first directory too: a small cluster's head node may export /home from the disk that holds /usr.
        if real.stat().st_dev == tree.stat().st_dev and real.parts[:2] == tree.parts[:2]:
            return True
    except OSError:
        return False
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    kind = filesystem_type(table, str(real))
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def _write_archive(directory: Path) -> Path:
    """Write the zipapp of this release, named by its content, so that the file of a running job is never replaced."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = [sys.executable, "-E", "-P", "-c", _BUILD, str(Path(domain.__file__).resolve().parents[2]), str(directory)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode != 0:
        raise OSError(" ".join(ended.stderr.split())[-200:])
    return directory / ended.stdout.strip()
