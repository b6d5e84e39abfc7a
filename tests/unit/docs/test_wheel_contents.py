"""The wheel contains what units, documents and packages name, and all recipes of packages have its version."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from ffdl_batch import __version__
from tests.unit.docs.shown import ROOT, documents
from tools.make_packages import COMMANDS, LEFT_OUT, PLACES, VENV, locked_requirements

SHARED = f"ffdl_batch-{__version__}.data/data/share/ffdl-batch/"
FOLDERS = ("containers", "docs/examples", "docs/grafana", "slurm-configs")
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w")
STARTED = re.compile(r"@FFDL_BIN@/(\S+)(?: -I -m (\S+))?")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of the wheel, and their directories."""
    builder = WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        files = [Path(name) for name in archive.namelist()]
    return {str(one) for file in files for one in (file, *file.parents)}


def test_wheel_contains_every_file_that_documents_name(names: set[str]) -> None:
    for page in documents():
        for found in NAMED.findall(page.read_text(encoding="utf-8")):
            assert f"{SHARED}{found}" in names, f"{page.name}: {found}"


def test_wheel_contains_every_program_that_units_start(names: set[str]) -> None:
    started = {found for unit in (ROOT / "slurm-configs").rglob("*.*") if unit.suffix != ".pyc" and unit.is_file()
               for found in STARTED.findall(unit.read_text(encoding="utf-8"))}  # fmt: skip
    assert {program for program, _ in started} == {"ffdl", "ffdl-admin", "ffdl-submitd", "ffdl-hub", "python3"}
    for program, module in started:
        path = f"{module.replace('.', '/')}.py" if module else f"ffdl_batch-{__version__}.data/scripts/{program}"
        assert path in names


def test_packages_place_existing_files_and_commands(names: set[str]) -> None:
    assert {f"{SHARED}slurm-configs/{name}" for name in PLACES} <= names
    assert {f"ffdl_batch-{__version__}.data/scripts/{name}" for name in COMMANDS} <= names
    assert f"\nFFDL_BIN=/{VENV}/bin\n" in (ROOT / "slurm-configs/values.env").read_text(encoding="utf-8")


def test_packages_leave_out_only_locked_libraries() -> None:
    assert set(LEFT_OUT) <= {one.split("==")[0] for one in locked_requirements()}


@pytest.mark.parametrize("recipe", ["rpm/ffdl-batch.spec", "spack/package.py"])
def test_package_recipe_has_current_version(recipe: str) -> None:
    text = (ROOT / "packaging" / recipe).read_text(encoding="utf-8")
    assert set(re.findall(r"\d+\.\d+\.\d+", text.replace("%", ""))) == {__version__}
