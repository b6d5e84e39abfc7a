"""Where jobs could run on a cluster, by what the configuration says of it (entry point ``kubernetes`` of
``ffdl_batch.histories``). Asks no cluster: how large nodes are is known to it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffdl_batch.domain.job.past_job import LICENCES, QUEUES, SHARES, Period, Place
from ffdl_kubernetes.settings import KubernetesSettings, read_settings

_LACKS = frozenset({SHARES, LICENCES, QUEUES})
_PLAIN = "kubernetes"


class KubernetesHistory:
    """Reads the settings."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings

    def past_jobs(self, _period: Period) -> None:
        """Return None: a cluster keeps no accounting."""

    def places(self) -> Sequence[Place]:
        """Return the cluster and each of its profiles. They have the types of GPUs in the configuration; without any,
        every type is possible."""
        settings = self._settings
        types = frozenset({*settings.gpu_types, *settings.gpu_resources}) or None
        names = [_PLAIN, *(f"{_PLAIN}/{name}" for name in sorted(settings.profiles))]
        return [Place(name, "kubernetes", None, types, None, _LACKS) for name in names]


def create(settings: Mapping[str, object]) -> KubernetesHistory:
    """Create the reader for the entry point. Raises InvalidRequest for unusable settings."""
    return KubernetesHistory(read_settings(settings))
