"""Conversions made wrong on purpose: each must be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Manifest = dict[str, object]


def _framework(manifest: Manifest, key: str, text: str) -> Manifest:
    framework = manifest["framework"]
    assert isinstance(framework, Mapping)
    return {**manifest, "framework": {**framework, key: f"{framework[key]}{text}"}}


def _batch(manifest: Manifest) -> dict[str, object]:
    batch = manifest["batch"]
    assert isinstance(batch, Mapping)
    return dict(batch)


def break_argv(manifest: Manifest) -> Manifest:
    """An argument more."""
    return _framework(manifest, "command", " --planted")


def break_environment(manifest: Manifest) -> Manifest:
    """A variable with another value."""
    batch = _batch(manifest)
    env = batch.get("env")
    batch["env"] = {**(dict(env) if isinstance(env, Mapping) else {}), "OMP_NUM_THREADS": "77", "PLANTED": "1"}
    return {**manifest, "batch": batch}


def break_resources(manifest: Manifest) -> Manifest:
    """A GPU more for each learner."""
    count = manifest["gpus"]
    assert isinstance(count, int)
    return {**manifest, "gpus": count + 1}


def break_image(manifest: Manifest) -> Manifest:
    """Another image."""
    return _framework(manifest, "version", "-planted")


def break_learners(manifest: Manifest) -> Manifest:
    """A learner more."""
    count, batch = manifest["learners"], _batch(manifest)
    assert isinstance(count, int)
    batch.pop("roles", None)
    return {**manifest, "learners": count + 1, "batch": batch}


BREAKS: Mapping[str, Callable[[Manifest], Manifest]] = {
    "argv": break_argv,
    "environment": break_environment,
    "image": break_image,
    "learners": break_learners,
    "resources": break_resources,
}
