"""What a submitter's shell decides about a job: the time zone in which its times are read, and the cluster.

The daemon has another environment than that shell. Writes nothing.
"""

from __future__ import annotations

from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.job.submission import Submission
from ffdl_batch.domain.sbatch.script_options import with_absolute_times
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.time_zone import read_utc_offsets
from ffdl_batch.ports.capabilities import ChoosesCluster
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.refusals import bad_request, unavailable

_MOST_OFFSETS = 1000
_FURTHEST_S = 86_400


def check_cluster(adapters: Adapters, backend: str, submission: Submission) -> None:
    """Refuse a submission from a shell whose sbatch would choose another cluster. Raises Refused."""
    try:
        adapter = adapters.get(backend)
    except InvalidRequest:
        return  # reported when the backend is asked for a plan
    if submission.cluster is not None and isinstance(adapter, ChoosesCluster):
        why, cure = adapter.compare_cluster(submission.cluster)
        if why:
            raise unavailable(why, cure=cure)


def read_times(batch: BatchOptions, submission: Submission, now: float) -> tuple[BatchOptions, tuple[Finding, ...]]:
    """See :func:`with_absolute_times`. Raises Refused for offsets that no client of ours sends."""
    offsets = submission.utc_offsets
    if len(offsets) > _MOST_OFFSETS or any(len(one) != 2 or abs(one[1]) >= _FURTHEST_S for one in offsets):
        raise bad_request("C101", "utc_offsets is not a list of pairs: seconds since the epoch, seconds from UTC")
    return with_absolute_times(batch, now, offsets or read_utc_offsets(now))
