"""What a learner that still lives swaps for something else while a controller is at work there."""

from __future__ import annotations

import contextlib
import os
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt import file_writer as files
from ffdl_batch.attempt.directory_tree import KEPT, empty_directory, make_below, status_of
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.checkpoints import Inventory, take_inventory
from ffdl_batch.controller.data.job_directories import DirectoryRefused, make_places
from ffdl_batch.controller.data.model_unpacking import unpack
from ffdl_batch.controller.data.result_storage import store_logs, store_results
from ffdl_batch.controller.data.transfers import send_results
from ffdl_batch.controller.data.tree_copy import copy_tree, remove_half_copied
from ffdl_batch.controller.rendezvous.launch_agent import MAIL, install
from ffdl_batch.domain.data.staging_protocol import StageTask, Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.launch.launch_file import Stores
from ffdl_batch.domain.launch.placeholders import literal
from tests.unit.controller.rig import launch_file, plant_link, plant_pipe, plant_socket

BUCKET = StoreAddress(StoreKind.S3, "https://store", container="b")
SECRET = "what the user has outside\n"
both_ways = pytest.mark.parametrize("link", [True, False], ids=["linked", "copied"])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the user's that no learner sees; it has the names that learners use."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text(SECRET)
    return place


def swap(path: Path, outside: Path) -> None:
    """What was there goes on under another name."""
    path.rename(path.with_name(f"{path.name}-moved"))
    path.symlink_to(outside)


class Once:
    """Does it at the first call only."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self.calls = work, 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == 1:
            self._work()


def everything_in(root: Path) -> str:
    return "".join(
        (Path(folder) / name).read_text()
        for folder, _, names in os.walk(root)
        for name in names
        if not (Path(folder) / name).is_symlink()
    )


# ------------------------------------------------------------------------------------------------ the source


@both_ways
@pytest.mark.parametrize("depth", [1, 2, KEPT, KEPT + 3])
@pytest.mark.parametrize("which", ["first", "last"])
def test_copy_tree_does_not_follow_directory_replaced_by_link(
    tmp_path: Path, outside: Path, depth: int, which: str, link: bool
) -> None:
    """It was listed as a directory; then, before anything below it is looked at, it is a link."""
    source, target = tmp_path / "s", tmp_path / "t"
    names = [f"d{level}" for level in range(depth)]
    deepest = source.joinpath(*names)
    deepest.mkdir(parents=True)
    (deepest / "file").write_text("a learner's")
    swapped = source / names[0] if which == "first" else deepest
    outside_deepest = outside.joinpath(*names[1:]) if which == "first" else outside
    outside_deepest.mkdir(parents=True, exist_ok=True)
    (outside_deepest / "file").write_text(SECRET)
    (swapped.parent / "a").write_text("listed with it")
    copy_tree(str(source), str(target), link=link, go_on=Once(lambda: swap(swapped, outside)))
    assert SECRET not in everything_in(target)
    assert target.joinpath(*swapped.relative_to(source).parts[:-1], "a").read_text() == "listed with it"


def test_copy_tree_copies_original_directory_if_parent_is_moved(tmp_path: Path, outside: Path) -> None:
    """The files of a directory are the files of that directory, wherever it is meanwhile."""
    source, target = tmp_path / "s", tmp_path / "t"
    (source / "a" / "b").mkdir(parents=True)
    (outside / "b").mkdir()
    for name in ("1", "2"):
        (source / "a" / "b" / name).write_text("a learner's")
        (outside / "b" / name).write_text(SECRET)
    assert copy_tree(str(source), str(target), go_on=Once(lambda: swap(source / "a", outside))) == 2
    assert everything_in(target) == "a learner's" * 2


def plant_directory(path: Path, target: Path) -> None:
    path.mkdir()


def plant_nothing(path: Path, target: Path) -> None:
    pass


@both_ways
@pytest.mark.parametrize("plant", [plant_link, plant_pipe, plant_socket, plant_directory, plant_nothing])
def test_copy_tree_skips_file_replaced_by_another_type(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None], link: bool
) -> None:
    """Between the look at it and its opening."""
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    (source / "file").write_text("a learner's")
    (source / "other").write_text("another")

    def become() -> None:
        (source / "file").unlink()
        plant(source / "file", outside / "file")

    once = Once(become)

    def look(name: str, directory: int) -> os.stat_result | None:
        once()
        return status_of(name, directory)

    monkeypatch.setattr("ffdl_batch.controller.data.tree_copy.status_of", look)
    assert copy_tree(str(source), str(target), link=link) == 1
    assert once.calls > 1
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("other", "another")]


@both_ways
def test_copy_tree_does_not_block_on_file_replaced_by_pipe(tmp_path: Path, link: bool) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    (source / "file").write_text("a learner's")

    def become() -> None:
        (source / "file").unlink()
        os.mkfifo(source / "file")

    assert copy_tree(str(source), str(target), link=link, go_on=Once(become)) == 0
    assert list(target.iterdir()) == []


def test_copy_tree_skips_link_replaced_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    (source / "link").symlink_to("elsewhere")

    def look(name: str, directory: int) -> os.stat_result | None:
        (source / "link").unlink()
        (source / "link").write_text("a learner's")
        return status_of(name, directory)

    monkeypatch.setattr("ffdl_batch.controller.data.tree_copy.status_of", look)
    assert copy_tree(str(source), str(target)) == 0
    assert list(target.iterdir()) == []


def test_copy_tree_stays_inside_trees_during_continuous_swaps(tmp_path: Path, outside: Path) -> None:
    """A race, on both sides at once; how it ends differs, what may not come of it does not."""
    source, target = tmp_path / "s", tmp_path / "t"
    for root in (source, target):
        (root / "sub").mkdir(parents=True)
        (root / "aside").symlink_to(outside)
    (outside / "mine").write_text("the user's")
    for name in ("file", "mine"):
        (source / "sub" / name).write_text("a learner's")
    over, at_rest = threading.Event(), threading.Lock()

    def flip() -> None:
        for _ in range(20_000):
            if over.is_set():
                return
            with at_rest:
                for root in (source, target):
                    for one, other in (("sub", "was"), ("aside", "sub"), ("sub", "aside"), ("was", "sub")):
                        with contextlib.suppress(OSError):
                            (root / one).rename(root / other)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):  # what is planted too fast in the target's place of a directory
                copy_tree(str(source), str(target), go_on=lambda: None)
            with at_rest:  # what is swapped while it is read leads this test outside, too
                assert SECRET not in everything_in(target)
            assert (outside / "mine").read_text() == "the user's"
            assert sorted(path.name for path in outside.iterdir()) == ["file", "mine"]
    finally:
        over.set()
        thread.join(timeout=60)
    assert not thread.is_alive()


# ------------------------------------------------------------------------------------------------ the target


@both_ways
def test_copy_tree_writes_nothing_through_replaced_target_directory(tmp_path: Path, outside: Path, link: bool) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    for name in ("1", "2", "file"):
        (source / "sub" / name).parent.mkdir(parents=True, exist_ok=True)
        (source / "sub" / name).write_text("a learner's")
    once = Once(lambda: swap(target / "sub", outside))
    assert copy_tree(str(source), str(target), link=link, go_on=once) == 3
    assert once.calls > 1
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", SECRET)]
    assert sorted(path.name for path in (target / "sub-moved").iterdir()) == ["1", "2", "file"]
    copy_tree(str(source), str(target), link=link)
    assert sorted(path.name for path in (target / "sub").iterdir()) == ["1", "2", "file"]
    assert not (target / "sub").is_symlink()


def replace_new_directories(monkeypatch: pytest.MonkeyPatch, times: int, outside: Path) -> None:
    """The first `times` directories that are made become links at once."""
    real, made = files.make_directory, []

    def plant(name: str, mode: int, *, dir_fd: int | None = None) -> None:
        real(name, mode, dir_fd=dir_fd)
        made.append(name)
        if len(made) <= times:
            os.rmdir(name, dir_fd=dir_fd)
            os.symlink(outside, name, dir_fd=dir_fd)

    monkeypatch.setattr("ffdl_batch.attempt.directory_tree.make_directory", plant)


def test_make_below_makes_directory_again_if_link_replaced_it(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_new_directories(monkeypatch, 1, outside)
    assert Path(make_below(str(tmp_path), ["state"])).is_dir()
    assert not (tmp_path / "state").is_symlink()


def test_make_below_fails_if_links_replace_its_directory_again_and_again(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_new_directories(monkeypatch, 100, outside)
    with pytest.raises(OSError, match=f"is not a directory.*{tmp_path}/state"):
        make_below(str(tmp_path), ["state"])


def test_store_logs_writes_nothing_through_replaced_store_directory(tmp_path: Path, outside: Path) -> None:
    job, store = tmp_path / "jobs" / "training-abc", tmp_path / "store"
    launch = launch_file(str(job / "attempt-1"), job_dir=str(job), stores=Stores("", str(store), ""))
    logs = Path(AttemptDir(launch.attempt_dir).learner_logs(1))
    logs.mkdir(parents=True)
    (logs / "file").write_text("said")
    store_logs(launch, [1], Once(lambda: swap(store / "learner-1", outside)))
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", SECRET)]
    assert not (store / "learner-1").is_symlink()
    assert [path.name for path in (store / "learner-1").iterdir()] == [".log-copy-complete"]
    assert (store / "learner-1-moved" / "file").read_text() == "said"


def test_remove_half_copied_removes_nothing_through_replaced_directory(tmp_path: Path, outside: Path) -> None:
    name = ".host-1.ffdl-tmp"
    (tmp_path / "t" / "sub").mkdir(parents=True)
    for place in (tmp_path / "t", tmp_path / "t" / "sub", outside):
        (place / name).write_text("half")
    once = Once(lambda: swap(tmp_path / "t" / "sub", outside))

    def is_dead(host: str, pid: int) -> bool:
        once()
        return (host, pid) == ("host", 1)

    remove_half_copied(str(tmp_path / "t"), is_dead)
    assert (outside / name).exists()
    assert not (tmp_path / "t" / name).exists()
    remove_half_copied(str(tmp_path / "t"), is_dead)
    assert not (tmp_path / "t" / "sub-moved" / name).exists()
    assert (outside / name).exists()
    remove_half_copied(str(tmp_path / "none"), is_dead)


# -------------------------------------------------------------------------------------------- other writers


def test_model_unpack_writes_nothing_through_replaced_directory(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for name in ("sub/1", "sub/file", "sub/deep/file"):
            archive.writestr(name, "the model's")
    real, opened = zipfile.ZipFile.open, []

    def open_member(self: zipfile.ZipFile, name: Any, *more: Any) -> Any:
        opened.append(name)
        if len(opened) == 2:
            swap(target / "sub", outside)
        return real(self, name, *more)

    monkeypatch.setattr(zipfile.ZipFile, "open", open_member)
    assert unpack(str(tmp_path / "m.zip"), str(target)) == 3
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", SECRET)]


def test_launch_agent_install_removes_nothing_through_replaced_mailbox(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    for root in (state / MAIL, outside):
        (root / "learner-0" / "sub").mkdir(parents=True)
        (root / "learner-0" / "sub" / "file").write_text(SECRET)
    emptied = []

    def empty(path: str, *, dir_fd: int) -> None:
        emptied.append(path)
        swap(state / MAIL, outside)
        empty_directory(path, dir_fd=dir_fd)

    monkeypatch.setattr("ffdl_batch.controller.rendezvous.launch_agent.empty_directory", empty)
    install(str(state), ["learner-0"])
    assert len(emptied) == 1
    assert (outside / "learner-0" / "sub" / "file").read_text() == SECRET
    assert list((state / f"{MAIL}-moved" / "learner-0").iterdir()) == []


def test_inventory_excludes_files_behind_replaced_directory(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for the time at each entry."""
    place = tmp_path / "checkpoints"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "mine").write_text("x")
    calls = []

    def monotonic() -> float:
        calls.append(0)
        if len(calls) == 2:
            swap(place / "sub", outside)
        return 0.0

    monkeypatch.setattr("ffdl_batch.controller.checkpoints.time.monotonic", monotonic)
    assert take_inventory(str(place)) == Inventory()
    assert set(take_inventory(str(place)).files) == {"sub-moved/mine"}


# -------------------------------------------------------------------------------- directories of the job itself


@pytest.mark.parametrize("plant", [plant_link, plant_pipe])
def test_directories_of_job_are_not_followed_if_learner_replaced_them(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None]
) -> None:
    """Files of another directory are neither stored nor taken for checkpoints."""
    job, store = tmp_path / "jobs" / "training-abc", tmp_path / "store"
    attempt = AttemptDir(str(job / "attempt-1"))
    checkpoints = job / "checkpoints"
    launch = replace(
        launch_file(attempt.path, job_dir=str(job), stores=Stores(str(store), str(store), "")),
        checkpoints=str(checkpoints),
        uploads=tuple(Transfer(BUCKET, "p", literal(place)) for place in (str(checkpoints), str(job / "kept"))),
    )
    (job / "kept").mkdir(parents=True)
    for place in (checkpoints, Path(attempt.results), Path(attempt.learner_logs(1))):
        place.parent.mkdir(parents=True, exist_ok=True)
        plant(place, outside)
    sent: list[StageTask] = []
    monkeypatch.setattr("ffdl_batch.controller.data.transfers.run_staging", lambda _, task, *more: sent.append(task))
    with pytest.raises(NotADirectoryError, match="'results' is a "):
        store_results(launch)
    with pytest.raises(NotADirectoryError, match="'checkpoints' is a "):
        send_results(launch, 0, lambda: None)
    assert [[one.local for one in task.transfers] for task in sent] == [[str(job / "kept")]] * 2
    with pytest.raises(NotADirectoryError, match="'learner-1' is a "):
        store_logs(launch, [1])
    assert take_inventory(str(checkpoints), below=str(job)) == Inventory()
    assert SECRET not in everything_in(store)
    with pytest.raises(DirectoryRefused, match=r"'results' is a |File exists") as refused:
        make_places(launch)
    assert refused.value.code == "C103"
