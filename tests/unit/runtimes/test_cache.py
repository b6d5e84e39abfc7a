"""What comes from the nodes' cache: data as a link where one node only reads them, and images of registries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.gang import Load, Member, lay_on_one
from ffdl_batch.domain.launch import NodeCache
from ffdl_batch.domain.spec import ImageLocation
from ffdl_batch.runtimes.data import place_data
from ffdl_batch.runtimes.layout import RequestRefused, Runtime, Start, compose_start
from tests.unit.runtimes.test_data import COPIED, COS, RUNTIME, subject

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
    assert [fetch.link for fetch in place_data(subject(COS, replace(COPIED, training_results=""))).fetches] == [
        True,
        False,
    ]
    two = replace(subject(COS), gang=replace(lay_on_one([Member(Load(1, 1))] * 2), nodes_of=(0, 1), nodes=2))
    assert [fetch.link for fetch in place_data(two).fetches] == [False]
