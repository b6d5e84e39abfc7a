"""Staging from and to Swift (a fake, see tests/fakes/swift_server.py)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, Retry
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging.stores import swift as module
from tests.contract.linked_tree import check_round_trip
from tests.fakes.fault_proxy import FaultProxy, Rule
from tests.fakes.swift_server import Stored, Swift, swift_server
from tests.staging_rig import MIB, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(11).randbytes(12 * MIB + 3)


@pytest.fixture
def swift() -> Iterator[Swift]:
    with swift_server() as made:
        yield made


@pytest.fixture
def front(swift: Swift) -> Iterator[FaultProxy]:
    made = FaultProxy(swift.port)
    yield made
    made.stop()


@pytest.fixture
def store(rig: StagingRig, swift: Swift, front: FaultProxy) -> StoreAddress:
    rig.secrets.write_text(json.dumps({"u": swift.user, "p": swift.password}))
    credentials = {"user_name": "u", "password": "p"}
    return StoreAddress(StoreKind.SWIFT, f"{front.endpoint}/auth/v1.0", "", "box", {"timeout_s": "60"}, credentials)


def test_swift_store_stages_in_plain_static_and_dynamic_large_objects_once(
    rig: StagingRig, swift: Swift, store: StoreAddress, front: FaultProxy
) -> None:
    box = swift.containers["box"]
    box |= {
        "set/a": Stored(b"1"),
        "set/empty": Stored(b""),
        "set/sp ace/ü": Stored(NOISE[: 3 * MIB]),
        "other": Stored(b""),
    }
    swift.containers["parts"] = {"big/1": Stored(NOISE[:MIB]), "big/2": Stored(NOISE[MIB:])}
    box["set/static"] = Stored(b"[]", [("parts", "big/1"), ("parts", "big/2")])
    box["set/dynamic"] = Stored(b"", dynamic="parts/big/")
    task = rig.task(prefix="set", store=store)
    assert rig.run(task).done.files == 5
    assert rig.files() == {
        "a": b"1", "empty": b"", "sp ace/ü": NOISE[: 3 * MIB], "static": NOISE, "dynamic": NOISE,
    }  # fmt: skip
    assert any(asked for _, _, asked in front.requests)
    assert rig.run(task).done.kept == 5


@pytest.mark.usefixtures("bound_by_modes")
def test_swift_store_keeps_links_modes_holes_and_empty_directories(rig: StagingRig, store: StoreAddress) -> None:
    check_round_trip(rig, store)


def test_swift_store_lists_all_pages_and_retries_failed_page(
    rig: StagingRig, swift: Swift, store: StoreAddress, front: FaultProxy
) -> None:
    swift.containers["box"] |= {f"set/{n:04}": Stored(b"%d" % n) for n in range(1500)}
    rig.local.mkdir()
    front.rules = [Rule("GET", "marker=set%2F0999", times=1, status=503)]
    outcome = rig.run(rig.task(prefix="set", store=store, only=("14*",)))
    assert outcome.done.files == 100
    assert len(outcome.of(Retry)) == 1


def test_swift_store_stages_out_large_file_in_segments(rig: StagingRig, swift: Swift, store: StoreAddress) -> None:
    rig.local.mkdir()
    (rig.local / "big").write_bytes(NOISE)
    (rig.local / "small").write_bytes(b"1")
    task = rig.task(Direction.OUT, "job", store=store)
    assert rig.run(task).done.files == 2
    assert (swift.content("box", "job/big"), swift.content("box", "job/small")) == (NOISE, b"1")
    assert len(swift.containers["box_segments"]) == 3
    assert rig.run(task).done.kept == 2


def test_swift_store_removes_leftover_segments_on_next_upload(
    rig: StagingRig, swift: Swift, store: StoreAddress, front: FaultProxy
) -> None:
    rig.local.mkdir()
    (rig.local / "big").write_bytes(NOISE)
    front.rules = [Rule("PUT", "multipart-manifest", status=400)]
    outcome = rig.run(rig.task(Direction.OUT, "job", store=store))
    assert (outcome.status, outcome.failed.class_) == (76, FaultClass.REFUSED)
    assert len(swift.containers["box_segments"]) == 3
    front.rules.clear()
    (rig.local / "big").write_bytes(b"small now")
    rig.run(rig.task(Direction.OUT, "job", store=store))
    assert swift.content("box", "job/big") == b"small now"
    assert swift.containers["box_segments"] == {}


def test_swift_store_uses_keystone_account_of_region_and_reports_unknown_region(
    rig: StagingRig, swift: Swift, store: StoreAddress
) -> None:
    swift.domain, swift.project = "a-domain", "a-project"
    swift.containers["box"]["a"] = Stored(b"1")
    options = {**store.options, "domain_name": "a-domain", "project_id": "a-project"}
    v3 = replace(store, endpoint=store.endpoint.removesuffix("/auth/v1.0"), region="north", options=options)
    assert rig.run(rig.task(store=v3)).done.files == 1
    wrong = rig.run(rig.task(store=replace(v3, region="west")))
    assert (wrong.status, wrong.failed.class_) == (66, FaultClass.MISSING)
    assert "region west" in wrong.failed.message


def test_swift_store_reports_wrong_password_and_missing_container(
    rig: StagingRig, swift: Swift, store: StoreAddress
) -> None:
    none = rig.run(rig.task(store=replace(store, container="none")), check=True)
    assert (none.status, none.failed.class_) == (66, FaultClass.MISSING)
    swift.password = "another"
    for check in (True, False):
        outcome = rig.run(rig.task(store=store), check=check)
        assert (outcome.status, outcome.failed.class_, outcome.of(Retry)) == (77, FaultClass.CREDENTIALS, [])


@pytest.mark.parametrize("young_s", [0.0, 3600.0])
def test_swift_store_renews_token_that_expires_in_transfer_unless_it_is_new(
    rig: StagingRig,
    swift: Swift,
    store: StoreAddress,
    front: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    young_s: float,
) -> None:
    monkeypatch.setattr(module, "YOUNG_S", young_s)
    swift.containers["box"]["big"] = Stored(NOISE)
    ended: list[bool] = []

    def end(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/big") and not ended:
            ended.append(True)
            swift.tokens.clear()
            swift.tokens.add("somebody else's")

    front.before = end
    outcome = rig.run(rig.task(store=store, parallel=1))
    if young_s:
        assert (outcome.status, outcome.failed.class_) == (77, FaultClass.CREDENTIALS)
    else:
        assert outcome.done.files == 1
        assert rig.files() == {"big": NOISE}
        assert ["token has ended" in retry.why for retry in outcome.of(Retry)] == [True]
