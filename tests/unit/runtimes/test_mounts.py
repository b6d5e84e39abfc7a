"""Which stores of a job nodes mount."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.launch import NodeCache
from ffdl_batch.domain.mounting import Brought, Mounting, Mounts
from ffdl_batch.domain.spec import DataStore, Staging, StoreType
from ffdl_batch.runtimes.data import CACHE_PER_GPU
from ffdl_batch.runtimes.layout import compose_start
from tests.unit.runtimes.test_data import COPIED, COS, RUNTIME, subject

READ = replace(COS, training_results="")
COPY = replace(COPIED, training_results="")
ONE = Mounts((0,), cache_bytes=CACHE_PER_GPU)


def mounts(site: Mounting, *stores: DataStore, cache: NodeCache | None = None, **batch: object) -> Mounts | None:
    given = subject(*stores)
    spec = replace(given.spec, batch=replace(given.spec.batch, **batch))  # type: ignore[arg-type]
    return compose_start(replace(given, spec=spec), replace(RUNTIME, mounting=site, cache=cache)).mounts


def test_compose_start_mounts_cos_store_unless_mounting_is_never() -> None:
    assert mounts(Mounting.AUTO, COS) == ONE
    assert mounts(Mounting.ALWAYS, COS) == replace(ONE, must=True)
    assert mounts(Mounting.NEVER, COS) is None


def test_compose_start_never_mounts_copied_store() -> None:
    assert mounts(Mounting.ALWAYS, COPY) is None
    assert mounts(Mounting.AUTO, COPY, READ) == replace(ONE, transfers=(1,))


def of(kind: StoreType, **connection: str) -> DataStore:
    return replace(READ, effective_type=kind, connection=connection)


@pytest.mark.parametrize(
    "store",
    [
        of(StoreType.SWIFT_DATASTORE, auth_url="https://swift.example.org/v3"),
        of(StoreType.GCS_DATASTORE),
        of(StoreType.FSSPEC_DATASTORE, protocol="sftp", host="a.example.org"),
    ],
)
def test_compose_start_mounts_other_store_types_that_rclone_supports(store: DataStore) -> None:
    assert mounts(Mounting.AUTO, store) == ONE


@pytest.mark.parametrize("site", [Mounting.AUTO, Mounting.ALWAYS])
def test_compose_start_stages_store_of_unsupported_protocol_with_reason(site: Mounting) -> None:
    other = of(StoreType.FSSPEC_DATASTORE, protocol="ftp", host="a.example.org")
    must = site is Mounting.ALWAYS
    brought = (Brought(0, "stores of the protocol ftp are not mounted"),)
    assert mounts(site, other) == replace(ONE, transfers=(), must=must, brought=brought)
    assert mounts(site, other, replace(READ, training_data="sets")) == replace(
        ONE, transfers=(1,), must=must, brought=brought
    )
    assert mounts(Mounting.NEVER, other) is None


@pytest.mark.parametrize(
    ("site", "own", "found"),
    [
        (Mounting.NEVER, Mounting.AUTO, ONE),
        (Mounting.NEVER, Mounting.ALWAYS, replace(ONE, must=True)),
        (Mounting.ALWAYS, Mounting.NEVER, None),
        (Mounting.ALWAYS, None, replace(ONE, must=True)),
    ],
)
def test_compose_start_prefers_mount_option_of_manifest_over_site(
    site: Mounting, own: Mounting | None, found: Mounts | None
) -> None:
    assert mounts(site, COS, mount=own) == found


def test_compose_start_prefers_cache_over_automatic_mount() -> None:
    assert mounts(Mounting.AUTO, COS, cache=NodeCache("/cache")) is None
    assert mounts(Mounting.ALWAYS, COS, cache=NodeCache("/cache")) == replace(ONE, must=True)


def test_compose_start_does_not_mount_store_staged_ahead() -> None:
    assert mounts(Mounting.ALWAYS, COS, staging=Staging.AHEAD) is None
