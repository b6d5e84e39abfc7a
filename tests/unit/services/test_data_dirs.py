"""What is wrong with the directories of data and results, as the host of the daemon sees it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.spec import DataStore, StoreType
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LaunchFile, LearnerCommand, Pod, Stores
from ffdl_batch.services.data import data_directories
from ffdl_batch.services.data.data_directories import leaving_links, wrong_dirs, wrong_output
from tests.owners import belongs_to
from tests.unit.controller.rig import launch_file

STORE = DataStore("s", StoreType.DIRECTORY, StoreType.DIRECTORY, "in", "", {"path": "/d"})
RESULTS = DataStore("s", StoreType.DIRECTORY, StoreType.DIRECTORY, "", "out", {"path": "/d"})
IN_CONTAINER = LearnerCommand(("x",), {}, EnvDelivery.FILE)
ERROR, WARNING = Severity.ERROR, Severity.WARNING


def of_data(directory: Path, *, is_node: bool = False, later: bool = False, **fields: Any) -> list[Finding]:
    launch = launch_file(needs_dirs=(str(directory),), **fields)
    return list(wrong_dirs([STORE], launch, later=later, is_node=is_node))


def of_results(bucket: Path, **fields: Any) -> list[Finding]:
    launch = launch_file(stores=Stores(results=str(bucket / "training-1")), **fields)
    return list(wrong_dirs([RESULTS], launch, later=False, is_node=False))


def close(monkeypatch: pytest.MonkeyPatch, closed: Path) -> None:
    """Make a directory one that this user may do nothing with. The tests may run as root, who may do everything."""
    may, look = os.access, Path.stat

    def access(path: Any, mode: int, **how: Any) -> bool:
        return Path(path) != closed and may(path, mode, **how)

    def stat_of(path: Path, **how: Any) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **how)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "stat", stat_of)


@pytest.mark.parametrize(
    ("shared", "is_node", "severity"), [(False, False, WARNING), (True, False, ERROR), (False, True, ERROR)]
)
def test_wrong_dirs_names_existing_part_and_refuses_only_what_nodes_see_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, is_node: bool, severity: Severity
) -> None:
    monkeypatch.setattr(data_directories, "is_network", lambda _: shared)
    (found,) = of_data(tmp_path / "sets" / "digits" / "in", is_node=is_node)
    said = f"in does not exist: {tmp_path} does, {tmp_path / 'sets'} does not"
    assert (found.severity, found.code, said in found.message) == (severity, "C103", True)


def test_wrong_dirs_warns_if_host_has_nothing_of_path() -> None:
    (found,) = of_data(Path("/nobody/has/this"))
    said = "data directory /nobody/has/this does not exist: / does, /nobody does not on this host"
    assert (found.severity, found.message) == (WARNING, said)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("file", "d/in is not a directory"),
        ("file above", "d is not a directory"),
        ("unreadable", "d/in cannot be read by you"),
        ("closed", "d"),
    ],
)
def test_wrong_dirs_refuses_data_that_is_no_directory_or_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    wanted = tmp_path / "d" / "in"
    if kind == "file above":
        wanted.parent.touch()
    else:
        wanted.parent.mkdir()
        (wanted.touch if kind == "file" else wanted.mkdir)()
    if kind in ("unreadable", "closed"):
        close(monkeypatch, wanted if kind == "unreadable" else wanted.parent)
    (found,) = of_data(wanted)
    assert (found.severity, found.path) == (ERROR, "data_stores[0].training_data.container")
    assert found.message.endswith(said) and ("you may not enter" in found.message) == (kind == "closed")
    (found,) = of_data(wanted, later=True)
    assert found.severity is WARNING
    assert of_data(wanted, pod=Pod("/pod")) == [], "the cluster's directory is another"


def test_wrong_dirs_accepts_directories_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert of_data(tmp_path / "in") == [] == of_results(tmp_path / "new" / "deeper")


@pytest.mark.parametrize(
    ("bucket", "severity", "said"),
    [
        ("", ERROR, "you may not write in {}"),
        ("out", ERROR, "you may not write in {0}, and {0}/out does not exist"),
        ("far/out", WARNING, "you may not write in {0}, and {0}/far does not exist on this host"),
    ],
)
def test_wrong_dirs_refuses_results_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str, severity: Severity, said: str
) -> None:
    monkeypatch.setattr(data_directories, "is_network", lambda _: False)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    (found,) = of_results(tmp_path / bucket)
    assert (found.severity, found.path) == (severity, "data_stores[0].training_results.container")
    assert found.message.endswith(said.format(tmp_path))
    monkeypatch.setattr(data_directories, "is_read_only", lambda _: True)  # nodes may have it mounted for writing
    assert of_results(tmp_path / bucket)[0].severity is WARNING


@pytest.mark.parametrize("of", [of_data, of_results])
def test_wrong_dirs_blames_daemon_that_is_older_than_group_membership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined_later: int, of: Callable[[Path], list[Finding]]
) -> None:
    """For a directory that only members of the group may enter."""
    (tmp_path / "project").mkdir()
    close(monkeypatch, tmp_path / "project")
    belongs_to(monkeypatch, tmp_path / "project", 4_711, joined_later, 0o770)
    (found,) = of(tmp_path / "project" / "ada")
    why = f"ffdl's daemon was started before you became a member of the group '{joined_later}'"
    assert found.message.endswith(f": you may not enter {tmp_path / 'project'}: {why}")
    assert (found.severity, found.cure) == (ERROR, "log in again and run: ffdl daemon restart")


@pytest.mark.usefixtures("joined_later", "bound_by_modes")
@pytest.mark.parametrize("of", [of_data, of_results])
def test_wrong_dirs_names_mode_of_own_closed_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Callable[[Path], list[Finding]]
) -> None:
    place = tmp_path / "mine"
    place.mkdir(0o500)
    close(monkeypatch, place)
    belongs_to(monkeypatch, place, os.geteuid(), os.getegid(), 0)
    (found,) = of(place / "ada")
    assert found.message.endswith(f": you may not enter {place}: you own {place}, and it has mode 0000")
    assert found.cure == f"chmod u+rwx {place}"


def test_wrong_dirs_refuses_results_below_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = of_results(tmp_path / "file" / "out")
    assert (found.severity, found.message.endswith("file is not a directory")) == (ERROR, True)


def linked(base: Path) -> LaunchFile:
    """An attempt in a container whose data have links."""
    (base / "a").mkdir()
    links = {"a/up": "../../x", "b": "/scratch/b", "c": "a/file", "a/inside": "../c", "odd\udcff": ".."}
    for name, target in links.items():
        (base / name).symlink_to(target)
    return launch_file(needs_dirs=(str(base),), learner=IN_CONTAINER)


@pytest.mark.parametrize(
    ("kind", "of_input", "of_output"),
    [
        ("loop", "Too many levels of symbolic links", "Too many levels of symbolic links"),
        ("dangling", "does not exist", "is a link that leads nowhere"),
        ("n" * 300, "File name too long", "File name too long"),
        ("/".join("n" * 3000), "File name too long", "File name too long"),
    ],
)
def test_wrong_dirs_refuses_paths_that_no_host_can_use(
    tmp_path: Path, kind: str, of_input: str, of_output: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("missing")
    for (found,), said in ((of_data(tmp_path / kind), of_input), (of_results(tmp_path / kind), of_output)):
        assert found.severity is ERROR and found.message.endswith(said)


def test_leaving_links_names_links_that_container_cannot_follow(tmp_path: Path) -> None:
    launch = linked(tmp_path)
    (found,) = leaving_links([STORE], launch)
    shown = found.message.partition("lead out of it: ")[2].split(", ")
    assert sorted(shown) == ["a/up -> ../../x", "b -> /scratch/b", "odd\\xff -> .."]
    assert (found.severity, found.path) == (WARNING, "data_stores[0].training_data.container")
    bare = replace(launch, learner=LearnerCommand(("x",), {}))
    assert list(leaving_links([STORE], bare)) == [], "without a container nothing is mounted"


@pytest.mark.parametrize(("name", "limit"), [("LOOK_ENTRIES", 0), ("LOOK_S", -1.0)])
def test_leaving_links_looks_at_bounded_number_of_entries_for_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: float
) -> None:
    launch = linked(tmp_path)
    for number in range(9):
        (tmp_path / f"z{number}").symlink_to("/elsewhere")
    (found,) = leaving_links([STORE], launch)
    assert found.message.count(" -> ") == data_directories.LINKS_SHOWN and found.message.endswith(", ...")
    monkeypatch.setattr(data_directories, name, limit)
    assert list(leaving_links([STORE], launch)) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("closed/o.txt", "you may not enter {}/closed"),
        ("closed/new/o-%j.txt", "you may not enter {0}/closed, and {0}/closed/new does not exist"),
        ("closed/%j/o.txt", "you may not enter {}/closed"),
        ("fixed/o-%j.txt", "you may not write in {}/fixed"),
        ("fixed/new/%j/o.txt", "you may not write in {0}/fixed, and {0}/fixed/new does not exist"),
        ("fixed/kept.txt", "you may not write to it"),
        ("to-fixed", "you may not write in {}/fixed"),
        ("open", "it is a directory"),
        ("new/", "it is a directory"),
        ("file/o.txt", "{}/file is not a directory"),
        ("file/%j", "{}/file is not a directory"),
    ],
)
def test_wrong_output_refuses_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, said: str
) -> None:
    (found,) = wrong_output(asked, str(laid_for_output(tmp_path, monkeypatch)), later=False)
    path = f"{tmp_path}/{asked}"
    assert found.message == f"the output cannot be written to {path}: {said.format(tmp_path)}"
    assert (found.severity, found.path, found.code) == (ERROR, "batch.output", "C101")
    assert found.cure == "name a file in a directory in which you may write"
    (found,) = wrong_output(path, "/elsewhere", later=True)
    assert found.severity is WARNING


@pytest.mark.parametrize(
    "asked",
    ["o.txt", "new/deeper/o-%j.txt", "file", "to-file", "to-new", "open/%x/o", "fixed/%x/o", "/dev/null", "%j", "pipe"],
)
def test_wrong_output_accepts_file_that_can_or_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    assert list(wrong_output(asked, str(laid_for_output(tmp_path, monkeypatch)), later=False)) == []


def laid_for_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay out places for output. In `fixed` nothing can be written, and `closed` cannot be entered."""
    for name in ("open", "fixed", "closed"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "fixed" / "kept.txt").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, target in (("to-fixed", "fixed/none"), ("to-file", "file"), ("to-new", "open/new")):
        (tmp_path / name).symlink_to(target)
    may = os.access

    def access(path: Any, mode: int, **how: Any) -> bool:
        here = Path(path)
        if here == tmp_path / "closed" or (tmp_path / "fixed" in (here, *here.parents) and mode & os.W_OK):
            return False
        return may(path, mode, **how)

    monkeypatch.setattr(os, "access", access)
    return tmp_path
