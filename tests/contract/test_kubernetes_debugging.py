"""Commands inside running learners in pods: real daemon, the tests' cluster, the command line.

What holds of the local backend holds here, by the same tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.daemon_rig import PLAIN, site_in, until
from tests.contract.kubernetes_harness import CONTROLLER_IMAGE, IMAGE, images
from tests.contract.test_daemon_logs import FFDL, Desk, end_jobs
from tests.contract.test_debugging import (  # noqa: F401 - they run with this module's fixtures
    HANG,
    lone,
    pair,
    start,
    test_a_command_that_does_not_read_ends_all_the_same,
    test_a_killed_helper_leaves_nothing,
    test_a_shell_has_a_terminal,
    test_a_stack_names_the_function_that_hangs,
    test_a_table_has_every_learner,
    test_a_terminal_that_goes_away_takes_the_shell_with_it,
    test_an_interrupt_goes_to_the_command,
    test_each_learner_is_entered,
    test_large_streams_arrive_whole,
    test_nothing_is_left_after,
    test_tables_follow_each_other,
    test_the_end_of_the_learner_ends_the_command,
)
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node

CONFIG = """\
[frameworks.custom]
versions = {{ python-numpy = "docker://{image}" }}
[backend]
default = "kubernetes"
[backend.kubernetes]
kubeconfig = "{kubeconfig}"
controller_image = "{controller}"
python = "{python}"
run_as_user = 1000
network_policies = "enforced"
"""


@pytest.fixture(scope="module")
def k8s(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), nodes=[node("n1", cpu="8")], kubelet=images()) as made:
        yield made


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, k8s: FakeCluster) -> Iterator[Desk]:
    base = tmp_path_factory.mktemp("debugging")
    (base / "model").mkdir()
    (base / "model" / "hang.py").write_text(HANG)
    config = base / "ffdl.toml"
    config.write_text(
        CONFIG.format(image=IMAGE, kubeconfig=k8s.kubeconfig, controller=CONTROLLER_IMAGE, python=sys.executable)
    )
    environment = {"FFDL_BACKEND": "kubernetes", "FFDL_CONFIG": str(config)}
    with site_in(base, more_environment=environment) as site:
        made = Desk(site, base)
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        try:
            yield made
        finally:
            end_jobs(made)


def test_a_command_runs_where_the_learner_is(desk: Desk, lone: str) -> None:  # noqa: F811
    asked = 'readlink /proc/$$/ns/mnt; pwd; echo "$COLOUR, $LEARNER_ID, $TRAINING_ID"; cat; echo wrong >&2; exit 7'
    done = subprocess.run(
        [*FFDL, "exec", lone, "--", "bash", "-c", asked], env=desk.site.environment(), input="from here\n",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "wrong\n"), desk.site.log
    place, *rest = done.stdout.splitlines()
    assert rest == ["/job/model-code", f"dark blue, 1, {lone}", "from here"]
    (learner,) = [
        path.parent
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().endswith(b"hang.py\0") and lone.encode() in (path.parent / "environ").read_bytes()
    ]
    assert place == str(Path(f"{learner}/ns/mnt").readlink()) != str(Path("/proc/self/ns/mnt").readlink())
