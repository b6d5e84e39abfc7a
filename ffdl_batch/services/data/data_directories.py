"""Checks directories of data and results, and the file of the output, from this host at submission."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.data_stores import REMOTE, stores_with_input
from ffdl_batch.domain.job.spec import DataStore
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LaunchFile
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.file_attributes import inner_target, shown
from ffdl_batch.host.filesystem import is_network, is_read_only
from ffdl_batch.host.permissions import explain_denial

CODE = "C103"
OUTPUT_CODE = "C101"
NOT_YET = "does not exist yet"
_CORRECT = "correct the data store, or put the data there"
_OPEN = "correct the data store, or ask the owner of the directory for access"
_NAME_FILE = "name a file in a directory in which you may write"
_LEVELS = 2
"""A job's directory of results is in the store's container, which is in the store's directory."""
_OF_THE_PATH = (errno.ELOOP, errno.ENAMETOOLONG)
"""Errors that the path itself causes, on every host."""
LINKS_SHOWN = 3
LOOK_ENTRIES, LOOK_S = 2000, 0.1
"""How many entries of a job's data directories are checked for links, and for how long."""


@dataclass(frozen=True, slots=True)
class _Wrong:
    """What is wrong with a directory as this host sees it. `is_sure`: the nodes see the same."""

    message: str
    cure: str
    is_sure: bool = True


def wrong_dirs(stores: Sequence[DataStore], launch: LaunchFile, *, later: bool, is_node: bool) -> Iterator[Finding]:
    """Yield what is wrong with the directories of data and results.

    A finding is an error if the nodes must see the same: this host is the only node (`is_node`), or the directory, or
    the place where it should be, exists here. If the nodes may see something else, it is a warning, and the nodes check
    again (S302). With `later`, the job starts later and missing directories may exist by then, so all are warnings.
    """
    for path, directory in _inputs(stores, launch):
        if launch.pod is not None and not _lacks_only_last(directory):
            continue  # a pod's directories are in the cluster, not on this host
        found = _wrong_data(directory, is_node)
        if found is not None:
            yield _finding(found, path, later=later)
    for path, directory in _results(stores, launch) if launch.pod is None else ():
        found = _wrong_results(directory, is_node)
        if found is not None:
            yield _finding(found, path, later=later)


def wrong_output(asked: str, base_dir: str, *, later: bool) -> Iterator[Finding]:
    """Yield why the file of `--output` cannot be written on this host, which runs the job.

    What a part with a pattern (``%j``) becomes is not known, so only the directories above it are checked.
    """
    path = os.path.join(base_dir or "/", asked)  # noqa: PTH118 - a slash at the end stays
    known, is_pattern, rest = path.partition("%")
    if is_pattern:
        found = _wrong_parent(path, known.rpartition("/")[0] or "/", is_parent="/" not in rest)
    elif path.endswith("/") or os.path.isdir(path):  # noqa: PTH112 - of any length
        found = _Wrong(f"the output cannot be written to {path}: it is a directory", _NAME_FILE)
    elif not os.path.exists(path):  # noqa: PTH110 - of any length
        found = _wrong_parent(path, str(Path(os.path.realpath(path)).parent), is_parent=True)
    elif not os.access(path, os.W_OK):
        found = _denied(f"the output cannot be written to {path}: you may not write to it", path, os.W_OK, _NAME_FILE)
    else:
        found = None
    if found is not None:
        yield _finding(found, "batch.output", later=later, code=OUTPUT_CODE)


def _wrong_parent(path: str, directory: str, *, is_parent: bool) -> _Wrong | None:
    """Check the last known directory above a file, which the job creates if it is missing. `is_parent`: the file itself
    is created in it."""
    there, _ = _existing_part(f"{directory}/file")
    named = f"the output cannot be written to {path}"
    if not os.path.isdir(there):  # noqa: PTH112 - of any length
        return _Wrong(f"{named}: {there} is not a directory", _NAME_FILE)
    missing = f", and {directory} does not exist" if there != directory else ""
    if not os.access(there, os.X_OK):
        return _denied(f"{named}: you may not enter {there}{missing}", there, os.X_OK, _NAME_FILE)
    if (missing or is_parent) and not os.access(there, os.W_OK):
        return _denied(f"{named}: you may not write in {there}{missing}", there, os.W_OK, _NAME_FILE)
    return None


def leaving_links(stores: Sequence[DataStore], launch: LaunchFile) -> Iterator[Finding]:
    """Yield a warning for each data directory with links to files that learners in a container do not see. In a large
    directory only the first entries are checked."""
    if launch.pod is not None or launch.learner.delivery is not EnvDelivery.FILE:
        return
    budget = _Budget(LOOK_ENTRIES, time.monotonic() + LOOK_S)
    for path, directory in _inputs(stores, launch):
        links = _find_leaving(directory, budget)
        if links:
            more = ", ..." if len(links) > LINKS_SHOWN else ""
            said = f"data directory {directory} has links that lead out of it: {', '.join(links[:LINKS_SHOWN])}{more}"
            cure = "learners in containers cannot follow them: replace them by their targets, or by relative links"
            yield Finding(Severity.WARNING, said, cure, path=path, code=CODE)


def _finding(wrong: _Wrong, path: str, *, later: bool, code: str = CODE) -> Finding:
    if later:
        message = wrong.message.replace("does not exist", NOT_YET, 1)
        return Finding(
            Severity.WARNING, f"{message} ({code})", "it must exist when the job starts", path=path, code=code
        )
    severity = Severity.ERROR if wrong.is_sure else Severity.WARNING
    return Finding(severity, wrong.message, wrong.cure, path=path, code=code)


def _wrong_data(directory: str, is_node: bool) -> _Wrong | None:
    named = f"data directory {directory}"
    try:
        mode = Path(directory).stat().st_mode
    except FileNotFoundError:
        return _missing(directory, is_node)
    except NotADirectoryError:
        return _Wrong(f"{named} does not exist: {_existing_part(directory)[0]} is not a directory", _CORRECT)
    except PermissionError:
        closed = _closed(directory)
        return _denied(f"{named} cannot be reached: you may not enter {closed}", closed, os.X_OK)
    except OSError as error:
        is_sure = error.errno in _OF_THE_PATH
        where = "" if is_sure else " on this host"
        return _Wrong(f"{named} cannot be checked{where}: {error.strerror}", _CORRECT, is_sure)
    if not stat.S_ISDIR(mode):
        return _Wrong(f"{named} is not a directory", "name the directory that holds it")
    if not os.access(directory, os.R_OK | os.X_OK):
        return _denied(f"{named} cannot be read by you", directory, os.R_OK)
    return None


def _denied(message: str, place: str, wanted: int, cure: str = _OPEN, *, is_sure: bool = True) -> _Wrong:
    """Return what is wrong with a directory that this process may not use, with the reason if it is known."""
    found = explain_denial(place, wanted)
    return _Wrong(f"{message}: {found.why}", found.cure, is_sure) if found else _Wrong(message, cure, is_sure)


def _lacks_only_last(directory: str) -> bool:
    return os.path.isdir(Path(directory).parent) and not os.path.lexists(directory)  # noqa: PTH112 - of any length


def _missing(directory: str, is_node: bool) -> _Wrong:
    there, missing = _existing_part(directory)
    message = f"data directory {directory} does not exist"
    if there == str(Path(directory).parent):
        return _Wrong(message, _CORRECT)
    message += f": {there} does, {missing} does not"
    if is_node or (there != "/" and is_network(Path(there))):
        return _Wrong(message, _CORRECT)
    return _Wrong(f"{message} on this host", f"{_CORRECT}; a node without it fails the job (S302)", is_sure=False)


def _wrong_results(directory: str, is_node: bool) -> _Wrong | None:
    """Check the job's own directory of results, which its nodes create with the missing directories above it."""
    bucket = str(Path(directory).parent)
    try:
        Path(bucket).stat()
    except PermissionError:
        closed = _closed(directory)
        return _denied(f"results cannot be stored in {bucket}: you may not enter {closed}", closed, os.X_OK)
    except OSError as error:
        if error.errno in _OF_THE_PATH:
            return _Wrong(f"results cannot be stored in {bucket}: {error.strerror}", "correct the data store")
        # it is missing: check the directories above it
    there, missing = _existing_part(directory)
    place = Path(there)
    if not place.is_dir():
        why = "is a link that leads nowhere" if place.is_symlink() else "is not a directory"
        return _Wrong(f"results cannot be stored in {bucket}: {there} {why}", "correct the data store")
    if os.access(there, os.W_OK | os.X_OK):
        return None
    levels = len(Path(directory).relative_to(there).parts)
    is_seen = is_node or (there != "/" and (levels <= _LEVELS or is_network(place)))
    why = f"you may not write in {there}" + (f", and {missing} does not exist" if there != bucket else "")
    on_host = "" if is_seen else " on this host"
    message = f"results cannot be stored in {bucket}: {why}{on_host}"
    return _denied(message, there, os.W_OK, is_sure=is_seen and not is_read_only(place))


def _existing_part(directory: str) -> tuple[str, str]:
    """Return the nearest existing entry above `directory`, and the missing entry in it."""
    missing = Path(directory)
    for there in missing.parents:
        if os.path.lexists(there):
            return str(there), str(missing)
        missing = there
    return "/", str(missing)


def _closed(directory: str) -> str:
    """Return the first directory above `directory` that this user may not enter."""
    above = reversed(Path(directory).parents)
    return next((str(one) for one in above if not os.access(one, os.X_OK)), str(Path(directory).parent))


def _inputs(stores: Sequence[DataStore], launch: LaunchFile) -> Iterator[tuple[str, str]]:
    """Yield the directories that data come from, with the manifest's field of each."""
    copied, mounted = (copy.source for copy in launch.copies), iter(launch.needs_dirs)
    for index in stores_with_input(stores, remote=False):
        store = stores[index]
        if store.connection.get("path"):
            directory = next(copied if store.is_copied else mounted, "")
            if directory:
                yield f"data_stores[{index}].training_data.container", directory


def _results(stores: Sequence[DataStore], launch: LaunchFile) -> Iterator[tuple[str, str]]:
    """Yield the directory that results go to, if the store is a directory, with its field of the manifest."""
    targets = (i for i, one in enumerate(stores) if one.training_results and one.effective_type not in REMOTE)
    index = next(targets, None)
    if index is not None and launch.stores.results:
        yield f"data_stores[{index}].training_results.container", launch.stores.results


@dataclass(slots=True)
class _Budget:
    entries: int
    until: float

    def is_used_up(self) -> bool:
        self.entries -= 1
        return self.entries < 0 or time.monotonic() > self.until


def _find_leaving(root: str, budget: _Budget) -> list[str]:
    """Return links below `root` that are absolute or lead above it, as ``name -> target``, within `budget`; at most
    one more than are shown."""
    found: list[str] = []
    waiting: deque[tuple[str, ...]] = deque([()])
    while waiting and len(found) <= LINKS_SHOWN:
        above = waiting.popleft()
        try:
            with os.scandir(Path(root, *above)) as entries:
                for entry in entries:
                    if budget.is_used_up() or len(found) > LINKS_SHOWN:
                        return found
                    if entry.is_symlink():
                        target = str(Path(entry.path).readlink())
                        if inner_target(target, above) is None:
                            found.append(f"{shown('/'.join((*above, entry.name)))} -> {shown(target)}")
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append((*above, entry.name))
        except OSError:  # it was removed meanwhile, or this user may not read it
            continue
    return found
