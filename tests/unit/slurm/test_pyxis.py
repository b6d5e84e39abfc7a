"""Plans of a site whose containers enroot starts: ``runtime = "pyxis"`` of ``[backend.slurm]``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.job.spec import BatchOptions, Egress, ImageLocation, NetworkLevel
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.settings import SlurmSettings, read_settings
from tests.unit.slurm.test_plan import FACTS, request, small

TO = (Egress("license.example.org", 443),)
PYXIS = read_settings({"runtime": "pyxis"})


def pyxis(image: str = "docker://nvcr.io/nvidia/pytorch:24.01-py3", **changes: Any) -> LaunchRequest:
    staging = replace(FACTS, staging=("/py", "-m", "ffdl_batch.staging"))
    return request(**{"image": image, "facts": staging, "cache_dir": "/cache", "cache_bytes": 10**9, **changes})


@pytest.mark.parametrize(("gpus", "count"), [(0, "none"), (2, "{gpu_count}")])
def test_learner_starts_by_enroot_in_network_of_node(gpus: int, count: str) -> None:
    plan = make_plan(pyxis(resources=small(gpus=gpus)), PYXIS)
    argv = plan.launch.learner.argv
    assert argv[3:8] == ("ffdl-enroot", "docker://nvcr.io#nvidia/pytorch:24.01-py3", "{scratch}",
                         "{scratch}/learner-{learner_id}", count)  # fmt: skip
    assert (plan.network.level, plan.network.mechanism) == ("host", "none")
    assert plan.launch.cache is None
    assert not [word for word in argv if "apptainer" in word or word in ("--nv", "--rocm", "{devices}")]
    assert make_plan(pyxis("/i.sif"), SlurmSettings()).launch.learner.argv[0] == "apptainer"


@pytest.mark.parametrize("level", [NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS])
def test_network_level_of_apptainer_is_refused_with_cure(level: NetworkLevel) -> None:
    with pytest.raises(InvalidRequest, match=f"network level {level} needs Apptainer, and runtime .* is pyxis"):
        make_plan(pyxis(batch=BatchOptions(network=level, egress=TO if level is NetworkLevel.EGRESS else ())), PYXIS)


def test_level_that_site_demands_is_refused_with_reason() -> None:
    with pytest.raises(InvalidRequest, match=r"asks for network level none or tighter.*needs Apptainer"):
        make_plan(pyxis(minimum_network=NetworkLevel.NONE), PYXIS)


def test_signed_images_credentials_and_sif_files_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="enroot checks no signatures"):
        make_plan(pyxis(signers=("A" * 40,)), PYXIS)
    with pytest.raises(InvalidRequest, match="enroot cannot open a SIF file"):
        make_plan(pyxis("/images/x.sif"), PYXIS)
    plain = pyxis()
    location = ImageLocation("registry.example.org", "a", user_name="${secret:me}", access_token="${secret:word}")
    framework = replace(plain.spec.framework, image_location=location)
    with pytest.raises(InvalidRequest, match=r"~/\.config/enroot/\.credentials"):
        make_plan(replace(plain, spec=replace(plain.spec, framework=framework)), PYXIS)


def test_runtime_setting_rejects_unknown_name() -> None:
    with pytest.raises(InvalidRequest, match="runtime is 'docker'; choose one of apptainer, pyxis"):
        read_settings({"runtime": "docker"})
