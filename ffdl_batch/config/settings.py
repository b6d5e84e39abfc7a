"""Every configuration value with its default and its meaning."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from enum import Enum
from pathlib import Path

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.harmless_settings import HARMLESS
from ffdl_batch.domain.incidents.site_settings import FaultPolicy, NodeRules, NoticeSettings
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FrameworkImages:
    """The images of a framework's versions."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Version → image: the path of a SIF file, a bare name (``<name>.sif`` in an images directory), or a reference with
    a scheme (docker://, oras://)."""
    template: str = ""
    """Image of every other version, with ``{version}`` in it."""
    oci: Mapping[str, str] = field(default_factory=dict)
    """Version whose image is a file → the reference that clusters pull instead."""


def builtin_frameworks() -> dict[str, FrameworkImages]:
    """Return FfDL's table of images (its learner images of 2018), and ours that `make images` builds.

    Source: FfDL's container_helper_extensions.go and user guide; `custom` names the whole image itself.
    """
    return {
        "tensorflow": FrameworkImages(template="docker://tensorflow/tensorflow:{version}"),
        "caffe": FrameworkImages(template="docker://bvlc/caffe:{version}"),
        "caffe2": FrameworkImages(template="docker://caffe2ai/caffe2:{version}"),
        "pytorch": FrameworkImages({"debian": "pytorch"}, "docker://pytorch/pytorch:{version}"),
        "h2o3": FrameworkImages(template="docker://opsh2oai/h2o3-ffdl:{version}"),
        "horovod": FrameworkImages(template="docker://uber/horovod:{version}"),
        "pytorchmpi": FrameworkImages(template="docker://tomcli/pytorch:{version}"),
        "jax": FrameworkImages({"debian": "jax"}),
        "custom": FrameworkImages({"python-numpy": "custom"}),
    }


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """Which images the site's users may start learners in. References are compared part by part, without tags."""

    allow: tuple[str, ...] = ()
    """Directories of image files, and reference prefixes; () = all images."""
    require_digest: tuple[str, ...] = ()
    """Reference prefixes that must have a digest."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """HOST[/PATH] of a reference → HOST[/PATH] that nodes pull from."""
    signers: tuple[str, ...] = ()
    """Fingerprints of the keys that may sign image files; () = files need no signature."""


@dataclass(frozen=True, slots=True)
class ElasticPool:
    """A pool of GPUs that the daemon's scaler divides among elastic jobs, ``[elastic.pools.NAME]``."""

    gpus: int
    """Maximum number of GPUs of all jobs of the pool together."""
    backend: str = ""
    """Only jobs of this backend belong to the pool; "" = the default backend."""
    partition: str = ""
    """Only jobs of this partition belong to the pool; "" = any."""
    interval_s: float = 60.0
    """Time between two decisions, if no job arrives or ends."""
    min_between_s: float = 300.0
    """Minimum time for which an attempt keeps its size."""
    objective: str = "completion"
    """See :class:`ffdl_batch.elastic.policy.Objective`."""


@dataclass(frozen=True, slots=True)
class Retention:
    """When the daemon removes jobs by itself, ``[retention]``."""

    days: int = 0
    """A job is removed so many days after its end; 0 = never. Of several files, the smallest number above 0 wins."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged configuration. Empty text means "not set". Paths are absolute, times are seconds.

    An ``ffdl.toml`` in the working directory may set the values that are marked as harmless.
    """

    state_dir: str
    """Has the database, the lock and the daemon's log."""
    jobs_dir: str
    """Has the job directories; must be visible on the nodes."""
    backend: str = field(default="", metadata=HARMLESS)
    """"" = slurm if `sbatch` is on the PATH, else local."""
    database_url: str = ""
    images_dirs: tuple[str, ...] = ()
    """Searched in order for ``<name>.sif``."""
    check_images: bool = field(default=True, metadata=HARMLESS)
    frameworks: Mapping[str, FrameworkImages] = field(default_factory=builtin_frameworks)
    image_policy: ImagePolicy = field(default_factory=ImagePolicy)
    """Only the site file may set it."""
    default_memory: str = field(default="8GB", metadata=HARMLESS)
    default_cpus: float = field(default=5.0, metadata=HARMLESS)
    network_minimum: NetworkLevel = NetworkLevel.HOST
    watch_interval_s: float = 2.0
    doorbell_interval_s: float = 0.5
    lease_s: float = 30.0
    idle_exit_s: float = 60.0
    silent_s: float = 900.0
    """An attempt whose controllers do not report for so long is treated as lost; 0 = never."""
    log_file_size: str = "64MiB"
    log_files: int = 4
    """A learner's log has at most so many files of `log_file_size`."""
    log_rate: str = "1MiB"
    """How much a learner's log may grow in a second after its first file."""
    metrics_textfile: str = ""
    """File that the daemon's figures are written into."""
    metrics_port: int = 0
    """Port of the loopback device that serves the daemon's figures; 0 = none."""
    log_json: bool = False
    """Whether the daemon writes its log as JSON, one object per line."""
    host: str = ""
    """Login node that commands are sent to over SSH; "" = they run here."""
    host_program: str = "ffdl"
    """Name of ffdl on `host`."""
    hub_url: str = ""
    """Address of the site's hub, as https://HOST[:PORT]; "" = none."""
    egress: tuple[str, ...] | None = None
    """Networks that the daemon connects to for webhooks and stores of manifests, as
    :data:`ffdl_batch.host.egress.Networks`; None = all. Only the site file may set it."""
    trust_hub_sessions: bool = False
    """Whether the daemon accepts logins that only the site's hub has checked. Only the site file may set it."""
    cache_dir: str = ""
    """Each node's cache; "" = none."""
    cache_bytes: int = 0
    """Limit of the cache for all users together; 0 = half of its file system."""
    data_mount: Mounting = field(default=Mounting.AUTO, metadata=HARMLESS)
    """Whether nodes mount stores of types that FfDL mounts."""
    rates: Rates = field(default_factory=Rates, metadata=HARMLESS)
    """Prices for reports."""
    notices: NoticeSettings = field(default_factory=NoticeSettings)
    """Recipients of notices about incidents."""
    retention: Retention = field(default_factory=Retention)
    """When jobs that have ended are removed."""
    nodes: NodeRules = field(default_factory=NodeRules)
    """Whether jobs keep off nodes that fail often."""
    fault_policies: tuple[FaultPolicy, ...] = ()
    """The site's rules for lines in failed jobs' logs."""
    elastic: Mapping[str, ElasticPool] = field(default_factory=dict)
    """The pools of elastic jobs, by name."""
    backends: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The adapters' own tables."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Key → where its value is from."""

    @property
    def database(self) -> str:
        """The database's URL; an SQLite file in the state directory by default."""
        return self.database_url or f"sqlite:///{database_file(self.state_dir)}"

    def backend_settings(self, name: str) -> Mapping[str, object]:
        """Return ``[backend.<name>]``."""
        return self.backends.get(name, {})

    def backend_origins(self, name: str) -> tuple[str, ...]:
        """Return the files that ``[backend.<name>]`` came from, each once, sorted."""
        return tuple(sorted({self.origins[key] for key in self.origins if key.startswith(f"backend.{name}.")}))

    def effective_backend(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """Return the backend of jobs that name none, and why it is that one ("" = it was configured)."""
        if self.backend:
            return self.backend, ""
        places = environ.get("PATH", os.defpath).split(os.pathsep)
        found = any(os.access(Path(place, "sbatch"), os.X_OK) for place in places if place)
        return ("slurm", "sbatch is on the PATH") if found else ("local", "no sbatch on the PATH")

    def explain(self) -> tuple[tuple[str, str, str], ...]:
        """Return (key, value, origin) of every setting of the core, sorted by key; for `ffdl config`."""
        values: dict[str, object] = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("origins", "backends")
        }
        values["egress"] = "all" if self.egress is None else self.egress or "all but this host and its link"
        values["database"] = without_password(self.database)
        values["database_url"] = without_password(self.database_url)
        for adapter, table in self.backends.items():
            values.update({f"backend.{adapter}.{key}": value for key, value in table.items()})
        return tuple((key, shown(value), self.origins.get(key, "default")) for key, value in sorted(values.items()))


def database_file(state_dir: str) -> Path:
    """Return the SQLite database of a state directory, if the configuration names no other one."""
    return Path(state_dir, "ffdl.sqlite3")


def without_password(url: str) -> str:
    """Return a database's URL without its password, for messages."""
    return re.sub(r"(://[^/@]*?:)[^/@]*@|(\bpassword=)[^&]*", lambda found: _masked(*found.groups()), url)


def _masked(user: str | None, query: str | None) -> str:
    return f"{user}***@" if user else f"{query}***"


def shown(value: object) -> str:
    """Return a setting's value as text on one line, in the words of TOML. Of tables in a table or a list, return the
    names."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        names = [shown(getattr(one, "name", one) if _is_table(one) else one) for one in value]
        return json.dumps(names, ensure_ascii=False) if names else "none"
    if isinstance(value, Mapping):
        pairs = (name if _is_table(one) else f"{name} = {shown(one)}" for name, one in sorted(value.items()))
        return ", ".join(pairs) or "none"
    if is_dataclass(value) and not isinstance(value, type) and type(value).__str__ is object.__str__:
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return ", ".join(f"{name} = {shown(one)}" for name, one in parts.items() if one not in ("", ()))
    return str(value)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or is_dataclass(value)
