"""Commands inside running learners in pods: real daemon, the tests' cluster, the command line.

What holds of the local backend holds here, by the same tests.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffdl_kubernetes.tenancy.tenant_objects import role
from tests import preloaded
from tests.command_lines import command_lines
from tests.contract import test_debugging as local
from tests.contract.daemon_rig import PLAIN, site_in, until
from tests.contract.kubernetes_harness import CONTROLLER_IMAGE, IMAGE, images
from tests.contract.test_daemon_logs import Desk, end_jobs
from tests.contract.test_debugging import (  # noqa: F401 - they run with this module's fixtures
    HANG,
    lone,
    pair,
    start,
    test_exec_ends_when_learner_ends,
    test_exec_enters_selected_learner_and_rejects_unknown_one,
    test_exec_forwards_interrupt_to_command,
    test_exec_passes_large_stdin_and_stdout_unchanged,
    test_shell_provides_resizable_terminal_with_interrupt_key,
)
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node
from tests.preloaded import FFDL


def only_in_full(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of the local backend, for this module alone."""

    @functools.wraps(test)
    def here(**fixtures: object) -> None:
        test(**fixtures)

    marked: Callable[..., None] = pytest.mark.full(here)
    return marked


test_exec_ends_when_command_does_not_read_stdin = only_in_full(local.test_exec_ends_when_command_does_not_read_stdin)
test_exec_leaves_no_process_after_exit_client_kill_or_second_interrupt = only_in_full(
    local.test_exec_leaves_no_process_after_exit_client_kill_or_second_interrupt
)
test_exec_leaves_no_process_when_helper_is_killed = only_in_full(
    local.test_exec_leaves_no_process_when_helper_is_killed
)
test_shell_ends_when_terminal_is_closed = only_in_full(local.test_shell_ends_when_terminal_is_closed)

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


class PatientDesk(Desk):
    """Asks the daemon itself how its jobs are, which costs less than a command each time."""

    def await_state(self, job_id: str, state: str) -> None:
        """Wait until the job is in this state."""

        def is_so() -> bool:
            return self.site.state_of(job_id) == state

        until(is_so, lambda: f"{job_id} to be {state}; its log:\n{self.site.log}")


@contextmanager
def served(base: Path, k8s: FakeCluster, program: str) -> Iterator[Desk]:
    """A daemon for the cluster, and a model with hang.py."""
    (base / "model").mkdir()
    (base / "model" / "hang.py").write_text(program)
    config = base / "ffdl.toml"
    config.write_text(
        CONFIG.format(image=IMAGE, kubeconfig=k8s.kubeconfig, controller=CONTROLLER_IMAGE, python=sys.executable)
    )
    environment = {"FFDL_BACKEND": "kubernetes", "FFDL_CONFIG": str(config)}
    with site_in(base, more_environment=environment) as site:
        made = PatientDesk(site, base)
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        try:
            yield made
        finally:
            end_jobs(made)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, k8s: FakeCluster) -> Iterator[Desk]:
    with served(tmp_path_factory.mktemp("debugging"), k8s, HANG) as made:
        yield made


def test_exec_runs_command_in_learner_container_with_its_environment(desk: Desk, lone: str) -> None:  # noqa: F811
    asked = 'readlink /proc/$$/ns/mnt; pwd; echo "$COLOUR, $LEARNER_ID, $TRAINING_ID"; cat; echo wrong >&2; exit 7'
    done = preloaded.run(
        [*FFDL, "exec", lone, "--", "bash", "-c", asked], env=desk.site.environment(), input="from here\n",
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "wrong\n"), desk.site.log
    place, *rest = done.stdout.splitlines()
    assert rest == ["/job/model-code", f"dark blue, 1, {lone}", "from here"]

    def is_of(process: Path) -> bool:
        try:
            return lone.encode() in (process / "environ").read_bytes()
        except OSError:  # somebody else's, which has just ended
            return False

    (learner,) = [process for process, line in command_lines() if line.endswith(b"hang.py\0") and is_of(process)]
    assert place == str(Path(f"{learner}/ns/mnt").readlink()) != str(Path("/proc/self/ns/mnt").readlink())


def as_user(desk: Desk, k8s: FakeCluster, job_id: str, user: str, asked: str, *, debugging: bool) -> tuple[int, str]:
    """Exit code and words of what a user asks of a helper `h` (Python text) who may do what a daemon may, and with
    `debugging` what a tenant gets for that."""
    k8s.grant(user, role({}, debugging=debugging)["rules"])
    (plan,) = desk.site.ask("GET", f"/api/v1/jobs/{job_id}/attach?learner=1")[1]["plans"]
    argv = [str(k8s.kubeconfig_of(user)) if word == str(k8s.kubeconfig) else word for word in plan["argv"]]
    code = "import sys; from ffdl_batch.client import *; from ffdl_batch.client.attach import *\n"
    code += "with Helper(AttachPlan(tuple(sys.argv[1:]), (1,))) as h:\n"
    code += f"    try:\n        {asked}\n    except ClientError as error: sys.exit(str(error))\n"
    done = preloaded.run(
        [sys.executable, "-c", code, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_attach_reports_missing_exec_permission(desk: Desk, k8s: FakeCluster, lone: str) -> None:  # noqa: F811
    code, said = as_user(desk, k8s, lone, "bert", "sys.exit(run(h, AttachRequest(('true',))))", debugging=False)
    assert code == 1
    assert 'User "bert" cannot get resource "pods/exec"' in said
    assert f"ffdl-admin tenant create {k8s.namespace} --debugging --update" in said


def test_attach_runs_command_for_user_with_debugging_role(desk: Desk, k8s: FakeCluster, lone: str) -> None:  # noqa: F811
    found = as_user(
        desk,
        k8s,
        lone,
        "cleo",
        "sys.exit(run(h, AttachRequest(('bash', '-c', 'echo $LEARNER_ID; exit 4'))))",
        debugging=True,
    )
    assert found == (4, "1\n")


@pytest.mark.parametrize("late_s", [0, 12], ids=["", "its log is opened late"])
def test_stack_prints_hanging_function_without_exec_permission(
    desk: Desk, k8s: FakeCluster, lone: str, late_s: int  # noqa: F811
) -> None:  # fmt: skip
    if late_s:
        k8s.fault("slow", method="GET", path="/log", seconds=late_s)
    code, said = as_user(
        desk, k8s, lone, f"dora-{late_s}", "sys.exit(run(h, AttachRequest(do='stack')))", debugging=False
    )
    assert (code, "stuck_in_the_barrier (hang.py:6)" in said) == (0, True), said


def test_top_lists_processes_without_exec_permission(desk: Desk, k8s: FakeCluster, lone: str) -> None:  # noqa: F811
    looks = "h.begin(AttachRequest(do='top')); tables = [(h.send('L'), next(h.take()))[1] for _ in 'ab']; "
    looks += "print(tables); sys.exit(0)"
    code, said = as_user(desk, k8s, lone, "emil", looks, debugging=False)
    assert (code, said.count('"command": "python3 hang.py"')) == (0, 2), said
