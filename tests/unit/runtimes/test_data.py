"""Where data come from and results go, and what learners see of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.gang import Load, Member, lay_on_one
from ffdl_batch.domain.jobdir import JobDir
from ffdl_batch.domain.placeholders import fill, literal
from ffdl_batch.domain.spec import BatchOptions, Checkpoint, DataStore, Framework, JobSpec, StoreType
from ffdl_batch.domain.staging import StoreKind, Transfer
from ffdl_batch.runtimes.contract import Bind, container_layout
from ffdl_batch.runtimes.data import Data, Subject, place_data
from ffdl_batch.runtimes.layout import RequestRefused, Runtime, compose_start

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


@pytest.mark.parametrize("shared", [False, True])
def test_place_data_fetches_checkpoints_from_store_if_attempts_share_no_files(shared: bool) -> None:
    following = place_data(replace(subject(COS, shared=shared, number=2), apart=True))
    assert moved(following.fetches)[1:] == [sent(following)[2]] and following.fetches[1].optional
    assert len(place_data(replace(subject(COS, number=1), apart=True)).fetches) == 1


def test_container_layout_gives_staged_store_the_paths_of_mounted_store() -> None:
    layout = container_layout(place_data(subject(COS)).places)
    assert (layout.data_dir, layout.result_dir) == ("/mnt/data/in/set", "/mnt/results/out/training-0")
    assert layout.checkpoint_dir == "/mnt/results/out/_wml_checkpoints"
    found = [
        Bind(bind.source.replace("{{", "{").replace("}}", "}"), bind.target, bind.read_only) for bind in layout.binds
    ]
    assert Bind(JOB.data(1), "/mnt/data/in/set", read_only=True) in found
    assert Bind(FIRST.results, "/mnt/results/out/training-0") in found


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
        "DATA_DIR": "/mnt/data/more",
        "DATA_DIR_1": "/mnt/data/more",
        "DATA_DIR_2": "/job/in/set",
        "DATA_DIR_3": "/job/data",
    }
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
        ((replace(COS, connection={"auth_url": "x"}),), "data_stores[0].connection.auth_url", "no address"),
        ((replace(COS, training_results="../x"),), "data_stores[0]", "no container"),
        ((replace(HERE, training_data="../x"),), "data_stores[0]", "leads out"),
        ((replace(HERE, connection={}),), "data_stores[0].connection.path", "needs connection.path"),
        ((replace(HERE, connection={"path": "/d", "mode": "link"}),), "data_stores[0].connection.mode", "no mode"),
    ],
)
def test_compose_start_rejects_unusable_stores_at_their_field(
    stores: tuple[DataStore, ...], path: str, words: str
) -> None:
    with pytest.raises(RequestRefused, match=words) as refused:
        compose_start(subject(*stores), RUNTIME)
    (finding,) = refused.value.findings
    assert (finding.path, refused.value.not_yet) == (path, False)
    assert not path or finding.code == "C103"
