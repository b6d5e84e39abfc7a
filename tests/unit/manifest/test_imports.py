"""Job files of Kubernetes, Kubeflow, SkyPilot and dstack as manifests."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Judged, Source
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.manifest.imports import dstack, kubernetes_jobs, skypilot
from ffdl_batch.manifest.imports.learner_parts import shell_words
from ffdl_batch.manifest.watson_ml import WmlReader
from ffdl_batch.manifest.writer import write_manifest
from ffdl_batch.ports.conversion import ReadsScripts

READERS: dict[str, ReadsScripts] = {
    "kubernetes-jobs": kubernetes_jobs.create(),
    "skypilot": skypilot.create(),
    "dstack": dstack.create(),
}

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "imports"
JOB = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: mnist
  labels: {kueue.x-k8s.io/queue-name: gpus}
spec:
  backoffLimit: 2
  activeDeadlineSeconds: 7200
  completions: 3
  parallelism: 3
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {disk: fast}
      containers:
      - name: main
        image: registry.example.org/torch:2.1
        workingDir: /opt/train
        command: [python, train.py, --lr=$(LR), "$(hostname)", "$$(LR)"]
        env:
        - {name: LR, value: "0.1"}
        - {name: RUN, value: run-$(LR)}
        - {name: PASSWORD, value: hunter2}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
        - name: POD
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        resources:
          requests: {cpu: 500m, memory: 8Gi}
          limits: {cpu: "2", memory: 16Gi, nvidia.com/gpu: 2, example.com/npu: 1}
        volumeMounts: [{name: d, mountPath: /data}]
        novelty: 1
      - name: logs
        image: sidecar
      volumes: [{name: d, emptyDir: {}}]
"""
PYTORCH = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bert}
spec:
  nprocPerNode: "4"
  runPolicy: {cleanPodPolicy: None, backoffLimit: 3, schedulingPolicy: {priorityClass: high, minAvailable: 3}}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, image: a, command: [torchrun, train.py],
        resources: {limits: {nvidia.com/gpu: 8}}}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: a, command: [torchrun, train.py],
        resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: resnet}
spec:
  slotsPerWorker: 4
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{name: l, image: mpi, command: [mpirun, -np, "8", --hostfile, /etc/mpi/hostfile,
        python, train.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, image: mpi, command: [/usr/sbin/sshd, -De],
        resources: {limits: {nvidia.com/gpu: 4, cpu: 8}}}]}}
"""
TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {generateName: llama-}
spec:
  runtimeRef: {name: torch-distributed}
  suspend: true
  initializer: {dataset: {storageUri: hf://a/b}}
  trainer:
    image: torch:2
    numNodes: 2
    numProcPerNode: 1
    command: [bash, -c, "torchrun --nnodes=$(PET_NNODES) train.py\\necho done"]
    env: [{name: LR, value: "1"}]
    resourcesPerNode: {requests: {nvidia.com/mig-1g.10gb: 1, memory: 512Mi}}
"""
SKYPILOT = """\
name: finetune
num_nodes: 2
workdir: .
resources:
  infra: aws/us-east-1
  accelerators: A100:8
  cpus: 4+
  memory: 32+
  image_id: docker:torch:2.1
  use_spot: true
  job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 3}
  any_of: [{infra: gcp}]
envs: {MODEL: 13b, WANDB_API_KEY: , SKYPILOT_DOCKER_PASSWORD: hunter2}
secrets: {HF_TOKEN: hunter2}
file_mounts: {/data: "s3://bucket"}
setup: |
  pip install -r requirements.txt
run: |
  first=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE train.py
"""
DSTACK = """\
type: task
name: finetune
nodes: 2
image: torch:2.1
env:
- HF_TOKEN
- MODEL=13b
- KEY=${{ secrets.key }}
commands:
- pip install x
- torchrun --nnodes=$DSTACK_NODES_NUM --nproc_per_node=$DSTACK_GPUS_PER_NODE train.py
resources:
  gpu: A100:40GB:8
  memory: 32GB..
  cpu: x86:8..16
  shm_size: 8GB
max_duration: 2h
spot_policy: spot
backends: [aws]
"""
TEXTS = {"Job": JOB, "PyTorchJob": PYTORCH, "MPIJob": MPI, "TrainJob": TRAIN, "SkyPilot": SKYPILOT, "dstack": DSTACK}


def convert(text: str, image: str = "custom") -> Conversion:
    (reader,) = (reader for reader in READERS.values() if reader.recognises(text))
    assert isinstance(reader, ReadsScripts) and not WmlReader().recognises(text)
    return reader.convert(Source(text, "job.yml", image=image))


def spec_of(found: Conversion) -> JobSpec:
    parsed = parse_manifest(ManifestSource(write_manifest(found.manifest), "made.yml", "/"))
    assert parsed.spec is not None and not parsed.inline_secrets, parsed.findings
    return parsed.spec


def fate(found: Conversion, text: str) -> Judged:
    (one,) = (one for one in found.judged if one.text.partition(": ")[0] == text)
    return one


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_import_makes_a_valid_manifest_and_reports_with_lines_and_without_credentials(text: str) -> None:
    found = convert(text)
    assert spec_of(found).framework.version.startswith("docker://")
    lines = [one.line for one in found.judged]
    assert lines == sorted(lines) and 0 not in lines
    assert all(one.reason for one in found.judged if one.fate is not Fate.MAPPED)
    assert "hunter2" not in write_manifest(found.manifest) + "".join(one.text + one.reason for one in found.judged)


def test_import_reads_job_of_kubernetes() -> None:
    found = convert(JOB)
    job = spec_of(found)
    each, batch = job.resources, job.batch
    assert (job.name, each.learners, each.cpus, each.gpus, each.memory_bytes) == ("mnist", 3, 0.5, 2, 16 * 1024**3)
    assert (batch.time_s, batch.retry.failures, dict(each.gres)) == (7200, 2, {"example.com/npu": 1})
    assert dict(batch.env) == {"LR": "0.1", "RUN": "run-0.1"}
    assert dict(batch.secrets) == {"PASSWORD": "${secret:PASSWORD}", "HF_TOKEN": "${secret:hf-token}"}
    assert batch.kubernetes["node_selector"] == "disk=fast"
    expected = "cd /opt/train && python train.py --lr=\"${LR}\" '$(hostname)' '$(LR)'"
    assert job.framework.command == f"export JOB_COMPLETION_INDEX=$RANK; {expected}"
    container = "containers[0]"
    for path, line in ((f"{container}.volumeMounts", 36), (f"{container}.novelty", 37), ("kind", 1)):
        assert (fate(found, path).fate, fate(found, path).line) == (Fate.DROPPED, line)
    assert fate(found, "containers[1]").fate is Fate.DROPPED
    assert "DOWNWARD_API_POD_NAME" in fate(found, f"{container}.env[4]").reason
    assert "queue in [backend.kubernetes]" in fate(found, "metadata.labels").reason


def test_import_makes_an_array_of_completions_that_run_one_after_the_other() -> None:
    found = convert(JOB.replace("parallelism: 3", "parallelism: 2").replace("completions: 3", "completions: 10"))
    job = spec_of(found)
    assert (job.resources.learners, job.batch.array) == (1, "0-9%2")
    assert job.framework.command.startswith("export JOB_COMPLETION_INDEX=$FFDL_ARRAY_INDEX; ")


def test_import_reads_pytorch_job() -> None:
    job = spec_of(convert(PYTORCH))
    assert (job.resources.learners, job.resources.gpus, dict(job.batch.roles)) == (3, 8, {})
    assert (job.batch.env["PET_NPROC_PER_NODE"], job.batch.retry.failures, str(job.batch.restart)) == (
        "4",
        3,
        "learner",
    )
    assert job.batch.kubernetes["priority_class"] == "high"
    other = PYTORCH.replace("command: [torchrun, train.py]", "command: [torchrun, serve.py]", 1)
    roles = spec_of(convert(other.replace("image: a", "image: b", 1))).batch.roles
    assert {name: (role.learners, role.command) for name, role in roles.items()} == {
        "master": (1, "torchrun serve.py"), "worker": (2, "torchrun train.py"),
    }  # fmt: skip


def test_import_reports_second_image_of_pytorch_job_as_dropped() -> None:
    found = convert(PYTORCH.replace("image: a", "image: b", 1))
    one = fate(found, "Worker.containers[0].image")
    assert (one.fate, one.reason) == (Fate.DROPPED, "a job has one image: b")


def test_import_runs_launcher_of_mpi_job_in_the_first_learner() -> None:
    found = convert(MPI)
    job = spec_of(found)
    assert (job.resources.learners, job.resources.gpus, job.resources.cpus) == (2, 4, 8)
    assert job.framework.command == 'mpirun -np 8 --hostfile "$JOB_STATE_DIR/.hostfile" python train.py'
    launcher, worker = job.batch.roles["launcher"], job.batch.roles["worker"]
    assert (launcher.learners, worker.learners, worker.service, worker.command) == (1, 1, True, "sleep infinity")
    assert fate(found, "slotsPerWorker").fate is Fate.MAPPED
    assert fate(convert(MPI.replace("Worker: 4", "Worker: 2")), "slotsPerWorker").fate is Fate.APPROXIMATED
    assert (
        spec_of(
            convert(MPI.replace("spec:\n  slots", "spec:\n  runLauncherAsWorker: true\n  slots"))
        ).resources.learners
        == 3
    )


def test_import_reads_train_job() -> None:
    found = convert(TRAIN)
    job = spec_of(found)
    assert (job.name, job.resources.learners, job.resources.gpus, job.resources.gpu_type) == ("llama", 2, 1, "1g.10gb")
    assert job.batch.hold and job.framework.command == "torchrun --nnodes=${PET_NNODES} train.py\necho done"
    assert "torch-distributed is not read" in fate(found, "runtimeRef").reason
    assert fate(found, "initializer").fate is Fate.DROPPED


def test_import_reads_skypilot_task() -> None:
    found = convert(SKYPILOT)
    job = spec_of(found)
    each = job.resources
    assert (each.learners, each.gpus, each.gpu_type, each.cpus) == (2, 8, "A100", 4)
    assert (each.memory_bytes, job.batch.preemptible, job.batch.retry.failures) == (32 * 1024**3, True, 3)
    assert dict(job.batch.secrets) == {"WANDB_API_KEY": "${env:WANDB_API_KEY}", "HF_TOKEN": "${secret:HF_TOKEN}"}
    assert (job.framework.version, dict(job.batch.env)) == ("docker://torch:2.1", {"MODEL": "13b"})
    for path in ("resources.infra", "resources.any_of", "file_mounts", "envs.SKYPILOT_DOCKER_PASSWORD"):
        assert fate(found, path).fate is Fate.DROPPED


def run(command: str, tmp_path: Path, **variables: str) -> str:
    (tmp_path / "bin").mkdir()
    for name in ("pip", "torchrun"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$@"\nexit ${{{name}_exits:-0}}\n')
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".hostfile").write_text("one slots=8\ntwo slots=8\n")
    environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "RANK": "1", "NUM_LEARNERS": "2", **variables}
    environ |= {"JOB_STATE_DIR": str(tmp_path), "MASTER_ADDR": "one"}
    argv = ["bash", "-c", command + '\necho "first: $first"']
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False).stdout


def test_imported_skypilot_command_runs_setup_and_knows_its_nodes(tmp_path: Path) -> None:
    assert run(spec_of(convert(SKYPILOT)).framework.command, tmp_path).splitlines() == [
        "pip install -r requirements.txt", "torchrun --nnodes=2 --nproc_per_node=8 train.py", "first: one",
    ]  # fmt: skip


def test_imported_skypilot_command_ends_with_failed_setup(tmp_path: Path) -> None:
    printed = run(spec_of(convert(SKYPILOT)).framework.command, tmp_path, pip_exits="3")
    assert printed.splitlines() == ["pip install -r requirements.txt"]


def test_import_reads_dstack_task(tmp_path: Path) -> None:
    found = convert(DSTACK)
    job = spec_of(found)
    each = job.resources
    assert (each.learners, each.gpus, each.gpu_type, each.cpus, each.memory_bytes) == (2, 8, "A100", 8, 32 * 1024**3)
    assert (job.batch.time_s, job.batch.preemptible, dict(job.batch.env)) == (7200, True, {"MODEL": "13b"})
    assert dict(job.batch.secrets) == {"HF_TOKEN": "${env:HF_TOKEN}", "KEY": "${secret:key}"}
    assert "memory of a GPU (40GB) is not asked for" in fate(found, "resources.gpu").reason
    assert [fate(found, path).fate for path in ("resources.shm_size", "backends")] == [Fate.DROPPED, Fate.DROPPED]
    assert "torchrun --nnodes=2 --nproc_per_node=8 train.py\n" in run(job.framework.command, tmp_path)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [("H100", (1, "H100")), ("4", (4, "")), ("24GB..:2", (2, "")), ("nvidia:A10,L4:1..4", (1, "A10")),
     ("{name: [H100], count: 2, memory: 80GB}", (2, "H100")), ("tpu:v5:8", (0, ""))],
)  # fmt: skip
def test_import_reads_gpus_of_dstack(gpu: str, expected: tuple[int, str]) -> None:
    each = spec_of(convert(DSTACK.replace("A100:40GB:8", f"'{gpu}'" if "{" not in gpu else gpu))).resources
    assert (each.gpus, each.gpu_type) == expected


@pytest.mark.parametrize(
    ("policy", "gpus", "expected", "became"),
    [
        ("{min_gpu_utilization: 10, time_window: 1h}", 1, IdleLimit(0.1, 3600), Fate.MAPPED),
        ("{min_gpu_utilization: 10, time_window: 1h}", 8, IdleLimit(0.1, 3600), Fate.APPROXIMATED),
        ("{min_gpu_utilization: 100, time_window: 300}", 1, IdleLimit(1.0, 300), Fate.MAPPED),
        ("{min_gpu_utilization: 0, time_window: 5m}", 1, None, Fate.MAPPED),
        ("{min_gpu_utilization: 10, time_window: soon}", 1, None, Fate.DROPPED),
        ("{min_gpu_utilization: 10}", 1, None, Fate.DROPPED),
        ("{time_window: 5m}", 1, None, Fate.DROPPED),
    ],
)
def test_import_reads_utilization_policy_of_dstack(
    policy: str, gpus: int, expected: IdleLimit | None, became: Fate
) -> None:
    found = convert(f"{DSTACK.replace('A100:40GB:8', f'A100:{gpus}')}utilization_policy: {policy}\n")
    assert spec_of(found).batch.idle == expected
    assert fate(found, "utilization_policy").fate is became


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (JOB.replace("kind: Job", "kind: Deployment"), "there is no reader for the kind ConfigMap, Deployment"),
        (JOB.replace('        command: [python, train.py, --lr=$(LR), "$(hostname)", "$$(LR)"]\n', ""), "no command"),
        (JOB.replace("        command:", "        args:"), "has args, and the program is the image's"),
        (JOB.replace("500m", "lots"), "'lots' is not a quantity"),
        (JOB.replace("completions: 3", "completions: x"), "'x' is not a whole number"),
        (MPI.replace("Launcher:", "Starter:"), "names no Launcher"),
        (SKYPILOT + "service: {replicas: 2}\n", "a service answers requests for ever"),
        (SKYPILOT.partition("run: |")[0], "the task has no run"),
        (f"{SKYPILOT}---\n{SKYPILOT}", "the file has 2 tasks"),
        (DSTACK.replace("type: task", "type: dev-environment"), "a dev-environment is not a job that ends"),
        (DSTACK + "groups: [{nodes: 2}]\n", "groups of nodes are not converted"),
    ],
)
def test_import_refuses_what_no_manifest_can_express_with_its_line(text: str, why: str) -> None:
    with pytest.raises(CannotConvert, match=why) as caught:
        convert(text)
    assert caught.value.line


def test_import_takes_image_of_user_only_if_the_file_names_none() -> None:
    text = SKYPILOT.replace("  image_id: docker:torch:2.1\n", "  image_id: ami-123\n")
    assert spec_of(convert(text)).framework.version == "custom"
    assert spec_of(convert(text, "torch.sif")).framework.version == "torch.sif"
    assert spec_of(convert(SKYPILOT, "torch.sif")).framework.version == "docker://torch:2.1"


def test_import_reports_variables_that_no_learner_can_have() -> None:
    found = convert(DSTACK.replace("- HF_TOKEN", "- a b").replace("KEY=", "UID=").replace("MODEL=13b", "PS4=x"))
    assert (spec_of(found).batch.env, spec_of(found).batch.secrets) == ({}, {})
    assert [fate(found, f"env[{number}]").fate for number in range(3)] == [Fate.DROPPED] * 3


def test_readers_leave_manifests_and_scripts_alone() -> None:
    for text in ("#!/bin/bash\nrun: x\n", "name: a\nframework: {name: custom}\nrun: x\n", "- a\n", "a: [\n", ""):
        assert not any(reader.recognises(text) for reader in READERS.values())


def test_shell_words_expand_variables_of_kubernetes_only() -> None:
    words = ["a b", "$(X)", "p$(X)s it's", "$$(X)", "$(NOT)", ""]
    assert shell_words(words, {"X"}) == "'a b' \"${X}\" p\"${X}\"'s it'\"'\"'s' '$(X)' '$(NOT)' ''"


def test_every_reader_is_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    points = project["project"]["entry-points"]["ffdl_batch.converters"]
    modules = {name: value.removesuffix(":create") for name, value in points.items() if ".imports." in value}
    assert modules == {name: type(reader).__module__ for name, reader in READERS.items()}


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_documented_examples_become_valid_manifests(path: Path) -> None:
    assert spec_of(convert(path.read_text(encoding="utf-8"))).name == "digits"
