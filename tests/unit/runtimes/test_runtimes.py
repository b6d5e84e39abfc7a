"""The argv and the environment of learners."""

from __future__ import annotations

import csv
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.job.learner_layout import Load, Member, lay_on_one
from ffdl_batch.domain.job.spec import BatchOptions, DataStore, Framework, JobSpec, NetworkLevel, Resources, StoreType
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.runtimes.apptainer import Container, GpuLibraries, NetworkMode, apptainer_argv, mount_text
from ffdl_batch.runtimes.learner_contract import (
    SHELL,
    WRAPPER,
    Bind,
    Learners,
    Places,
    bare_layout,
    checkpoints_on_host,
    container_layout,
    learner_environment,
)
from ffdl_batch.runtimes.learner_start import (
    RequestRefused,
    Runtime,
    Start,
    Subject,
    bare_argv,
    choose_network,
    compose_start,
    isolated_argv,
    refusal,
)

JOB = JobDir("/s/jobs/training-0")
VALUES = {"scratch": "/tmp/s", "learner_id": "2", "env_file": "/tmp/s/e", "netns": "/run/n", "rank": "1"}
ALONE = lay_on_one([Member(Load(1, 1))])
SPEC = JobSpec("x", Framework("custom", "i", "true"))
RUN = {"attempt": "2", "restart": "1", "resume": "1", "confirmed": "step-7"}


def places(**changes: object) -> Places:
    return Places(JOB, JOB.attempt(1), "training-0", **changes)  # type: ignore[arg-type]


def test_apptainer_argv_contains_binds_and_disables_network_by_default() -> None:
    argv = apptainer_argv(Container("/i.sif", (Bind("/a", "/job"), Bind("/b", "/d", read_only=True))))
    filled = [fill(part, VALUES) for part in argv]
    expected = "apptainer -q exec --containall --no-home --no-eval --workdir /tmp/s/learner-2 --env-file /tmp/s/e"
    expected += " --net --network none --mount type=bind,source=/a,destination=/job"
    expected += " --mount type=bind,source=/b,destination=/d,ro --pwd /job /i.sif"
    assert filled == [*expected.split(" "), *SHELL]


@pytest.mark.parametrize(
    ("network", "there", "absent"),
    [
        (NetworkMode.LOOPBACK, "--net", "--netns-path"),
        (NetworkMode.JOIN, "--netns-path", "--net"),
        (NetworkMode.HOST, "exec", "--net"),
    ],
)
def test_apptainer_argv_adds_network_flags_for_each_mode(network: NetworkMode, there: str, absent: str) -> None:
    argv = apptainer_argv(Container("/i", network=network, gpus=GpuLibraries.AMD, program="singularity"))
    assert argv[0] == "singularity"
    assert "--rocm" in argv and there in argv and absent not in argv


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", codec="utf-8"), max_size=20))
def test_mount_text_quotes_any_printable_path_for_csv(name: str) -> None:
    text = mount_text(Bind("/" + name, "/t"))
    assert next(csv.reader([text], strict=True)) == ["type=bind", f"source=/{name}", "destination=/t"]


@pytest.mark.parametrize("path", ["", "relative", "/a\nb", "/a\0"])
def test_mount_text_rejects_relative_paths_and_control_characters(path: str) -> None:
    with pytest.raises(ValueError, match=r"absolute|control"):
        mount_text(Bind(path, "/t"))


@pytest.mark.parametrize("image", ["", "-x", "a\nb"])
def test_apptainer_argv_rejects_invalid_image_names(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        apptainer_argv(Container(image))


def test_bare_argv_contains_only_the_constant_shell_script() -> None:
    assert bare_argv() == tuple(part.replace("{", "{{").replace("}", "}}") for part in SHELL)
    assert fill(bare_argv()[-1], {}) == WRAPPER
    assert isolated_argv(("py", "c.pyz"))[:4] == ("py", "c.pyz", "isolate", "--")


def test_container_layout_sets_learner_variables_for_mounted_stores() -> None:
    named = places(data_container="in", results_container="out", data="/d/in", results_bucket="/d/out")
    layout = container_layout(named)
    planned = learner_environment(Learners("training-0", "a b", 2, 2.0), layout)
    env = {name: fill(value, {**VALUES, "gpus": "3", **RUN}) for name, value in planned.items()}
    expected = {
        "DATA_DIR": "/mnt/data/in", "RESULT_DIR": "/mnt/results/out/training-0",
        "RESULT_BUCKET_DIR": "/mnt/results/out", "CHECKPOINT_DIR": "/mnt/results/out/_wml_checkpoints",
        "MODEL_DIR": "/job/model-code", "LOG_DIR": "/job/logs", "JOB_STATE_DIR": "/job", "TRAINING_ID": "training-0",
        "TRAINING_COMMAND": "a b", "GPU_COUNT": "2.000000", "NUM_LEARNERS": "2", "LEARNER_ID": "2",
        "LEARNER_NAME_PREFIX": "learner-training-0", "CUDA_VISIBLE_DEVICES": "3", "FFDL_ATTEMPT": "2",
        "FFDL_RESTART": "1", "RESUME": "1",
    }  # fmt: skip
    assert {name: env[name] for name in expected} == expected
    assert Bind("/d/in", "/mnt/data/in", read_only=True) in layout.binds
    assert Bind(JOB.checkpoints, "/mnt/results/out/_wml_checkpoints") in layout.binds


def test_container_layout_places_copied_data_below_job_directory() -> None:
    layout = container_layout(places(data_container="in", results_container="out", copied=True))
    assert (layout.data_dir, layout.result_dir, layout.result_bucket_dir) == ("/job/in", "/job/out", "")
    assert Bind(JOB.attempt(1).data, "/job/in") in layout.binds
    bare = bare_layout(places(data_container="in", results_container="out", copied=True))
    assert (bare.data_dir, bare.result_bucket_dir) == (JOB.attempt(1).data, "")
    same = container_layout(places(data_container="x", results_container="x", copied=True))
    assert (same.data_dir, same.result_dir) == ("/job/x", "/job/results/x")


def test_container_layout_uses_default_directories_without_container_names() -> None:
    layout = container_layout(places())
    assert (layout.data_dir, layout.result_dir) == ("/mnt/data", "/mnt/results/dlaas-trained-models/training-0")


def test_layouts_use_bucket_checkpoints_when_checkpoints_are_shared() -> None:
    shared = places(results_container="out", results_bucket="/d/out", shared_checkpoints=True)
    assert bare_layout(shared).checkpoint_dir == checkpoints_on_host(shared) == "/d/out/_wml_checkpoints"
    assert not any(bind.source == JOB.checkpoints for bind in container_layout(shared).binds)
    assert checkpoints_on_host(places()) == JOB.checkpoints


def evaluated(tmp_path: Path, command: str, exports: str = "", **more: str) -> tuple[int, str]:
    """Return status and output of a learner's shell."""
    env = {"PATH": os.environ["PATH"], "TRAINING_COMMAND": command, "LEARNER_ID": "1", "FFDL_EXPORTS": exports}
    env |= {"JOB_STATE_DIR": str(tmp_path), "MODEL_DIR": str(tmp_path), **more}
    done = subprocess.run(SHELL, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("command", "status", "recorded"),
    [
        ("true", 0, "0\n"),
        ("sh -c 'exit 6'", 6, "6\n"),
        ("syntax )", 2, "2\n"),
        ("(exit 4)", 4, "4\n"),
        ("kill -TERM $$", -15, None),
        ("kill -KILL $$", -9, None),
    ],
)
def test_learner_shell_records_exit_status_unless_it_is_killed(
    tmp_path: Path, command: str, status: int, recorded: str | None
) -> None:
    assert evaluated(tmp_path, command)[0] == status
    ended = tmp_path / ".ended-1"
    assert (ended.read_text() if ended.exists() else None) == recorded


@pytest.mark.parametrize(
    ("command", "status", "printed"),
    [
        ("# why\nfalse\necho $?\n", 0, "1\n"),
        ("echo a \\\n  -b\nfalse\n", 1, "a -b\n"),
        ("cat <<E\n  - a\nE", 0, "  - a\n"),
        ("f() {\n  return 3\n}\nf  # why", 3, ""),
        ("set -e\necho a\nfalse\necho b\n", 1, "a\n"),
        ("echo $# $0", 0, "0 bash\n"),
    ],
)
def test_learner_shell_runs_command_as_script(tmp_path: Path, command: str, status: int, printed: str) -> None:
    assert evaluated(tmp_path, command) == (status, printed)


def test_learner_shell_counts_lines_of_errors_from_first_line_of_command(tmp_path: Path) -> None:
    command = "echo $LINENO\nmissing-1\ntrue \\\n  -x\nmissing-5\ncat <<E\n  - a\nE\ncd missing-9\nif x\nfi\n"
    status, printed = evaluated(tmp_path, command, exports="export A=1\nexport B=2\n")
    assert status == 2
    assert printed.splitlines() == [
        "1",
        "bash: line 2: missing-1: command not found",
        "bash: line 5: missing-5: command not found",
        "  - a",
        "bash: line 9: cd: missing-9: No such file or directory",
        "bash: eval: line 11: syntax error near unexpected token `fi'",
        "bash: eval: line 11: `fi'",
    ]


@pytest.mark.parametrize("name", ["MONGO_URL", "KUBERNETES_PORT", "HOSTNAME", "ETCD_X", "GRAFANA", "DLAAS_X"])
def test_learner_shell_keeps_variable_of_any_name(tmp_path: Path, name: str) -> None:
    assert evaluated(tmp_path, f"printenv {name}", **{name: "own"}) == (0, "own\n")
    assert evaluated(tmp_path, f"printenv {name}", exports=f"export {name}=own\n") == (0, "own\n")


@pytest.mark.parametrize("name", ["../x", "a/../../b", "a\nb"])
def test_container_layout_rejects_unsafe_container_names(name: str) -> None:
    with pytest.raises(ValueError, match="container"):
        container_layout(places(data_container=name))


def in_directory(container: str, mode: str) -> DataStore:
    connection = {"path": "bucket", "mode": mode}
    return DataStore("d", StoreType.DIRECTORY, StoreType.DIRECTORY, container, "out", connection)


def composed(runtime: Runtime, *stores: DataStore) -> Start:
    spec = replace(SPEC, data_stores=stores, base_dir="/home/a")
    return compose_start(Subject("training-0", spec, ALONE, JOB, JOB.attempt(1)), runtime)


@pytest.mark.parametrize("image", ["", "/i.sif"], ids=["bare", "contained"])
@pytest.mark.parametrize(("mode", "needed"), [("mount", ("/home/a/bucket/in",)), ("copy", ())])
def test_compose_start_requires_data_directory_on_nodes_only_for_mounted_store(
    image: str, mode: str, needed: tuple[str, ...]
) -> None:
    assert composed(Runtime(image), in_directory("in", mode)).data.needs_dirs == needed


@pytest.mark.parametrize("image", ["", "/i.sif"], ids=["bare", "contained"])
@pytest.mark.parametrize(("container", "source"), [("", None), (".", "/home/a/bucket"), ("in", "/home/a/bucket/in")])
def test_compose_start_copies_data_only_if_store_names_training_data(
    image: str, container: str, source: str | None
) -> None:
    """A store of results alone would be copied into every attempt, results of other jobs and all."""
    start = composed(Runtime(image), in_directory(container, "copy"))
    assert [copy.source for copy in start.data.copies] == ([source] if source is not None else [])
    assert start.data.stores.results == "/home/a/bucket/out/training-0"


def test_compose_start_requires_no_directory_without_data_store() -> None:
    assert composed(Runtime()).data.needs_dirs == ()


NONE, LEVEL_JOB, LEVEL_EGRESS, HOST = NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS, NetworkLevel.HOST
AUTO = NetworkLevel.AUTO
LACKING = {LEVEL_JOB: refusal("batch.network", "n3 cannot", "choose another partition")}


@pytest.mark.parametrize(
    ("asked", "learners", "provable", "level"),
    [
        (AUTO, 1, {NONE, LEVEL_JOB, HOST}, NONE),
        (AUTO, 1, {LEVEL_JOB, HOST}, HOST),
        (AUTO, 2, {NONE, LEVEL_JOB, LEVEL_EGRESS, HOST}, LEVEL_JOB),
        (AUTO, 2, {NONE, HOST}, HOST),
        (LEVEL_JOB, 1, {LEVEL_JOB, HOST}, LEVEL_JOB),
        (LEVEL_EGRESS, 1, {LEVEL_EGRESS, HOST}, LEVEL_EGRESS),
        (HOST, 1, {NONE, HOST}, HOST),
        (NONE, 2, {NONE, HOST}, NONE),
        (LEVEL_JOB, 2, {NONE, HOST}, "n3 cannot"),
        (LEVEL_EGRESS, 2, {NONE, LEVEL_JOB, HOST}, "network level egress cannot be proved on this backend"),
    ],
)
def test_choose_network_selects_level_or_rejects_unavailable_request(
    asked: NetworkLevel, learners: int, provable: set[NetworkLevel], level: NetworkLevel | str
) -> None:
    spec = replace(SPEC, resources=Resources(learners=learners), batch=BatchOptions(network=asked))
    mechanisms = {one: f"by {one}" for one in provable}
    if isinstance(level, NetworkLevel):
        chosen = choose_network(spec, mechanisms, lacking=LACKING)
        assert (chosen.requested, chosen.level, chosen.mechanism) == (asked, level, f"by {level}")
        return
    with pytest.raises(RequestRefused, match=level):
        choose_network(spec, mechanisms, lacking=LACKING)


def test_choose_network_explains_why_site_minimum_is_unavailable() -> None:
    spec = replace(SPEC, resources=Resources(learners=2))
    with pytest.raises(RequestRefused, match=r"asks for network level egress or tighter.*get host: n3 cannot"):
        choose_network(spec, {HOST: "none"}, LEVEL_EGRESS, LACKING)
    assert choose_network(spec, {HOST: "none", LEVEL_JOB: "vxlan"}, LEVEL_EGRESS).level == "job"


@pytest.mark.parametrize(
    ("provable", "minimum", "offered"),
    [
        ({NONE, HOST}, HOST, ("host",)),
        ({NONE, LEVEL_JOB, LEVEL_EGRESS, HOST}, HOST, ("egress", "host")),
        ({NONE, LEVEL_JOB, LEVEL_EGRESS, HOST}, LEVEL_EGRESS, ("egress",)),
        ({NONE, HOST}, NONE, ()),
    ],
)
def test_choose_network_records_levels_with_access_to_other_hosts(
    provable: set[NetworkLevel], minimum: NetworkLevel, offered: tuple[str, ...]
) -> None:
    spec = replace(SPEC, resources=Resources(learners=1))
    network = choose_network(spec, {one: f"by {one}" for one in provable}, minimum)
    assert (network.level, network.offered) == ("none", offered)


@pytest.mark.parametrize(
    ("asked", "learners", "minimum", "cure"),
    [
        (HOST, 1, NONE, "leave network out, or write network: none"),
        (HOST, 2, LEVEL_EGRESS, "leave network out, or write network: job"),
        (HOST, 2, NONE, "ask for one learner, or talk to the site"),
        (NetworkLevel.AUTO, 1, NONE, "talk to the site"),
        (NetworkLevel.AUTO, 2, LEVEL_JOB, "ask for one learner, or talk to the site"),
    ],
)
def test_choose_network_suggests_cure_when_site_minimum_is_unmet(
    asked: NetworkLevel, learners: int, minimum: NetworkLevel, cure: str
) -> None:
    spec = replace(SPEC, resources=Resources(learners=learners), batch=BatchOptions(network=asked))
    with pytest.raises(RequestRefused) as error:
        choose_network(spec, {HOST: "none"}, minimum)
    assert error.value.findings[0].cure == cure


@pytest.mark.parametrize("level", [LEVEL_JOB, LEVEL_EGRESS])
def test_compose_start_joins_job_network_with_hostname_and_hosts_file(level: NetworkLevel) -> None:
    start = composed(Runtime("/i.sif", network=level))
    argv = start.learner.argv
    assert argv[argv.index("--netns-path") + 1] == "{netns}" and "--net" not in argv
    assert argv[argv.index("--hostname") + 1] == "{name}"
    assert any("source={hosts_file},destination=/etc/hosts" in word for word in argv)
    assert start.rendezvous.names == "learner-training-0"


@pytest.mark.parametrize(
    ("runtime", "named"),
    [
        (Runtime("/i.sif", network=NetworkLevel.NONE), True),
        (Runtime("/i.sif", network=HOST), False),
        (Runtime(controller=("python3", "/c.pyz"), network=NetworkLevel.NONE), False),
        (Runtime(), False),
    ],
)
def test_compose_start_sets_hostname_only_for_container_without_network(runtime: Runtime, named: bool) -> None:
    start = composed(runtime)
    assert start.rendezvous.names == ("learner-training-0" if named else "")
    assert ("--hostname" in start.learner.argv) is named
    assert any("destination=/etc/hosts" in word for word in start.learner.argv) is named
