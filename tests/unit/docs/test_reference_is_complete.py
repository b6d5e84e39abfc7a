"""The reference names everything that the code has: a key that is added without a line there fails."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ffdl_batch import client
from ffdl_batch.client import errors as client_errors
from ffdl_batch.config.settings import Settings
from ffdl_batch.controller.learner.orphans import MARK
from ffdl_batch.domain.access import Role, Scope
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.spec import NetworkLevel, StoreType
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.domain.outcome.error_codes import FAULTS
from ffdl_batch.manifest.models.batch import (
    BatchBlock,
    CheckpointBlock,
    ElasticBatchBlock,
    ElasticBlock,
    RetryBlock,
    RoleBlock,
)
from ffdl_batch.manifest.models.ffdl import DataStoreBlock, FfdlBlock, FrameworkBlock, ImageLocationBlock
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.services.authorisation import OPERATIONS, Right, rights_of
from ffdl_kubernetes.planning.network_access import ISOLATING
from ffdl_kubernetes.settings import KubernetesSettings, Profile
from ffdl_local.adapter import create
from ffdl_local.settings import LocalSettings
from ffdl_slurm.planning.job_network import MECHANISMS
from ffdl_slurm.settings import SlurmSettings
from tests.unit.docs.shown import ROOT

PAGES = {
    "reference/configuration.md": [
        field.name
        for table in (Settings, SlurmSettings, LocalSettings, KubernetesSettings, Profile)
        for field in dataclasses.fields(table)
        if field.name != "origins"
    ],
    "reference/exit-codes.md": [*FAULTS, *(code.name for code in ExitCode), *(str(int(c)) for c in ExitCode)],
    "reference/manifest.md": [
        *(name for block in (FfdlBlock, FrameworkBlock, ImageLocationBlock, BatchBlock) for name in block.model_fields),
        *(name for block in (CheckpointBlock, RetryBlock, RoleBlock) for name in block.model_fields),
        *(name for block in (ElasticBlock, ElasticBatchBlock) for name in block.model_fields),
        *DataStoreBlock.model_fields,
        *StoreType,
        *NetworkLevel,
    ],
    "architecture.md": [*JobState],
    "internals.md": [*(kind.value for kind in EventKind), *NetworkLevel],
    "reference/contract.md": [MARK],
    "images.md": [path.name for path in sorted((ROOT / "containers").glob("*.def"))],
}


@pytest.mark.parametrize("page", PAGES)
def test_reference_page_names_every_key_of_code(page: str) -> None:
    words = set(re.findall(r"[A-Za-z0-9_.-]+", (ROOT / "docs" / page).read_text()))
    words |= {word.strip(".") for word in words}
    assert [name for name in PAGES[page] if str(name) not in words] == []


def test_python_reference_names_every_public_name() -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / "reference" / "python.md").read_text()))
    errors = {name for name, kind in vars(client_errors).items() if isinstance(kind, type)}
    assert set(client.__all__) - errors <= words
    assert "ffdl_batch.client.errors" in (ROOT / "docs" / "reference" / "python.md").read_text()


@pytest.mark.parametrize("definition", sorted((ROOT / "containers").glob("*.def")), ids=lambda p: p.stem)
def test_image_definition_and_page_agree_on_unbuilt_mark(definition: Path) -> None:
    header = definition.read_text().split("\n", 1)[0]
    row = next(line for line in (ROOT / "docs/images.md").read_text().splitlines() if f"`{definition.name}`" in line)
    assert header.startswith(("# ffdl-image: built", "# ffdl-image: unbuilt ("))
    assert ("unbuilt" in header) == ("unbuilt" in row)


def test_network_page_names_what_makes_each_level_on_each_backend(tmp_path: Path) -> None:
    lines = (ROOT / "docs" / "network.md").read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| level | made on Slurm by |"))
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin + 2 : lines.index("", begin)]
    ]
    rows = {NetworkLevel(row[0].strip("`")): row[1:] for row in cells}
    assert list(rows) == [level for level in NetworkLevel if level is not NetworkLevel.AUTO]
    slurm, kubernetes, local = (
        {level for level, row in rows.items() if row[backend] != "not available"} for backend in range(3)
    )
    machine = create({"runtime": "apptainer"}, AdapterContext(str(tmp_path), "ada", 1000))
    assert slurm == MECHANISMS.keys()
    assert kubernetes == {*ISOLATING, NetworkLevel.HOST}
    assert local == machine.probe().network_levels
    assert {level for level, row in rows.items() if row[1] == "a NetworkPolicy"} == ISOLATING


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/internals.md"])
def test_page_for_developers_names_existing_modules(page: str) -> None:
    """Paths of modules are relative to the checkout or to the core package."""
    paths = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)*\.py)\b", (ROOT / page).read_text()))
    assert len(paths) > 3
    tops = (ROOT, ROOT / "ffdl_batch")
    assert [path for path in sorted(paths) if not any((top / path).is_file() for top in tops)] == []


def test_api_page_has_rights_of_every_caller_and_right_of_every_operation() -> None:
    page = (ROOT / "docs/reference/http-api.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    table = {row[0]: row[1:] for row in rows if row[0] in list(Right) and len(row) == 8}
    assert list(table) == list(Right)
    operations = {name: right for right, row in table.items() for name in re.findall(r"`(\w+)`", row[0])}
    assert operations == OPERATIONS
    callers = [Caller(1), *(Caller(1, role=Role.TOKEN, scopes=frozenset({scope})) for scope in Scope)]
    callers += [Caller(1, role=role) for role in (Role.OPERATOR, Role.AUDITOR)]
    for right, row in table.items():
        assert row[1:] == ["yes" if right in rights_of(caller) else "no" for caller in callers], right


def test_every_threat_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/security/threat-model.md").read_text()
    tables = re.findall(r"^\| threat \| protection \| test \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    threats = [line for table in tables for line in table.splitlines()]
    assert len(threats) > 25
    for line in threats:
        named = re.search(r"\| `([\w/]+\.py)::(test_\w+)` \|$", line)
        assert named, line
        assert re.search(rf"^def {named[2]}\(", (ROOT / "tests" / named[1]).read_text(), re.MULTILINE), line
