"""Which attempt brings the data alone, and what is asked of the scheduler for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.gang import members_of, parts_of
from ffdl_batch.domain.spec import (
    BatchOptions,
    DataStore,
    Element,
    Framework,
    JobSpec,
    Placement,
    Resources,
    Restart,
    Role,
    Staging,
    StoreType,
)
from ffdl_batch.services.ahead import CPUS, MEMORY_BYTES, for_staging, stages_ahead

STORE = DataStore("c", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "in/set", "out", {"auth_url": "https://s3"})
BATCH = BatchOptions(
    partition="gpu", account="vision", time_s=3600, nodelist="n1,n2", exclude="n9", placement=Placement.PACK,
    restart=Restart.LEARNER, staging=Staging.AHEAD, env={"PS_HOSTS_COUNT": "2", "HTTPS_PROXY": "http://proxy"},
    slurm_args=("--exclusive", "--gpu-bind=closest", "--wckey=w"),
)  # fmt: skip
SPEC = JobSpec(
    "x",
    Framework("horovod", "i", "mpirun -np 4 train; PS_HOSTS_COUNT=2"),
    resources=Resources(4, 16.0, 2.0, "a100", 64 * 1000**3, gres={"npu": 1}),
    data_stores=(STORE,),
    batch=BATCH,
)


@pytest.mark.parametrize(
    ("spec", "ahead"),
    [
        (SPEC, True),
        (replace(SPEC, batch=replace(BATCH, staging=Staging.INLINE)), False),
        (replace(SPEC, data_stores=()), False),
        (replace(SPEC, element=Element("array-0", "x", 0, 2, 0, 1)), False),
        (replace(SPEC, data_stores=(replace(STORE, training_data=""),)), False),
        (replace(SPEC, data_stores=(replace(STORE, effective_type=StoreType.DIRECTORY),)), False),
    ],
)
def test_staging_ahead_requires_option_single_job_and_remote_training_data(spec: JobSpec, ahead: bool) -> None:
    assert stages_ahead(spec, ()) is ahead


def test_staging_ahead_requests_one_small_learner_without_gpus() -> None:
    for spec in (SPEC, replace(SPEC, batch=replace(BATCH, roles={"chief": Role(2, gpus=1.0), "ps": Role(2)}))):
        small = for_staging(spec)
        (part,), (_,) = parts_of(small), members_of(small)
        assert (part.gpus, small.resources) == (0.0, Resources(1, CPUS, memory_bytes=MEMORY_BYTES))
        kept = (small.batch.partition, small.batch.account, small.batch.time_s, small.batch.exclude)
        assert (kept, small.batch.nodelist) == (("gpu", "vision", 3600, "n9"), "")
        assert small.batch.slurm_args == ("--wckey=w",)
        assert small.batch.env == {"HTTPS_PROXY": "http://proxy"}
    less = replace(SPEC, resources=Resources(cpus=1.0, memory_bytes=10**9))
    assert for_staging(less).resources == Resources(cpus=1.0, memory_bytes=10**9)
