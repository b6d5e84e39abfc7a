"""The list of a job's files is bounded, and a file is opened only if no link leads to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.client.stores.job_files import OnlyWithDaemon, OwnPlace, list_output, open_output
from ffdl_batch.client.stores.user_secrets import UserSecrets
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.job.views import OutputView


@pytest.fixture
def place(tmp_path: Path) -> OwnPlace:
    (tmp_path / "jobs").mkdir()
    return OwnPlace(UserSecrets(tmp_path / "jobs"), is_other_host=False, environ=dict(os.environ))


@pytest.fixture
def output(tmp_path: Path) -> OutputView:
    results = tmp_path / "results"
    (results / "below").mkdir(parents=True)
    for name in ("a", "b", "below/c", "below/d"):
        (results / name).write_text(name)
    return OutputView("training-1", "results", "COMPLETED", directory=str(results), inode=results.stat().st_ino)


def stored(output: OutputView) -> OutputView:
    return OutputView(
        "training-1", "results", "COMPLETED", store=StoreAddress(StoreKind.FILE, container=output.directory)
    )


@pytest.mark.parametrize(("most", "is_whole"), [(1, False), (3, False), (4, True), (100, True)])
def test_list_ends_after_maximum(output: OutputView, place: OwnPlace, most: int, is_whole: bool) -> None:
    files, found_all = list_output(output, place, most)
    assert ([one.name for one in files], found_all) == (["a", "b", "below/c", "below/d"][:most], is_whole)


def test_list_of_empty_directory_is_empty(tmp_path: Path, output: OutputView, place: OwnPlace) -> None:
    (tmp_path / "empty").mkdir()
    empty = OutputView("training-1", "results", "COMPLETED", directory=str(tmp_path / "empty"),
                       inode=(tmp_path / "empty").stat().st_ino)  # fmt: skip
    assert list_output(empty, place, 5) == ([], True)


@pytest.mark.parametrize("from_store", [False, True])
def test_file_is_opened_below_directory_only(
    tmp_path: Path, output: OutputView, place: OwnPlace, from_store: bool
) -> None:
    results = Path(output.directory)
    (tmp_path / "secret").write_text("secret")
    (results / "link").symlink_to(tmp_path / "secret")
    (results / "above").symlink_to(tmp_path)
    source = stored(output) if from_store else output
    with open_output(source, place, "below/c", 100) as file:
        assert file.read() == b"below/c"
    for name in ("link", "above/secret", "../secret", str(tmp_path / "secret"), "below", "*", "none"):
        with pytest.raises(FileNotFoundError):
            open_output(source, place, name, 100)


def test_directory_that_was_replaced_or_is_elsewhere_is_not_read(output: OutputView, place: OwnPlace) -> None:
    results = Path(output.directory)
    results.rename(results.with_name("moved"))
    results.mkdir()
    (results / "a").write_text("other")
    far = OwnPlace(place.secrets, is_other_host=True, environ=place.environ)
    for there in (place, far):
        with pytest.raises(OnlyWithDaemon):
            open_output(output, there, "a", 100)
        with pytest.raises(OnlyWithDaemon):
            list_output(output, there, 10)
