"""The settings of ``[backend.local]``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, fields
from types import MappingProxyType

from ffdl_batch.domain.harmless_settings import HARMLESS, harmless_keys
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.domain.toml_text import toml_text
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import unknown_setting

_TABLE = "[backend.local]"
_WANTED: Mapping[type, str] = MappingProxyType({int: "a whole number", bool: "true or false", str: "a text"})


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The settings of this machine."""

    max_jobs: int = field(default=0, metadata=HARMLESS)
    """Maximum number of running jobs; 0 = the number of CPUs."""
    gpus: int = field(default=-1, metadata=HARMLESS)
    """Number of GPUs; -1 = count them."""
    require_gpus: bool = field(default=False, metadata=HARMLESS)
    """Refuse jobs that ask for more GPUs than the machine has."""
    runtime: str = "bare"
    """``bare`` or ``apptainer``."""
    apptainer: str = "apptainer"
    scratch_base: str = "/tmp"  # noqa: S108 - the directory that is made in it is 0700
    """The directory in which learners' temporary directories are made."""


HARMLESS_KEYS = harmless_keys(LocalSettings)
"""See :func:`ffdl_batch.plugins.harmless_settings`."""


def read_settings(raw: Mapping[str, object]) -> LocalSettings:
    """Check the table. Raises InvalidRequest that names the key, what is wrong and what would be right."""
    known = {one.name for one in fields(LocalSettings)}
    default = LocalSettings()
    values: dict[str, int | bool | str] = {}
    for key, value in raw.items():
        if key not in known:
            raise unknown_setting(_TABLE, key, known)
        wanted = type(getattr(default, key))
        if type(value) is not wanted or not isinstance(value, (int, str)):
            raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; {_WANTED[wanted]} is needed")
        values[key] = value
    settings = LocalSettings(
        max_jobs=int(values.get("max_jobs", default.max_jobs)),
        gpus=int(values.get("gpus", default.gpus)),
        require_gpus=bool(values.get("require_gpus", default.require_gpus)),
        runtime=str(values.get("runtime", default.runtime)),
        apptainer=str(values.get("apptainer", default.apptainer)),
        scratch_base=str(values.get("scratch_base", default.scratch_base)),
    )
    if settings.runtime not in ("bare", "apptainer"):
        raise InvalidRequest(f"{_TABLE}: runtime is {toml_text(settings.runtime)}; choose bare or apptainer")
    if settings.max_jobs < 0 or settings.gpus < -1 or not os.path.isabs(settings.scratch_base):  # noqa: PTH117
        raise InvalidRequest(f"{_TABLE}: max_jobs and gpus are counts, scratch_base is an absolute path")
    return settings
