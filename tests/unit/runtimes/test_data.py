"""Where data come from and results go, what learners see of it, what is cached, and what is mounted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.data.mounts import Brought, Mounting, Mounts
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreKind
from ffdl_batch.domain.job.learner_layout import Load, Member, lay_on_one
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    DataStore,
    Framework,
    ImageLocation,
    JobSpec,
    Staging,
    StoreType,
)
from ffdl_batch.domain.launch.launch_file import NodeCache
from ffdl_batch.domain.launch.placeholders import fill, literal
from ffdl_batch.runtimes.data import CACHE_PER_GPU, Data, Subject, place_data
from ffdl_batch.runtimes.learner_contract import Bind, checkpoints_on_host, container_layout
from ffdl_batch.runtimes.learner_start import RequestRefused, Runtime, Start, compose_start

JOB = JobDir("/s/{jobs}/training-0")
FIRST = JOB.attempt(1)
URL = {"auth_url": "https://s3.example.org"}
COS = DataStore("c", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "in/set", "out", URL)
COPIED = replace(COS, type=StoreType.S3_DATASTORE, effective_type=StoreType.S3_DATASTORE)
HERE = DataStore("d", StoreType.DIRECTORY, StoreType.DIRECTORY, "more", "", {"path": "/d"})
WEB = DataStore("w", StoreType.HTTP_DATASTORE, StoreType.HTTP_DATASTORE, "sets/x.npz", "", URL)
RUNTIME = Runtime("/i.sif", staging=("py", "-m", "staging"))


def subject(*stores: DataStore, number: int = 1, shared: bool = False) -> Subject:
    batch = BatchOptions(checkpoint=Checkpoint(shared=shared))
    spec = JobSpec("x", Framework("custom", "i", "true"), data_stores=stores, batch=batch)
    return Subject("training-0", spec, lay_on_one([Member(Load(1, 1))]), JOB, JOB.attempt(number), number=number)


def moved(transfers: tuple[Transfer, ...]) -> list[tuple[str, str, str]]:
    """Bucket, prefix and directory of each."""
    return [(one.store.container, one.prefix, one.local) for one in transfers]


def sent(found: Data) -> list[tuple[str, str, str]]:
    values = {"learner_id": "2"}
    return [(b, fill(prefix, values), fill(local, values)) for b, prefix, local in moved(found.uploads)]


def test_place_data_uses_ffdl_layout_in_bucket() -> None:
    found = place_data(subject(COS))
    assert moved(found.fetches) == [("in", "set", JOB.data(1))]
    assert sent(found) == [
        ("out", "training-0", FIRST.results),
        ("out", "training-0/_submitted_code", FIRST.staging("_submitted_code")),
        ("out", "_wml_checkpoints/training-0", JOB.checkpoints),
        ("out", "training-0/learner-2", FIRST.learner_logs(2)),
    ]
    assert (found.stores.results, found.copies, found.needs_dirs, found.warnings) == ("", (), (), ())


def test_place_data_stores_results_below_prefix_of_bucket() -> None:
    prefixes = [prefix for _, prefix, _ in sent(place_data(subject(replace(COS, training_results="out/a/b"))))]
    assert prefixes[0] == "a/b/training-0"
    assert prefixes[2] == "a/b/_wml_checkpoints/training-0"


def test_place_data_fetches_shared_checkpoints_only_for_first_attempt() -> None:
    first = place_data(subject(COS, shared=True))
    assert sent(first)[2] == ("out", "_wml_checkpoints", JOB.checkpoints)
    assert moved(first.fetches)[1] == ("out", "_wml_checkpoints", JOB.checkpoints)
    assert [one.optional for one in first.fetches] == [False, True]
    assert len(place_data(subject(COS, shared=True, number=2)).fetches) == 1


@pytest.mark.parametrize(
    ("shared", "mode", "expected"),
    [
        (True, "mount", "/d/out/_wml_checkpoints"),
        (False, "mount", JOB.checkpoints),
        (True, "copy", JOB.checkpoints),
    ],
)
def test_place_data_shares_checkpoints_in_directory_of_results(shared: bool, mode: str, expected: str) -> None:
    store = replace(HERE, training_results="out", connection={"path": "/d", "mode": mode})
    assert checkpoints_on_host(place_data(subject(store, shared=shared)).places) == expected


@pytest.mark.parametrize("shared", [False, True])
def test_place_data_fetches_checkpoints_from_store_if_attempts_share_no_files(shared: bool) -> None:
    following = place_data(replace(subject(COS, shared=shared, number=2), apart=True))
    assert moved(following.fetches)[1:] == [sent(following)[2]] and following.fetches[1].optional
    assert len(place_data(replace(subject(COS, number=1), apart=True)).fetches) == 1


def test_container_layout_gives_staged_store_the_paths_of_mounted_store() -> None:
    layout = container_layout(place_data(subject(COS)).places)
    assert (layout.data_dir, layout.result_dir) == ("/mnt/data/in/set", "/mnt/results/out/training-0")
    assert layout.checkpoint_dir == "/mnt/results/out/_wml_checkpoints"
    assert Bind(literal(JOB.data(1)), "/mnt/data/in/set", read_only=True) in layout.binds
    assert Bind(literal(FIRST.results), "/mnt/results/out/training-0") in layout.binds


def test_container_layout_makes_copied_data_writable() -> None:
    layout = container_layout(place_data(subject(COPIED)).places)
    assert (layout.data_dir, layout.result_dir) == ("/job/in/set", "/job/out")
    assert Bind(literal(JOB.data(1)), "/job/in/set") in layout.binds


def test_container_layout_sets_result_bucket_path_except_for_copied_store() -> None:
    """A directory is bound there as it is; a bucket is not mounted, and a copied one has no such path, as in FfDL."""
    bucket, copied = (container_layout(place_data(subject(one)).places) for one in (COS, COPIED))
    directory = container_layout(place_data(subject(replace(HERE, training_results="out"))).places)
    assert bucket.result_bucket_dir == directory.result_bucket_dir == "/mnt/results/out"
    assert bucket.result_dir == directory.result_dir == "/mnt/results/out/training-0"
    assert Bind("/d/out", "/mnt/results/out") in directory.binds
    assert "/mnt/results/out" not in [bind.target for bind in bucket.binds]
    assert copied.result_bucket_dir == ""


def test_compose_start_numbers_data_directories_of_several_stores() -> None:
    spec = subject(HERE, COPIED, WEB)
    found = place_data(spec)
    assert found.needs_dirs == ("/d/more",)
    assert moved(found.fetches) == [("in", "set", JOB.data(2)), ("", "sets/x.npz", JOB.data(3))]
    assert found.fetches[1].store.kind is StoreKind.HTTP
    start = compose_start(spec, RUNTIME)
    env = {name: value for name, value in start.learner.env.items() if name.startswith("DATA_DIR")}
    assert env == {
        "DATA_DIR": "/mnt/data/more", "DATA_DIR_1": "/mnt/data/more", "DATA_DIR_2": "/job/in/set",
        "DATA_DIR_3": "/job/data",
    }  # fmt: skip
    assert set(env) <= set(start.learner.protected)
    assert start.learner.env["RESULT_DIR"] == "/job/out"
    assert start.staging == RUNTIME.staging


def test_place_data_separates_input_store_from_result_store() -> None:
    found = place_data(subject(replace(HERE, training_results=""), replace(COS, training_data="")))
    assert (found.fetches, len(found.uploads)) == ((), 4)
    layout = container_layout(found.places)
    assert (layout.data_dir, layout.result_dir) == ("/mnt/data/more", "/mnt/results/out/training-0")


@pytest.mark.parametrize("image", ["", "/i.sif"])
def test_compose_start_needs_no_staging_for_directory_stores(image: str) -> None:
    start = compose_start(subject(HERE), Runtime(image, staging=RUNTIME.staging))
    assert (start.staging, start.data.fetches) == ((), ())
    assert "DATA_DIR_1" not in start.learner.env


@pytest.mark.parametrize(
    ("stores", "path", "words"),
    [
        ((COS, replace(COPIED, training_data="")), "data_stores[1].training_results", "already"),
        ((COS, replace(HERE, training_data="in/set")), "", "both be at /mnt/data/in/set"),
        ((replace(WEB, training_results="out"),), "data_stores[0].training_results", "web server"),
        ((replace(COS, connection={"auth_url": "x"}),), "data_stores[0].connection.auth_url", "not the address"),
        ((replace(COS, training_results="../x"),), "data_stores[0]", "not a container"),
        ((replace(HERE, training_data="../x"),), "data_stores[0]", "leads out"),
        ((replace(HERE, connection={}),), "data_stores[0].connection.path", "needs connection.path"),
        ((replace(HERE, connection={"path": "/d", "mode": "link"}),), "data_stores[0].connection.mode", "not a mode"),
    ],
)
def test_compose_start_rejects_unusable_stores_at_their_field(
    stores: tuple[DataStore, ...], path: str, words: str
) -> None:
    with pytest.raises(RequestRefused, match=words) as refused:
        compose_start(subject(*stores), RUNTIME)
    (finding,) = refused.value.findings
    assert finding.path == path
    assert not path or finding.code == "C103"


# --------------------------------------------------------------------------------------- what the nodes' cache serves


REFERENCE = "docker://registry.example.org/a/b:c"
CACHE = NodeCache("/cache", 10)
CACHED = replace(RUNTIME, image=REFERENCE, program="singularity", cache=CACHE)


def composed(runtime: Runtime, *stores: object) -> Start:
    return compose_start(subject(*stores), runtime)  # type: ignore[arg-type]


def test_compose_start_serves_registry_image_from_node_cache() -> None:
    start = composed(CACHED)
    assert start.cache == NodeCache("/cache", 10, REFERENCE, "singularity")
    assert "{image}" in start.learner.argv
    assert REFERENCE not in start.learner.argv
    assert start.staging == CACHED.staging


@pytest.mark.parametrize(
    "change", [{"cache": None}, {"staging": ()}, {"image": "/i.sif"}, {"image": "library://a/b:c"}], ids=str
)
def test_compose_start_uses_image_path_if_cache_or_registry_does_not_apply(change: dict[str, object]) -> None:
    start = composed(replace(CACHED, **change))  # type: ignore[arg-type]
    assert start.cache is None
    assert str(change.get("image", REFERENCE)) in start.learner.argv
    assert start.staging == ()


def private(runtime: Runtime, *stores: object) -> Start:
    plain = subject(*stores)  # type: ignore[arg-type]
    location = ImageLocation("registry.example.org", "a", user_name="${secret:me}", access_token="${secret:word}")
    framework = replace(plain.spec.framework, image_location=location)
    return compose_start(replace(plain, spec=replace(plain.spec, framework=framework)), runtime)


def test_compose_start_fetches_private_image_into_cache_or_user_directory() -> None:
    known = {"user_name": "me", "password": "word"}
    assert private(CACHED).cache == NodeCache("/cache", 10, REFERENCE, "singularity", known)
    without = replace(CACHED, cache=None, images="/jobs/images")
    start = private(without, COS)
    assert start.cache == NodeCache("", 0, REFERENCE, "singularity", known, "/jobs/images")
    assert "{image}" in start.learner.argv
    assert composed(without).cache is None
    assert private(replace(without, image="/i.sif")).cache is None
    with pytest.raises(RequestRefused, match=r"framework\.image_location\.access_token: the nodes do not see"):
        private(replace(without, staging=()))


def test_compose_start_uses_cache_for_data_without_registry_image() -> None:
    assert composed(replace(CACHED, image="/i.sif"), COS).cache == NodeCache("/cache", 10, "", "singularity")
    assert composed(replace(CACHED, image="/i.sif", cache=None), COS).cache is None


def test_place_data_links_only_read_only_data_on_one_node() -> None:
    both = place_data(subject(COS, replace(COPIED, training_results="")))
    assert [fetch.link for fetch in both.fetches] == [True, False]
    two = replace(subject(COS), gang=replace(lay_on_one([Member(Load(1, 1))] * 2), nodes_of=(0, 1), nodes=2))
    assert [fetch.link for fetch in place_data(two).fetches] == [False]


# --------------------------------------------------------------------------------------------------- what nodes mount


READ = replace(COS, training_results="")
COPY = replace(COPIED, training_results="")
ONE = Mounts((0,), cache_bytes=CACHE_PER_GPU)


def mounts(site: Mounting, *stores: DataStore, cache: NodeCache | None = None, **batch: object) -> Mounts | None:
    given = subject(*stores)
    spec = replace(given.spec, batch=replace(given.spec.batch, **batch))  # type: ignore[arg-type]
    return compose_start(replace(given, spec=spec), replace(RUNTIME, mounting=site, cache=cache)).mounts


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
    both = replace(ONE, transfers=(1,), must=must, brought=brought)
    assert mounts(site, other, replace(READ, training_data="sets")) == both
    assert mounts(Mounting.NEVER, other) is None


AUTO, ALWAYS, NEVER = Mounting.AUTO, Mounting.ALWAYS, Mounting.NEVER
MUST = replace(ONE, must=True)


@pytest.mark.parametrize(
    ("site", "stores", "options", "found"),
    [
        (AUTO, [COS], {}, ONE),
        (ALWAYS, [COS], {}, MUST),
        (NEVER, [COS], {}, None),
        (ALWAYS, [COPY], {}, None),  # what is copied is never mounted
        (AUTO, [COPY, READ], {}, replace(ONE, transfers=(1,))),
        (NEVER, [COS], {"mount": AUTO}, ONE),  # the manifest has the last word
        (NEVER, [COS], {"mount": ALWAYS}, MUST),
        (ALWAYS, [COS], {"mount": NEVER}, None),
        (ALWAYS, [COS], {"mount": None}, MUST),
        (AUTO, [COS], {"cache": NodeCache("/cache")}, None),  # a cache comes first unless a mount is asked for
        (ALWAYS, [COS], {"cache": NodeCache("/cache")}, MUST),
        (ALWAYS, [COS], {"staging": Staging.AHEAD}, None),
    ],
)
def test_compose_start_mounts_stores_by_site_manifest_cache_and_staging(
    site: Mounting, stores: list[DataStore], options: dict[str, Any], found: Mounts | None
) -> None:
    assert mounts(site, *stores, **options) == found
