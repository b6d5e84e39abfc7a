"""The scheduler port's second half: what every backend must do. Runs over all adapters found by entry point.

With FFDL_CONTRACT_BACKENDS=slurm-cli,slurm-pyslurm the same file runs on a real cluster instead.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.backend_facts import Absent, BackendFacts, WaitingRequest
from ffdl_batch.domain.job.array import expand, new_array_id
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.job import Token, attempt_token
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    DataStore,
    Egress,
    Framework,
    NetworkLevel,
    Placement,
    Resources,
    Role,
    StoreType,
)
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.launch.launch_file import TEMPLATE, decode, succeed
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, merge, node_source
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.outcome.verdict import judge
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import adapter_names
from ffdl_batch.ports.capabilities import ForgetsJobs, SharesListing, SubmitsArrays
from ffdl_batch.runtimes.launch_request import AttemptNode, LaunchPlan
from tests.contract.scheduler_harness import Harness, open_harness, real_backends

BACKENDS: list[Any] = real_backends() or [*adapter_names()]
NASTY = {
    "BLANKS": "  two  blanks ",
    "QUOTES": 'it\'s "quoted" `touch canary-a`',
    "SUBSTITUTION": "$(touch canary-b) ${HOME} $HOME %j %% ; touch canary-c",
    "DASHES": "--wrap=touch canary-d",
    "UNICODE": "zażółć gęślą jaźń ✓",
    "BACKSLASH": "a\\nb\\\\c",
    "LINES": "first\nsecond\n",
    "EMPTY": "",
    "BRACES": "{python} {{x}}",
}

TWO = Resources(learners=2, cpus=1, memory_bytes=64 * 1024**2)
OBEDIENT = "trap 'exit 1' TERM; echo up; sleep 600 & wait"
"""Catches TERM: one that catches nothing is given most of KillWait for looking at the halt file."""

MPIRUN = """#!/bin/sh
echo "$@"
cat "$OMPI_MCA_orte_default_hostfile" "$HYDRA_HOST_FILE"
test -x "$OMPI_MCA_plm_rsh_agent" && echo there is an agent
"""


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One backend for all tests of this file."""
    with open_harness(backend, tmp_path_factory.mktemp("world")) as harness:
        yield harness


@pytest.fixture
def world(shared: Harness) -> Iterator[Harness]:
    """The same, with no job of another test in it."""
    yield shared
    shared.settle()


@pytest.fixture
def own_world(backend: str, tmp_path: Path) -> Iterator[Harness]:
    """One backend, for tests whose tree is elsewhere."""
    with open_harness(backend, tmp_path) as harness:
        yield harness


@dataclass(frozen=True)
class Done:
    """A job that succeeded; its environment had NASTY and a secret, the daemon's another one."""

    native: NativeId
    plan: LaunchPlan
    seen: Observation
    log: str

    @property
    def environ(self) -> dict[str, str]:
        """The learner's."""
        line = next(line for line in self.log.splitlines() if line.startswith("ENV{"))
        found: dict[str, str] = json.loads(line[3:])
        return found


@pytest.fixture(scope="module")
def done(shared: Harness) -> Done:
    report = 'import json, os; print("ENV" + json.dumps(dict(os.environ)))'
    command = f'echo "hello from $TRAINING_ID"; echo 42 > "$RESULT_DIR/answer"; python3 -c \'{report}\''
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FFDL_SECRET_OF_THE_DAEMON", "kept by the daemon")
        patch.setenv("SBATCH_PARTITION", "nonsense")
        patch.setenv("SLURM_JOB_ID", "1")
        native, plan = shared.submit(command, user_env={**NASTY, "TOKEN": "s3cret"})
        seen = shared.await_end(native)
    assert seen.end is EndCause.SUCCESS, (seen, shared.log(plan), shared.diagnosis())
    return Done(native, plan, seen, shared.log(plan))


def test_adapter_registry_contains_all_built_in_backends() -> None:
    assert set(adapter_names()) >= {"kubernetes", "local", "slurm"}


def test_scheduler_probe_reports_nodes_partitions_and_network_levels(world: Harness) -> None:
    facts = world.scheduler.probe()
    assert bool(facts.nodes) is world.knows_nodes and all(
        node.cpus >= 1 and node.memory_bytes > 0 for node in facts.nodes
    )
    assert any(partition.is_default for partition in facts.partitions)
    assert NetworkLevel.HOST in facts.network_levels
    assert facts.python and facts.controller and facts.version


def test_scheduler_traits_and_effective_settings_are_constant(world: Harness) -> None:
    assert world.scheduler.traits == world.scheduler.traits
    assert world.scheduler.traits.own_keys <= {"kubernetes", "profile"}
    assert world.scheduler.effective_settings() == world.scheduler.effective_settings() != {}


# ------------------------------------------------------------------------------------------------------ plan


def test_scheduler_plan_is_deterministic_and_writes_nothing(world: Harness) -> None:
    request = world.request("echo hello", user_env=NASTY)
    first, second = world.scheduler.plan(request), world.scheduler.plan(request)
    assert first == second
    assert not Path(request.job_dir.path).exists()


def test_scheduler_plan_contains_launch_and_environment_files(world: Harness) -> None:
    request = world.request("echo hello", user_env={"A": "b"})
    plan = world.scheduler.plan(request)
    files = {file.name: file for file in plan.files}
    assert decode(files["launch.json"].text) == plan.launch
    assert json.loads(files["environment.json"].text) == {"A": "b"}
    assert files["environment.json"].mode == 0o600
    assert (plan.backend, plan.token, plan.attempt_dir) == (world.scheduler.name, request.token, request.attempt_dir)
    assert plan.environment["A"] == "b"
    assert plan.environment["TRAINING_ID"] == request.job_id
    assert plan.submit_argv or plan.objects


def test_scheduler_plan_of_filled_template_equals_next_attempt(world: Harness) -> None:
    """Filling in the next attempt's names is all that is left to do; a second plan of that attempt says the same."""
    request = world.request("echo hello", user_env=NASTY, lead_s=45, carry="/earlier/results")
    assert world.scheduler.plan(request).launch.limits.lead_s in (45, None)
    number = request.attempt + 1
    template = replace(
        request, attempt=number, token=Token(f"{request.job_id}-{TEMPLATE}"), attempt_dir=request.job_dir.template
    )
    following = replace(
        request, attempt=number, token=attempt_token(request.job_id, number), attempt_dir=request.job_dir.attempt(2)
    )
    planned, expected = world.scheduler.plan(template), world.scheduler.plan(following)
    for file, wanted in zip(planned.files, expected.files, strict=True):
        assert (file.name, file.mode) == (wanted.name, wanted.mode)
        text = succeed(file.text, request.job_id, number)
        if file.name == "launch.json":
            found, launch = decode(text), decode(wanted.text)
            if not world.begins_next:
                assert found == launch and launch.succession is None
                continue
            assert found.succession is not None and launch.succession is not None
            assert launch.succession.template == request.job_dir.template.path
            assert replace(found, succession=launch.succession) == launch
            assert (found.attempt, found.carry) == (number, "/earlier/results")
        else:
            assert text == wanted.text


def test_scheduler_plan_protects_result_dir_from_user_environment(world: Harness) -> None:
    plan = world.scheduler.plan(world.request(user_env={"RESULT_DIR": "/elsewhere", "RANK": "7"}))
    assert plan.environment["RESULT_DIR"] != "/elsewhere"
    assert plan.environment["RANK"] == "7"


def test_scheduler_plan_rejects_unsupported_option_with_its_field(world: Harness) -> None:
    with pytest.raises(InvalidRequest) as error:
        world.scheduler.plan(world.request(batch=BatchOptions(roles={"worker": Role(3)})))
    assert error.value.findings and all(f.path for f in error.value.findings)
    assert "the roles have 3 together" in str(error.value)


def test_scheduler_plan_accepts_size_of_elastic_job_within_bounds_only(world: Harness) -> None:
    bounds = Elastic(1, 2, 32, 256, 64, 32)
    plan = world.scheduler.plan(world.request(batch=BatchOptions(elasticity=replace(bounds, global_batch=48))))
    assert (plan.environment["BATCH_SIZE"], plan.environment["LEARNING_RATE_SCALE"]) == ("48", "1.5")
    for wrong in (replace(bounds, min_learners=2), replace(bounds, global_batch=16)):
        with pytest.raises(InvalidRequest, match=r"is not in the range") as error:
            world.scheduler.plan(world.request(batch=BatchOptions(elasticity=wrong)))
        assert error.value.findings[0].path in {"learners", "batch.elastic.batch"}


def test_scheduler_plan_contains_secret_names_without_values(world: Harness) -> None:
    batch = BatchOptions(secrets={"TOKEN": "${secret:token}", "KEY": "${secret:env-KEY}"})
    plan = world.scheduler.plan(world.request(batch=batch))
    assert plan.launch.secrets == {"TOKEN": "token", "KEY": "env-KEY"}
    assert not {"TOKEN", "KEY"} & plan.environment.keys()


def test_scheduler_reports_array_limit_only_when_it_takes_arrays(world: Harness, backend: str) -> None:
    takes = backend.startswith("slurm")
    assert (isinstance(world.scheduler, SubmitsArrays), world.facts.max_array_size > 1) == (takes, takes)


def test_scheduler_plan_rejects_unexpanded_array_or_sweep(world: Harness) -> None:
    for batch in (BatchOptions(array="0-3"), BatchOptions(sweep=({"lr": "1"},))):
        with pytest.raises(InvalidRequest, match=r"batch\.array"):
            world.scheduler.plan(world.request(batch=batch))


@pytest.mark.parametrize("placement", [Placement.PACK, Placement.SPREAD])
def test_scheduler_plan_places_both_learners_by_placement(world: Harness, placement: Placement) -> None:
    launch = world.scheduler.plan(world.request(resources=TWO, batch=BatchOptions(placement=placement))).launch
    assert sorted(number for node in range(launch.nodes) for number in launch.learners_on(node)) == [1, 2]
    assert launch.nodes == 1 or placement is Placement.SPREAD or not world.shares_nodes
    assert launch.names == f"learner-{launch.job_id}"


def test_scheduler_plan_gives_roles_their_seats_and_commands(world: Harness) -> None:
    roles = {"ps": Role(1, command="echo ps", service=True), "worker": Role(2, memory_bytes=2 * 1024**2)}
    three = Resources(learners=3, cpus=1, memory_bytes=1024**2)
    batch = BatchOptions(placement=Placement.PACK, roles=roles)
    launch = world.scheduler.plan(world.request("echo all", resources=three, batch=batch)).launch
    assert [(seat.role, seat.index, seat.service) for seat in launch.seats] == [
        ("ps", 0, True), ("worker", 0, False), ("worker", 1, False),
    ]  # fmt: skip
    assert (launch.trainees, launch.command, launch.commands) == ((2, 3), "echo all", {"ps": "echo ps"})


@pytest.mark.parametrize(
    ("roles", "field"),
    [
        ({"worker": Role(1)}, "learners"),
        ({"ps": Role(2, service=True)}, "batch.roles"),
        ({"": Role(2)}, "batch.roles."),
    ],
)
def test_scheduler_plan_rejects_roles_that_do_not_match_learners(
    world: Harness, roles: dict[str, Role], field: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        world.scheduler.plan(world.request(resources=TWO, batch=BatchOptions(roles=roles)))
    assert [finding.path for finding in error.value.findings] == [field]


def test_scheduler_plan_requires_staging_program_for_s3_store(world: Harness) -> None:
    store = DataStore("s", StoreType.S3_DATASTORE, StoreType.S3_DATASTORE, "in", "out")
    request = world.request(data_stores=(store,))
    with pytest.raises(InvalidRequest, match=r"data_stores: the nodes do not see this installation"):
        world.scheduler.plan(replace(request, facts=replace(request.facts, staging=())))
    facts = replace(request.facts, staging=("/py", "-m", "staging"))
    launch = world.scheduler.plan(replace(request, facts=facts)).launch
    assert (launch.staging, launch.fetches[0].store.container) == (facts.staging, "in")
    assert {upload.store.container for upload in launch.uploads} == {"out"}


def test_scheduler_plan_rejects_data_container_outside_its_store(world: Harness) -> None:
    store = DataStore("s", StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, "../x", "out", {"path": "/data"})
    with pytest.raises(InvalidRequest, match="leads out"):
        world.scheduler.plan(world.request(data_stores=(store,)))


def test_scheduler_plan_checks_gpu_count_against_known_nodes(world: Harness) -> None:
    if world.knows_nodes and not any(node.gpus for node in world.facts.nodes):
        plan = world.scheduler.plan(world.request(resources=Resources(gpus=1)))
        assert any("runs on the CPU" in warning for warning in plan.warnings)
        return
    with pytest.raises(InvalidRequest, match=r"1\.5 GPUs.* share"):
        world.scheduler.plan(world.request(resources=Resources(gpus=1.5)))
    if not world.knows_nodes:
        return
    with pytest.raises(InvalidRequest, match="gpus"):
        world.scheduler.plan(world.request(resources=Resources(cpus=1, gpus=4096, memory_bytes=1024**2)))


def test_scheduler_plan_keeps_or_rejects_requested_network_none(world: Harness) -> None:
    asked = BatchOptions(network=NetworkLevel.NONE)
    if NetworkLevel.NONE in world.facts.network_levels:
        assert world.scheduler.plan(world.request(batch=asked)).network.level == "none"
    else:
        with pytest.raises(InvalidRequest, match="network"):
            world.scheduler.plan(world.request(batch=asked))


def without_networks(facts: BackendFacts) -> BackendFacts:
    """Where no node can make networks for jobs."""
    return replace(facts, nodes=tuple(replace(node, features=()) for node in facts.nodes))


@pytest.mark.parametrize("level", [NetworkLevel.JOB, NetworkLevel.EGRESS])
def test_scheduler_plan_rejects_network_level_that_cannot_be_proved(world: Harness, level: NetworkLevel) -> None:
    egress = (Egress("example.org", 443),) if level is NetworkLevel.EGRESS else ()
    batch, facts = BatchOptions(network=level, egress=egress), without_networks(world.facts)
    with pytest.raises(InvalidRequest, match=f"network level {level} cannot be proved") as error:
        world.scheduler.plan(world.request(batch=batch, facts=facts))
    assert error.value.findings[0].path == "batch.network" and error.value.findings[0].cure


def test_scheduler_plan_uses_host_network_for_several_learners_by_default(world: Harness) -> None:
    plan = world.scheduler.plan(world.request(resources=TWO, facts=without_networks(world.facts)))
    assert (plan.network.requested, plan.network.level) == ("auto", "host")
    assert plan.launch.learners == 2


def test_scheduler_plan_rejects_learners_that_violate_site_network_minimum(world: Harness) -> None:
    with pytest.raises(InvalidRequest, match="the site asks for network level none"):
        world.scheduler.plan(world.request(resources=TWO, minimum_network=NetworkLevel.NONE))


# ---------------------------------------------------------------------------------------------------- running


def test_learners_get_role_environment_and_service_ends_with_last_worker(world: Harness) -> None:
    """Parameter server first, so that a placeholder that nobody fills, or a service that nobody ends, is seen. It is
    ended with the last worker, which waits for it."""
    told = 'printf \'%s\\n\' "$FFDL_ROLE $FFDL_ROLE_INDEX $RANK $WORLD_SIZE $PET_NODE_RANK $MASTER_PORT" "$TF_CONFIG"'
    waits = f'{told}; until [ -e "$JOB_STATE_DIR/told" ]; do sleep 0.1; done'
    roles = {"ps": Role(1, command=f'{told}; : >"$JOB_STATE_DIR/told"; sleep 600', service=True), "worker": Role(2)}
    three = Resources(learners=3, cpus=1, memory_bytes=64 * 1024**2)
    native, plan = world.submit(waits, resources=three, batch=BatchOptions(placement=Placement.PACK, roles=roles))
    seen = world.await_end(native)
    logs = [Path(plan.attempt_dir.training_log(number)).read_text() for number in (1, 2, 3)]
    assert seen.end is EndCause.SUCCESS, (seen, logs, world.diagnosis())
    port = plan.launch.ports
    texts = [log.splitlines() for log in logs]
    assert [lines[0] for lines in texts] == [
        f"ps 0 0 3 0 {port}", f"worker 0 1 3 1 {port}", f"worker 1 2 3 2 {port}",
    ]  # fmt: skip
    configs = [json.loads(lines[1]) for lines in texts]
    assert [config["task"] for config in configs] == [
        {"type": "ps", "index": 0}, {"type": "worker", "index": 0}, {"type": "worker", "index": 1},
    ]  # fmt: skip
    assert configs[0]["cluster"] == configs[2]["cluster"]
    assert {role: len(hosts) for role, hosts in configs[0]["cluster"].items()} == {"ps": 1, "worker": 2}


def test_job_is_processing_until_last_learner_has_ended(world: Harness) -> None:
    options = BatchOptions(placement=Placement.SPREAD)
    command = f'[ "$LEARNER_ID" = 1 ] || {{ {OBEDIENT}; }}'
    native, plan = world.submit(command, resources=TWO, batch=options)
    last_of_first = EventKind.LEARNER_ENDED if plan.launch.nodes == 1 else EventKind.STORED

    def events() -> list[Event]:
        return merge(read_events(plan.attempt_dir, node_source(rank)) for rank in range(plan.launch.nodes))

    def state() -> JobState:
        facts = AttemptFacts(JobState.QUEUED, RequestedAction.NONE, time.time(), events=events(), learners=2)
        return judge(facts).steps[-1][0]

    reached = {(last_of_first, 1), (EventKind.LEARNER_STARTED, 2)}  # the second may start after the first has ended
    world.wait(lambda: reached <= {(one.kind, one.fields.get("learner_id")) for one in events()}, world.diagnosis)
    assert state() is JobState.PROCESSING, events()
    world.scheduler.cancel(native)
    if not real_backends():  # on a busy machine, a real scheduler's KILL may come before the learner's end is recorded
        world.wait(lambda: state() is JobState.STORING, lambda: f"{events()}; {world.diagnosis()}")


def test_mpi_framework_runs_mpirun_in_first_learner(world: Harness) -> None:
    """Any program called mpirun: what counts is who calls it, how, and with which host file and agent."""
    request = world.request(
        resources=Resources(learners=2, cpus=1, memory_bytes=64 * 1024**2),
        batch=BatchOptions(placement=Placement.PACK),
        user_env={"PATH": ".:/usr/local/bin:/usr/bin:/bin"},
    )
    framework = Framework("horovod", "test", "python3 x.py --epochs 3")
    plan = world.write(world.scheduler.plan(replace(request, spec=replace(request.spec, framework=framework))))
    with zipfile.ZipFile(world.archive(plan), "w") as archive:
        archive.writestr("mpirun", MPIRUN)
    seen = world.await_end(world.scheduler.submit(plan))
    assert seen.end is EndCause.SUCCESS, (seen, world.log(plan), world.diagnosis())
    called, *hosts, agent = world.log(plan).splitlines()
    assert (called, agent) == ("-np 2 python3 x.py --epochs 3", "there is an agent")
    assert hosts == [f"{plan.launch.names}-{number}{sign}1" for sign in (" slots=", ":") for number in (0, 1)]


def test_scheduler_runs_job_to_success_with_log_result_and_claim(world: Harness, done: Done) -> None:
    assert NativeId.parse(str(done.native)) == done.native
    assert (done.seen.exit_code, done.seen.exit_signal) == (0, None)
    assert done.seen.submitted_at and done.seen.started_at and done.seen.ended_at
    assert f"hello from {done.plan.launch.job_id}" in done.log
    assert (world.seen_by_job(done.plan.attempt_dir.results) / "answer").read_text() == "42\n"
    assert json.loads(Path(done.plan.attempt_dir.claim_owner).read_text())["native_id"] == str(done.native)


def test_scheduler_runs_single_array_element_with_its_index(world: Harness) -> None:
    """Also the next attempts of an element, and all of them where a backend takes no arrays."""
    command = 'echo "$FFDL_ARRAY_INDEX of $SLURM_ARRAY_TASK_COUNT, $SLURM_ARRAY_TASK_ID: $lr"'
    request = world.request(command, batch=BatchOptions(array="3,7", env={"FFDL_ARRAY_INDEX": "mine", "lr": "0.1"}))
    array = new_array_id()
    spec = expand(request.spec, array)[1]
    request = replace(request, spec=spec, user_env=spec.batch.env, array_dir=world.root.array(array))
    plan = world.write(world.scheduler.plan(request))
    native = world.scheduler.submit(plan)
    assert world.await_end(native).end is EndCause.SUCCESS, world.diagnosis()
    assert "7 of 2, 7: 0.1" in world.log(plan)
    assert json.loads(Path(plan.attempt_dir.claim_owner).read_text())["native_id"] == str(native)


def test_scheduler_reports_running_job_until_cancel_which_may_be_repeated(world: Harness) -> None:
    native, plan = world.submit(OBEDIENT)
    world.await_log(plan, "up")
    seen = world.await_observation(native, lambda o: o.phase is Phase.RUNNING)
    assert seen.end is None and seen.ended_at is None and seen.exit_code is None
    program = world.scheduler.beside(AttemptNode(native, plan.attempt_dir, "", 0), ["echo", "hello"])
    assert program.argv[-2:] == ("echo", "hello")
    assert world.scheduler.find(plan.token, plan.attempt_dir) == {native}
    if isinstance(world.scheduler, SharesListing):
        (row,) = [row for row in world.scheduler.list_all_users()[os.getuid()] if re.match(rf"{native}\b", row)]
        assert "RUNNING" in row and world.scheduler.explain_blindness() == ""
    world.scheduler.cancel(native)
    world.scheduler.cancel(native)
    assert world.await_end(native).end is EndCause.CANCELLED
    world.scheduler.cancel(native)
    world.scheduler.signal(native, "URG")
    assert world.scheduler.find(plan.token, plan.attempt_dir) == {native}
    other = world.request()
    assert world.scheduler.find(other.token, other.attempt_dir) == frozenset()


def test_scheduler_withdraw_keeps_running_job_and_signal_urg_requests_its_checkpoint(world: Harness) -> None:
    native, plan = world.submit("trap 'echo checkpointed; exit 0' USR2; echo ready; while :; do sleep 0.1; done")
    world.await_log(plan, "ready")
    world.scheduler.withdraw(native)
    world.scheduler.withdraw(NativeId("999999999"))
    world.scheduler.signal(native, "URG")
    world.scheduler.signal(native, "URG")
    world.await_log(plan, "checkpointed")
    assert world.await_end(native).end is EndCause.SUCCESS


def test_scheduler_signal_kill_ends_only_node_controllers(world: Harness) -> None:
    """What submitted the job, and its head, live on and say how it ended."""
    native, plan = world.submit("echo up; sleep 600")
    world.await_log(plan, "up")
    world.scheduler.signal(native, "KILL")
    seen = world.await_end(native)
    assert seen.end is EndCause.FAILURE
    final = json.loads(Path(plan.attempt_dir.final).read_text())
    assert (final["outcome"], final["error_code"]) == ("failed", "S106")


def test_scheduler_signal_term_cancels_running_job(world: Harness) -> None:
    native, plan = world.submit(OBEDIENT)
    world.await_log(plan, "up")
    world.scheduler.signal(native, "TERM")
    world.await_end(native)
    assert json.loads(Path(plan.attempt_dir.final).read_text())["outcome"] == "cancelled"


def test_scheduler_signals_do_not_change_pending_job(world: Harness) -> None:
    native, plan = world.submit_waiting("echo ran")
    for signal in ("URG", "TERM", "KILL"):
        world.scheduler.signal(native, signal)
    world.let_run()
    assert world.await_end(native).end is EndCause.SUCCESS
    assert world.executions(plan.attempt_dir) == 1


def test_scheduler_withdraw_cancels_pending_job(world: Harness) -> None:
    native, plan = world.submit_waiting("echo ran")
    world.scheduler.withdraw(native)
    world.scheduler.withdraw(native)
    seen = world.await_end(native)
    assert seen.end is EndCause.CANCELLED and not seen.exit_code
    assert world.executions(plan.attempt_dir) == 0
    world.scheduler.withdraw(native)


def test_scheduler_explains_only_jobs_in_queue(world: Harness) -> None:
    native, _ = world.submit_waiting("true")
    waiting = WaitingRequest(world.request().spec, world.facts, native)
    unknown = replace(waiting, native_id=NativeId("999999999"))
    found, missing = world.scheduler.explain_waiting([waiting, unknown])
    assert found is not None and missing is None
    world.scheduler.withdraw(native)
    world.await_end(native)


def test_scheduler_ignores_unknown_ids(world: Harness) -> None:
    unknown = [NativeId("999999999"), NativeId("training-zzzzzzzzz-1")]
    assert world.scheduler.observe(unknown[:1]) == {}
    world.scheduler.cancel(unknown[0])
    world.scheduler.signal(unknown[0], "URG")
    assert world.scheduler.observe([]) == {}


def test_scheduler_observes_many_jobs_at_once_and_forgets_none(world: Harness) -> None:
    jobs, unknown = [world.submit(f"exit {code}")[0] for code in (0, 9, 0)], NativeId("999999999")
    for native in jobs:
        world.await_end(native)
    seen = world.scheduler.observe([*jobs, unknown])
    assert [(seen[native].end, seen[native].exit_code) for native in jobs] == [
        (EndCause.SUCCESS, 0), (EndCause.FAILURE, 9), (EndCause.SUCCESS, 0),
    ]  # fmt: skip
    assert set(seen) == set(jobs)
    assert isinstance(world.scheduler, ForgetsJobs) == world.forgets
    if isinstance(world.scheduler, ForgetsJobs):
        assert world.scheduler.find_absent(jobs) == Absent()
        assert world.scheduler.find_absent([*jobs, unknown]) == Absent(frozenset({unknown}))


def test_attempt_executes_once_when_submitted_twice(world: Harness) -> None:
    plan = world.prepare("echo ran; sleep 0.3")
    jobs = {world.scheduler.submit(plan) for _ in range(2)}
    for native in jobs:
        world.await_end(native)
    assert world.scheduler.find(plan.token, plan.attempt_dir) == jobs
    assert world.executions(plan.attempt_dir) == 1
    assert world.log(plan).count("ran") == 1


# ----------------------------------------------------------------------------------------------- nasty strings


def test_learner_receives_special_characters_in_environment_unchanged(world: Harness, done: Done) -> None:
    assert {name: done.environ.get(name) for name in NASTY} == NASTY
    assert not list(world.base.rglob("canary*"))


def test_learner_inherits_neither_daemon_environment_nor_slurm_variables(done: Done) -> None:
    assert "s3cret" in done.log and "kept by the daemon" not in done.log
    assert "SLURM_JOB_ID" not in done.environ and ".slurm-" not in done.environ["PATH"]


def test_environment_file_is_private_and_values_stay_out_of_plan(done: Done) -> None:
    plan = done.plan
    assert Path(plan.attempt_dir.environment).stat().st_mode & 0o777 == 0o600
    assert Path(plan.attempt_dir.path).stat().st_mode & 0o077 == 0
    for text in (plan.script, *plan.submit_argv, json.dumps(list(plan.launch.learner.argv))):
        assert "s3cret" not in text


def test_scheduler_runs_job_in_tree_with_shell_metacharacters(own_world: Harness) -> None:
    """The attempt's path goes into scripts, argv and #SBATCH lines."""
    name = "a b;touch canary-e $(touch canary-f) `x` 'q' \"p\" %j #hetjob {x} -n ✓"
    plan = own_world.write(
        own_world.scheduler.plan(own_world.request("echo fine", root=str(own_world.base / "tree" / name)))
    )
    own_world.scheduler.submit(plan)
    own_world.wait(Path(plan.attempt_dir.final).exists, own_world.diagnosis)
    assert json.loads(Path(plan.attempt_dir.final).read_text())["outcome"] == "completed"
    assert "fine" in own_world.log(plan)
    assert not list(own_world.base.rglob("canary*"))
    assert not [p for p in Path.cwd().iterdir() if p.name.startswith("canary")]


def test_scheduler_plan_never_contains_path_with_newline(own_world: Harness) -> None:
    request = own_world.request(root=str(own_world.base / "two\nlines"))
    if not own_world.sees_tree:
        assert "lines" not in own_world.scheduler.plan(request).launch.job_dir
        return
    with pytest.raises(InvalidRequest):
        own_world.scheduler.plan(request)


# -------------------------------------------------------------------------------------------------- the store


def test_mounted_data_is_read_and_results_are_stored_in_volume(world: Harness) -> None:
    store_dir = world.base / "store"
    (store_dir / "digits").mkdir(parents=True)
    (store_dir / "digits" / "x.txt").write_text("17\n")
    (store_dir / "out").mkdir()
    store = DataStore("s", StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, "digits", "out", {"path": str(store_dir)})
    native, plan = world.submit('cat "$DATA_DIR/x.txt" > "$RESULT_DIR/y.txt"', data_stores=(store,))
    assert world.await_end(native).end is EndCause.SUCCESS, world.log(plan)
    kept = store_dir / "out" / plan.launch.job_id
    assert (kept / "y.txt").read_text() == "17\n"
    assert (kept / "learner-1" / "training-log.txt").exists()


def test_copied_data_changes_leave_source_unchanged(world: Harness) -> None:
    source = world.base / "plain"
    (source / "in").mkdir(parents=True)
    (source / "in" / "x.txt").write_text("18\n")
    store = DataStore("s", StoreType.DIRECTORY, StoreType.DIRECTORY, "in", "", {"path": "plain", "mode": "copy"})
    native, plan = world.submit('cat "$DATA_DIR/x.txt"; echo changed > "$DATA_DIR/x.txt"', data_stores=(store,))
    assert world.await_end(native).end is EndCause.SUCCESS, world.log(plan)
    assert re.search(r"^18$", world.log(plan), re.MULTILINE)
    assert (source / "in" / "x.txt").read_text() == "18\n"
    assert isinstance(plan.attempt_dir, AttemptDir)


def test_scheduler_find_returns_nothing_or_raises_for_unreadable_attempt(world: Harness) -> None:
    """`find` answers from what it could read in full, or says that it could not."""
    plan = world.prepare("true")
    Path(plan.attempt_dir.claim).mkdir()
    Path(plan.attempt_dir.claim_owner).mkdir()
    try:
        found = world.scheduler.find(plan.token, plan.attempt_dir)
    except SchedulerUnreachable:
        return
    assert found == frozenset()
