"""Objects that a store does not give: they are named, all others are copied, and the user is blamed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, Note
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging import run_context
from tests.fakes.fault_proxy import FaultProxy, Rule
from tests.fakes.swift_server import Stored, swift_server
from tests.staging_rig import MIB, Outcome, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(12).randbytes(3 * MIB + 1)
SHUT = {"deep/shut": b"2", "empty": b"", "large": NOISE}
OPEN = {"a": b"1", "deep/b": b"3", "none": b"", "z": NOISE[: MIB + 1]}


@pytest.fixture(params=["s3", "gcs", "swift"])
def source(request: pytest.FixtureRequest, rig: StagingRig) -> Iterator[tuple[StoreAddress, FaultProxy]]:
    """A bucket with the objects, and the proxy in front of it."""
    objects = {f"set/{name}": data for name, data in (SHUT | OPEN).items()}
    if request.param != "swift":
        for key, data in objects.items():
            rig.put(key, data)
        kind = {"s3": StoreKind.S3, "gcs": StoreKind.GCS}[request.param]
        yield replace(rig.store, kind=kind, region="" if kind is StoreKind.S3 else "auto"), rig.proxy
        return
    with swift_server() as swift:
        front = FaultProxy(swift.port)
        rig.secrets.write_text(json.dumps({"u": swift.user, "p": swift.password}))
        swift.containers["box"] |= {key: Stored(data) for key, data in objects.items()}
        credentials = {"user_name": "u", "password": "p"}
        yield StoreAddress(StoreKind.SWIFT, f"{front.endpoint}/auth/v1.0", "", "box", {}, credentials), front
        front.stop()


def shut(proxy: FaultProxy, *names: str, code: str = "AccessDenied") -> None:
    proxy.rules = [Rule("", f"/set/{name}", status=403, code=code) for name in names]


def notes(outcome: Outcome) -> list[str]:
    return [note.why for note in outcome.of(Note)]


@pytest.mark.parametrize("names", [("large",), ("empty",), ("deep/shut", "empty", "large")])
def test_stage_in_copies_all_objects_but_denied_ones_and_blames_user(
    rig: StagingRig, source: tuple[StoreAddress, FaultProxy], names: tuple[str, ...]
) -> None:
    store, proxy = source
    shut(proxy, *names)
    outcome = rig.run(rig.task(prefix="set", store=store))
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (77, FaultClass.CREDENTIALS, "C103")
    for name in names:
        assert any(note.startswith(f"{name} cannot be read: it answered 403") for note in notes(outcome)), name
        assert f"{name}: it answered 403" in outcome.failed.message
    assert outcome.failed.message.endswith("all others are copied; make them readable, or leave them out")
    assert rig.files() == {name: data for name, data in (SHUT | OPEN).items() if name not in names}
    proxy.rules = []
    assert rig.run(rig.task(prefix="set", store=store)).done.files == 7
    assert rig.files() == SHUT | OPEN


def test_stage_in_names_store_if_it_denies_all_objects(
    rig: StagingRig, source: tuple[StoreAddress, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, proxy = source
    shut(proxy, *SHUT, *OPEN)
    for most in (20, 2):
        monkeypatch.setattr(run_context, "MOST_DENIED_AT_FIRST", most)
        outcome = rig.run(rig.task(prefix="set", store=store))
        assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (77, FaultClass.CREDENTIALS, "C103")
        assert "check the store's credentials, and that they may use this bucket" in outcome.failed.message
        assert "it answered 403" in outcome.failed.message and "all others" not in outcome.failed.message
        assert not set(rig.files()) & {*SHUT, *OPEN}


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_stage_in_ends_at_once_if_credentials_are_wrong(rig: StagingRig, code: str) -> None:
    for name, data in (SHUT | OPEN).items():
        rig.put(f"set/{name}", data)
    shut(rig.proxy, "large", code=code)
    outcome = rig.run(rig.task(prefix="set"))
    assert (outcome.status, outcome.failed.class_) == (77, FaultClass.CREDENTIALS)
    assert f"it answered 403 {code}" in outcome.failed.message and "all others" not in outcome.failed.message


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("kind", [StoreKind.FILE, StoreKind.FSSPEC])
@pytest.mark.parametrize("name", ["empty", "full"])
def test_stage_in_names_file_without_read_permission_whatever_its_size(
    rig: StagingRig, tmp_path: Path, kind: StoreKind, name: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for one, text in {"a": "1", "empty": "", "full": "2"}.items():
        (source / one).write_text(text)
    (source / name).chmod(0)
    options = {"protocol": "file"} if kind is StoreKind.FSSPEC else {}
    outcome = rig.run(rig.task(store=StoreAddress(kind, container=str(source), options=options)))
    found = (outcome.status, outcome.failed.class_, outcome.failed.code)
    of_service, of_machine = (77, FaultClass.CREDENTIALS, "C103"), (76, FaultClass.REFUSED, "S302")
    assert found == (of_service if kind is StoreKind.FSSPEC else of_machine)
    assert f"1 file or directory was not read ({name}: Permission denied)" in outcome.failed.message
    assert set(rig.files()) == {"a", "empty", "full"} - {name}


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("name", ["empty", "full"])
def test_stage_out_names_file_without_read_permission_whatever_its_size(rig: StagingRig, name: str) -> None:
    rig.local.mkdir()
    for one, text in {"a": "1", "empty": "", "full": "2"}.items():
        (rig.local / one).write_text(text)
    (rig.local / name).chmod(0)
    outcome = rig.run(rig.task(Direction.OUT, "job"))
    assert (outcome.status, outcome.failed.class_, outcome.failed.code) == (71, FaultClass.UNREADABLE, "C205")
    assert f"{name}: Permission denied" in outcome.failed.message
    assert set(rig.keys()) == {f"job/{one}" for one in {"a", "empty", "full"} - {name}}
