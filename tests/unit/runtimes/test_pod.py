"""What a pod's learner is started with, and the mounts that give its container FfDL's directories."""

from __future__ import annotations

import subprocess

import pytest

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.launch.pod_protocol import SEAT_DIR
from ffdl_batch.runtimes.learner_contract import SHELL, Places, container_layout
from ffdl_batch.runtimes.pod import (
    PRE_STOP_TEXT,
    SHIM_TEXT,
    PodMount,
    learner_mounts,
    pre_stop_argv,
    shim_argv,
    stand_in_argv,
)

JOB = JobDir("/ffdl/jobs/training-abc")
ATTEMPT = JOB.attempt(2)


def mounts(learners: int = 1, named: bool = True, **places: str) -> dict[str, PodMount]:
    layout = container_layout(Places(JOB, ATTEMPT, "training-abc", **places))  # type: ignore[arg-type]
    return {one.target: one for one in learner_mounts(layout, JOB.path, ATTEMPT, learners, named)}


def test_learner_mounts_follow_directory_contract_for_one_learner() -> None:
    found = mounts()
    assert {target: (one.volume, one.sub_path) for target, one in found.items()} == {
        "/job": ("work", "attempt-2/state"),
        "/job/model-code": ("work", "attempt-2/model"),
        "/job/logs": ("work", "attempt-2/logs/learner-1"),
        "/mnt/data": ("work", "attempt-2/data"),
        "/mnt/results/dlaas-trained-models/training-abc": ("work", "attempt-2/results"),
        "/mnt/results/dlaas-trained-models/_wml_checkpoints": ("work", "checkpoints"),
        "/etc/hosts": ("pod", "hosts"),
    }
    assert list(found).index("/job") < list(found).index("/job/logs"), "outer mounts come first"
    assert [one.target for one in found.values() if one.read_only] == ["/mnt/data", "/etc/hosts"]
    assert not any(one.per_pod for one in found.values())


def test_learner_mounts_give_each_pod_its_own_logs() -> None:
    logs = mounts(learners=3)["/job/logs"]
    assert (logs.sub_path, logs.per_pod) == ("attempt-2/logs/pod-$(JOB_COMPLETION_INDEX)", True)


def test_learner_mounts_keep_path_of_cluster_directory() -> None:
    data = mounts(data="/data/{nice}", data_container="set")["/mnt/data/set"]
    assert (data.volume, data.sub_path, data.read_only) == ("", "/data/{nice}", True)


def test_learner_mounts_omit_hosts_file_without_names() -> None:
    assert "/etc/hosts" not in mounts(named=False)


def test_stand_in_argv_ends_with_learner_shell() -> None:
    argv = stand_in_argv(("{python}", "-c", "x"))
    values = {"python": "/p", "pod": "/ffdl-pod", "env_file": "/e"}
    filled = tuple(fill(word, values) for word in argv)
    assert filled[-3:] == SHELL
    assert " ".join(filled[:11]) == "/p -c x stand-in --pod /ffdl-pod --env-file /e --cwd /job --"


def test_pod_commands_contain_no_kubelet_variable_reference() -> None:
    """It expands $(NAME), and makes $$ one dollar, in commands of containers, hooks and probes."""
    for argv in (shim_argv(), pre_stop_argv()):
        assert not any("$(" in word or "$$" in word for word in argv)
    assert shim_argv() == ("/bin/sh", f"{SEAT_DIR}/shim.sh", SEAT_DIR)


@pytest.mark.parametrize("text", [SHIM_TEXT, PRE_STOP_TEXT])
def test_pod_scripts_are_valid_posix_shell(text: str) -> None:
    subprocess.run(["dash", "-n"], input=text.encode(), check=True)
    for word in ("[[", "function ", "local ", "<(", "mkfifo", "mv ", "rm ", "cat "):
        assert word not in text
