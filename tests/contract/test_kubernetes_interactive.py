"""Interactive jobs and forwarded ports of learners in pods: real daemon, the tests' cluster, the command line.

What holds of the local backend holds here, by the same tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.test_daemon_logs import Desk
from tests.contract.test_interactive import (  # noqa: F401 - they run with this module's fixtures
    test_run_leaves_nothing_when_client_or_terminal_goes_away,
    test_run_reports_end_of_job_by_another_command,
)
from tests.contract.test_kubernetes_debugging import k8s, served  # noqa: F401
from tests.contract.test_port_forward import (  # noqa: F401
    SERVE,
    lone,
    port,
    test_port_forward_carries_several_connections_while_one_is_not_read,
    test_port_forward_ends_with_learner,
)
from tests.fakes.kubernetes.rig import FakeCluster


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, k8s: FakeCluster) -> Iterator[Desk]:  # noqa: F811
    with served(tmp_path_factory.mktemp("interactive"), k8s, SERVE) as made:
        yield made


def test_run_passes_streams_and_exit_status_and_ends_its_job(desk: Desk) -> None:
    words = ("run", "--quiet", "--cpus=1", f"--model={desk.base / 'model'}", "--", "bash", "-c")
    done = desk.try_to(*words, "ls; cat; echo $TRAINING_ID >&2; exit 7", input="from here\n")
    assert (done.returncode, done.stdout) == (7, "hang.py\nfrom here\n"), done.stderr
    desk.await_state(done.stderr.strip(), "FAILED")
