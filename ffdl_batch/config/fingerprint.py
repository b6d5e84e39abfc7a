"""Compares the settings of a daemon with those of a command by digests, because their values may be secret.

The daemon writes a short digest of each of its settings into its lock file. A command makes the same digests of its own
settings, and names those that differ and the origin of its own value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from ffdl_batch.config.settings import FrameworkImages, Settings

PER_COMMAND = (
    "FFDL_BACKEND", "FFDL_STRICT", "FFDL_EXPORT", "FFDL_HOST", "FFDL_HOST_DIR", "FFDL_HOST_PROGRAM", "FFDL_HUB",
    "FFDL_HUB_URL", "FFDL_SITE_RUN",
)  # fmt: skip
"""Variables that are defaults of one command: they are sent with its request, and a daemon that it starts does not
inherit them."""
_OF_COMMANDS = ("origins", "host", "host_program", "hub_url")
"""Settings that the daemon does not use."""
KUBECONFIG = "KUBECONFIG"
"""The variable that names a cluster's file if the configuration does not, as for kubectl."""
SLURM_CONF, SLURM_CLUSTERS = "SLURM_CONF", "SLURM_CLUSTERS"
"""The variables by which Slurm's commands choose a cluster (sbatch(1), INPUT ENVIRONMENT VARIABLES)."""
_TABLES = {"frameworks": "framework.", "backends": "backend."}


def for_daemon(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that count for one command only."""
    return {name: value for name, value in environ.items() if name not in PER_COMMAND}


def named_clusters(environ: Mapping[str, str]) -> str:
    """Return the files that KUBECONFIG names as absolute paths, because a daemon has another working directory. "" =
    none."""
    named = environ.get(KUBECONFIG, "").split(os.pathsep)
    return os.pathsep.join(str(Path(file).absolute()) for file in named if file)


def named_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which Slurm's commands choose a cluster, "" for one that is not set. A relative path is
    made absolute, because a daemon has another working directory."""
    conf = environ.get(SLURM_CONF, "")
    return {SLURM_CONF: str(Path(conf).absolute()) if conf else "", SLURM_CLUSTERS: environ.get(SLURM_CLUSTERS, "")}


def take_fingerprints(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a digest of each setting. That of the backend is of its effective value: if no file names one, the PATH
    decides. KUBECONFIG counts, too, because it decides if no file names a cluster."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in _OF_COMMANDS}
    values["backend"] = settings.effective_backend(environ)[0]
    values[KUBECONFIG] = named_clusters(environ)
    return {key: _digest(value) for key, value in values.items()}


def find_differences(settings: Settings, environ: Mapping[str, str], taken: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings that differ from the digests `taken` of a daemon, each as ``key (where ours comes from)``.

    A setting that one of the two does not know (another release) is no difference.
    """
    own = take_fingerprints(settings, environ)
    if not _needs_kubeconfig(settings, environ):
        del own[KUBECONFIG]
    return tuple(
        f"{key} ({_origin(settings, environ, key)})" for key in sorted(own) if key in taken and taken[key] != own[key]
    )


def _needs_kubeconfig(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Return whether jobs of this command may go to the cluster that its KUBECONFIG names."""
    if not environ.get(KUBECONFIG) or settings.backend_settings("kubernetes").get("kubeconfig"):
        return False
    return "kubernetes" in settings.backends or settings.effective_backend(environ)[0] == "kubernetes"


def _origin(settings: Settings, environ: Mapping[str, str], key: str) -> str:
    if key == "backend" and (why := settings.effective_backend(environ)[1]):
        return why
    if key == KUBECONFIG:
        return "environment"
    if key in _TABLES:
        found = {origin for name, origin in settings.origins.items() if name.startswith(_TABLES[key])}
        return ", ".join(sorted(found)) or "default"
    return settings.origins.get(key, "default")


def _digest(value: object) -> str:
    import hashlib

    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: object) -> object:
    """Return values that JSON lacks as plain ones: our own tables, frozen mappings, and TOML's dates."""
    if isinstance(value, FrameworkImages):
        return [dict(value.versions), value.template]
    return dict(value) if isinstance(value, Mapping) else str(value)
