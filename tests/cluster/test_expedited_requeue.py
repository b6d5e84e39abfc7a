"""``--requeue=expedite``, with which Slurm starts every job again whose script fails: on real Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster

pytestmark = pytest.mark.full
CONF = "/etc/slurm/slurm.conf"


@pytest.fixture
def allowed(cluster: Cluster) -> Iterator[None]:
    """A site that allows expedited requeues."""
    cluster.run("ctl", ["cp", CONF, f"{CONF}.before"])
    cluster.run("ctl", ["sh", "-c", f"echo SlurmctldParameters=enable_expedited_requeue >> {CONF}"])
    cluster.scontrol("reconfigure")
    yield
    cluster.run("ctl", ["mv", f"{CONF}.before", CONF])
    cluster.scontrol("reconfigure")


def test_expedited_requeue_is_refused_where_the_site_does_not_allow_it(alice: Person) -> None:
    done = alice.finish(alice.start("not-allowed", "true", "--requeue=expedite"))
    assert done["state"] == "FAILED" and "operation not supported" in done["message"].lower(), done


def test_job_with_expedited_requeue_that_fails_is_not_started_again(alice: Person, allowed: None) -> None:
    done = alice.finish(alice.start("fails", "exit 3", "--requeue=expedite"), 120)
    assert (done["state"], len(done["attempts"]), done["attempts"][0]["restarts"]) == ("FAILED", 1, []), done
    fields = alice.batch_fields(done["attempts"][0]["native_id"])
    assert (fields["ExpeditedRequeue"], fields["Restarts"], fields["ExitCode"]) == ("Yes", "0", "0:0")
