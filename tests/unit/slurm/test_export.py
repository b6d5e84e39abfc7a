"""Batch scripts for those who leave: run against stubs, as they are, with nasty values."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.conversion import CannotConvert, ExportedJob, ExportRequest, Fate
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.manifest.models.batch import BatchBlock, ManifestBlock
from ffdl_batch.ports.conversion import ExportsJobs
from ffdl_slurm.export.exporter import SlurmExporter
from ffdl_slurm.export.key_fates import KEY_FATES
from ffdl_slurm.sbatch_script import parse_options

SRUN = """\
    #!/bin/bash
    # A task for each of --ntasks; what is behind it is the command.
    for word; do case $word in --ntasks=*) tasks=${word#*=} ;; --*) ;; *) break ;; esac; shift; done
    for ((rank = 0; rank < tasks; rank++)); do
      SLURM_PROCID=$rank SLURM_LOCALID=0 SLURMD_NODENAME=n$rank "$@" & pids+=($!)
    done
    worst=0
    for pid in "${pids[@]}"; do wait "$pid"; status=$?; [ $status -le $worst ] || worst=$status; done
    exit $worst
"""
APPTAINER = """\
    #!{python}
    # Runs the command here, with the paths of the host in place of the container's; notes what it was told.
    import json, os, re, subprocess, sys
    words, binds, rest = sys.argv[1:], [], []
    while words:
        word = words.pop(0)
        if word == "--bind":
            binds.append(words.pop(0))
        elif word in ("--workdir", "--pwd"):
            words.pop(0)
        elif not word.startswith("-") and word != "exec":
            rest = [word, *words]
            break
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps({{"image": rest[0], "binds": binds, "argv": sys.argv[1:]}}) + "\\n")
    pairs = [bind.split(":")[:2] for bind in binds]
    def mapped(text):
        for source, target in sorted(pairs, key=lambda pair: -len(pair[1])):
            text = re.sub(re.escape(target) + r"(?=[/'\\" \\n]|$)", lambda _: source, text)
        return text
    env = {{name: os.environ[name] for name in ("PATH", "OUT")}}
    done = subprocess.run([mapped(word) for word in rest[1:]], env=env)
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
"""
TELL = (
    """python3 -c "import json,os;open(os.environ['OUT']+os.environ['RANK'],'w').write(json.dumps({**os.environ}))\""""
)
HEAD = """\
name: digits
learners: {learners}
cpus: 2
memory: 1GiB
framework:
  name: custom
  version: registry.example.org/a/b:1
  command: {command}
"""
_OF_ROOT = "-dac_override,-dac_read_search"
BOUND_BY_MODES = ("setpriv", f"--inh-caps={_OF_ROOT}", f"--bounding-set={_OF_ROOT}") if os.geteuid() == 0 else ()
"""Starts a program for which the modes of files count, also if it is root's."""
NASTY = {"BLANKS": "  two  ", "QUOTES": 'it\'s "x" `id`', "SUBSTITUTION": "$(id) $HOME", "DASHES": "-x", "UTF": "żółć"}


def export(text: str, **changes: object) -> ExportedJob:
    parsed = parse_manifest(ManifestSource(text, "digits.yml", "/home/ann"))
    assert parsed.spec is not None, parsed.findings
    exporter = SlurmExporter()
    assert isinstance(exporter, ExportsJobs)
    return exporter.export(ExportRequest(parsed.spec, "digits.yml", "/images/a b.sif", **changes))  # type: ignore[arg-type]


def options(exported: ExportedJob) -> dict[str, str | None]:
    return {one.name: one.value for one in parse_options(exported.text)}


def manifest(command: str = TELL, learners: int = 1, more: str = "") -> str:
    return HEAD.format(learners=learners, command=json.dumps(command)) + textwrap.dedent(more)


class Site:
    """Stubs in a directory, and the script's own."""

    def __init__(self, base: Path) -> None:
        self.base, self.bin, self.home = base, base / "bin", base / "home"
        self.bin.mkdir()
        self.home.mkdir()
        self._write("srun", SRUN)
        self._write("apptainer", APPTAINER.format(python=sys.executable))
        self._write("scontrol", "    #!/bin/sh\n    printf '%s\\n' n0 n1 n2\n")
        self._write("getent", '    #!/bin/sh\n    echo "10.0.0.${2#n} $2"\n')

    def _write(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(textwrap.dedent(text))
        path.chmod(0o755)

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        """What is exported when the script has ended is killed, as Slurm does it."""
        with subprocess.Popen(
            [*BOUND_BY_MODES, "bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.home, start_new_session=True,
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.base), "OUT": f"{self.base}/out",
                "CALLS": str(self.base / "calls"), "SLURM_JOB_ID": "77", "SLURM_SUBMIT_DIR": str(self.home),
                "SLURM_JOB_NODELIST": "n[0-2]", **env,
            },
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=300)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def seen(self, rank: int = 0) -> Mapping[str, str]:
        found = json.loads((self.base / f"out{rank}").read_text())
        assert isinstance(found, dict)
        return found

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.base / "calls").read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_slurm_export_sets_learner_variables_and_binds_without_ffdl(site: Site) -> None:
    made = export(manifest())
    done = site.run(made.text)
    assert (done.returncode, done.stderr) == (0, "")
    env, job = site.seen(), f"{site.home}/training-77"
    expected = {
        "TRAINING_ID": "training-77", "LEARNER_ID": "1", "NUM_LEARNERS": "1", "RANK": "0", "WORLD_SIZE": "1",
        "MASTER_ADDR": "n0", "MASTER_PORT": "10077", "MODEL_DIR": str(site.home),
        "CHECKPOINT_DIR": f"{job}/checkpoints", "RESUME": "0", "GPU_COUNT": "0.000000",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected
    assert env["RESULT_DIR"] == "/mnt/results/dlaas-trained-models/training-77" and env["DATA_DIR"] == f"{job}/data"
    assert "ffdl_batch" not in "".join(line for line in made.text.splitlines() if not line.startswith("#"))
    (call,) = site.calls()
    assert call["image"] == "/images/a b.sif"
    assert f"{job}/results:{env['RESULT_DIR']}" in call["binds"]
    assert not list((site.home / "training-77" / "state").glob(".said*")), "variables were exported behind"


def test_slurm_export_sets_batch_of_submitted_size_for_elastic_job(site: Site) -> None:
    elastic = "{max_learners: 4, batch: {min: 32, max: 128, per_gpu_max: 64, start: 48}}"
    done = site.run(export(f"{manifest()}batch: {{elastic: {elastic}}}\n").text)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {"BATCH_SIZE": "48", "GLOBAL_BATCH_SIZE": "48", "LEARNING_RATE_SCALE": "1.0"}
    assert {name: site.seen().get(name) for name in expected} == expected


def test_slurm_export_passes_env_values_and_secrets_unchanged(site: Site) -> None:
    lines = "".join(f"    {name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in NASTY.items())
    made = export(manifest() + "batch:\n  secrets: {TOKEN: '${secret:hub}'}\n  env:\n" + lines)
    assert site.run(made.text).returncode != 0, "a secret that is not set was not missed"
    done = site.run(made.text, TOKEN="a 'b' $(id)")
    assert done.returncode == 0, done.stderr
    assert {name: site.seen()[name] for name in NASTY} == NASTY
    assert site.seen()["TOKEN"] == "a 'b' $(id)"
    assert "a 'b'" not in repr(site.calls())


@pytest.mark.parametrize("more", ["env: {V: ''}", "secrets: {V: '${secret:hub}'}", "sweep: [{V: x}]"])
@pytest.mark.parametrize("name", ["PYTHONUNBUFFERED", "GPU_COUNT"])
def test_slurm_export_lets_user_replace_contract_variables(site: Site, more: str, name: str) -> None:
    made = export(manifest() + f"batch:\n  {more.replace('V', name)}\n")
    done = site.run(made.text, SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_JOB_ID="70", **{name: "x"})
    assert done.returncode == 0, done.stderr
    assert site.seen()[name] == ("" if more.startswith("env") else "x")


def test_slurm_export_sets_tf_config_ranks_and_hosts_of_learners(site: Site) -> None:
    more = "batch: {roles: {ps: {learners: 1, command: sleep 600}, worker: {learners: 2}}}\n"
    done = site.run(export(manifest(learners=3, more=more)).text)
    assert done.returncode == 0, done.stderr
    cluster = {"ps": ["n0:10077"], "worker": ["n1:10077", "n2:10077"]}
    assert json.loads(site.seen(2)["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    assert (site.seen(1)["FFDL_ROLE"], site.seen(1)["RANK"], site.seen(1)["PET_NNODES"]) == ("worker", "1", "3")
    assert "10.0.0.2 learner-training-77-2\n" in (site.home / "training-77" / "hosts").read_text()


def test_slurm_export_exits_with_status_of_learner_and_keeps_log(site: Site) -> None:
    done = site.run(export(manifest("echo said; exit 3")).text)
    assert (done.returncode, done.stdout) == (3, "said\n")
    assert (site.home / "training-77/logs/learner-1/training-log.txt").read_text() == "said\n"


@pytest.mark.parametrize("mode", ["555", "300", "000"])
@pytest.mark.parametrize("status", [0, 3])
def test_slurm_export_removes_temporary_directory_with_read_only_directories(
    site: Site, mode: str, status: int
) -> None:
    outside, temporary = site.base / "outside", site.base / "out-tmp"
    temporary.mkdir()
    outside.mkdir(mode=0o555)
    made = f"mkdir -p go/pkg/mod; touch go/pkg/mod/x; ln -s {outside} go/link; chmod {mode} go/pkg/mod go/pkg go"
    done = site.run(export(manifest(f'cd "$OUT"-tmp/*; {made}; exit {status}')).text, TMPDIR=str(temporary))
    assert (done.returncode, done.stderr) == (status, "")
    assert list(temporary.iterdir()) == []
    assert outside.stat().st_mode & 0o777 == 0o555


def test_slurm_export_binds_data_directory_and_copies_results(site: Site, tmp_path: Path) -> None:
    data = tmp_path / "shared"
    (data / "in").mkdir(parents=True)
    (data / "in" / "x").write_text("input")
    stores = f"""
    data_stores:
      - id: a
        type: mount_volume
        connection: {{type: host_mount, path: "{data}"}}
        training_data: {{container: in}}
        training_results: {{container: out}}
    """
    done = site.run(export(manifest("cat $DATA_DIR/x; echo made > $RESULT_DIR/y", more=stores)).text)
    assert (done.returncode, done.stdout) == (0, "input"), done.stderr
    assert (data / "out" / "training-77" / "y").read_text() == "made\n"
    assert f"{data}/in:/mnt/data/in:ro" in site.calls()[0]["binds"]


def test_slurm_export_writes_s3_transfers_as_comments_without_credentials(site: Site) -> None:
    stores = """
    data_stores:
      - id: s
        type: s3_datastore
        connection: {auth_url: "https://s3.example.org", user_name: "AKIA", password: "hidden-one"}
        training_data: {container: in}
        training_results: {container: out}
    """
    text = export(manifest(more=stores)).text
    moved = [line for line in text.splitlines() if "s3 sync" in line]
    assert len(moved) >= 2 and all(line.startswith("# aws --endpoint-url https://s3.example.org ") for line in moved)
    assert "hidden-one" not in text and "AKIA" not in text
    assert site.run(text).returncode == 0


def test_slurm_export_runs_command_as_script_and_counts_its_lines(site: Site) -> None:
    command = "# why\ncat <<E\n  - it's\nE\necho a\n  -b\nmissing-7\nexit 3\n"
    done = site.run(export(manifest(command)).text)
    assert done.returncode == 3
    assert done.stdout.splitlines() == ["  - it's", "a -b", "learner: line 7: missing-7: command not found"]


def test_slurm_export_sets_sweep_variables_of_array_task(site: Site) -> None:
    made = export(manifest(more="batch: {sweep: [{LR: 0.1}, {LR: 'a b'}]}\n"))
    assert options(made)["array"] == "0-1"
    done = site.run(made.text, SLURM_ARRAY_JOB_ID="70", SLURM_ARRAY_TASK_ID="1")
    assert done.returncode == 0, done.stderr
    seen = site.seen()
    assert (seen["LR"], seen["FFDL_ARRAY_INDEX"], seen["TRAINING_ID"]) == ("a b", "1", "training-70_1")


def test_slurm_export_writes_sbatch_options_of_manifest() -> None:
    more = """
    gpus: 2
    gpu_type: a100
    batch: {time: 2h, partition: gpu, account: vision, hold: true, slurm: {args: [--nice=5, --exclusive]}}
    """
    made = export(manifest(learners=2, more=more), settings={"qos": "long"})
    assert options(made) == {
        "job-name": "digits", "nodes": "2", "ntasks": "2", "ntasks-per-node": "1", "cpus-per-task": "2", "mem": "1024M",
        "gres": "gpu:a100:2", "time": "02:00:00", "partition": "gpu", "account": "vision", "qos": "long", "hold": None,
        "nice": "5", "exclusive": None, "signal": "USR2@60",
    }  # fmt: skip
    assert 'exec --containall --no-home --workdir "$TMP" --nv' in made.text


def test_slurm_export_reports_fate_of_each_manifest_key() -> None:
    more = "batch: {time: 2h, retry: {failures: 2}, placement: pack, sweep: [{A: 1}]}\n"
    judged = {one.text: one for one in export(manifest(more=more)).judged}
    assert judged["name"].fate is Fate.MAPPED and judged["name"].line == 1
    assert judged["batch.retry"].fate is Fate.DROPPED and judged["batch.retry"].reason
    assert judged["batch.placement"].fate is Fate.APPROXIMATED
    assert all(one.reason for one in judged.values() if one.fate is not Fate.MAPPED)
    keys = {*ManifestBlock.model_fields, *(f"batch.{name}" for name in BatchBlock.model_fields)} - {"batch"}
    assert sorted(keys - set(KEY_FATES)) == []


def test_slurm_export_rejects_two_data_stores_with_same_target() -> None:
    with pytest.raises(CannotConvert, match="two data stores would both"):
        store = "{id: %s, type: mount_volume, connection: {type: host_mount, path: /d}, training_data: {container: x}}"
        export(manifest(more=f"data_stores: [{store % 'a'}, {store % 'b'}]\n"))


STEPS = """\
name: digits
learners: 3
cpus: 8
gpus: 4
framework: {name: custom, version: "docker://a/b:1", command: bash job.sh}
batch:
  slurm_environment: true
  env: {SLURM_NTASKS_PER_NODE: "4", SLURM_CPUS_PER_TASK: "2", SLURM_NNODES: "3", A: "it's"}
  secrets: {TOKEN: "${secret:hub}"}
  roles:
    batch: {learners: 1}
    node: {learners: 2, command: take-steps bash job.sh}
"""


def test_slurm_export_runs_script_with_own_steps_once_on_first_node(site: Site) -> None:
    made = export(STEPS, settings={"partition": "gpu", "account": "vision"})
    assert options(made) == {
        "job-name": "digits", "nodes": "3", "ntasks-per-node": "4", "cpus-per-task": "2", "gres": "gpu:4",
        "partition": "gpu", "account": "vision",
    }  # fmt: skip
    (site.home / "job.sh").write_text('echo "$A $TOKEN"; srun --ntasks=2 sh -c "echo task \\$SLURM_PROCID"; exit 3\n')
    done = site.run(made.text, TOKEN="x y")
    assert (done.returncode, done.stderr) == (3, "")
    assert sorted(done.stdout.splitlines()) == ["it's x y", "task 0", "task 1"]
    assert (site.home / "training-77/logs/learner-1/training-log.txt").read_text() == done.stdout
    assert "take-steps" not in made.text and not (site.base / "calls").exists()
    fates = {one.text: one.fate for one in made.judged}
    assert (fates["framework.version"], fates["framework.command"]) == (Fate.DROPPED, Fate.MAPPED)


def test_slurm_export_forwards_signals_to_script_with_own_steps(site: Site) -> None:
    script = "trap 'echo caught; exit 4' USR1\nkill -s USR1 $PPID\nsleep 120 >/dev/null 2>&1 & wait\n"
    (site.home / "job.sh").write_text(script)
    done = site.run(export(STEPS).text, TOKEN="x")
    assert (done.returncode, done.stdout) == (4, "caught\n")


@pytest.mark.parametrize(
    ("old", "new", "contained"),
    [
        ("", "", False),
        ('version: "docker://a/b:1"', "version: custom", False),
        ("take-steps bash job.sh", "sleep infinity", True),
        ("slurm_environment: true", "slurm_environment: false", True),
    ],
)
def test_slurm_export_uses_container_only_for_script_without_own_steps(old: str, new: str, contained: bool) -> None:
    assert ("$APPTAINER" in export(STEPS.replace(old, new)).text) == contained
