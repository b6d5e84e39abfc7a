"""Command line over manifest over environment over site."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job.spec import Egress, NetworkLevel
from ffdl_batch.domain.quantity import UNLIMITED_S, WHOLE_NODE
from ffdl_batch.domain.sbatch.script_options import SbatchOption, scheduling_options
from tests.unit.manifest.samples import FRAMEWORK, MINIMAL, errors, parse, read, warnings


def test_options_override_manifest_and_environment_fills_gaps() -> None:
    text = MINIMAL + "batch: {partition: manifest, qos: manifest}\n"
    parsed = parse(
        text, options={"partition": "flag"}, environment={"partition": "env", "qos": "env", "account": "env"}
    )
    assert parsed.spec is not None
    got = parsed.spec.batch
    assert (got.partition, got.qos, got.account) == ("flag", "manifest", "env")
    sources = parsed.spec.sources
    assert sources["batch.partition"] == "command line"
    assert sources["batch.qos"] == "manifest:4"
    assert sources["batch.account"] == "environment SBATCH_ACCOUNT"


@pytest.mark.parametrize(
    ("option", "text", "key", "value"),
    [
        ("time", "1:00:00", "time_s", 3600),
        ("time", "90", "time_s", 5400),
        ("partition", "a b", "partition", "a b"),
        ("account", "-x", "account", "-x"),
        ("qos", "$(id)", "qos", "$(id)"),
        ("constraint", "a&b", "constraint", "a&b"),
        ("reservation", "r", "reservation", "r"),
        ("nodelist", "n[1-2]", "nodelist", "n[1-2]"),
        ("exclude", "n3", "exclude", "n3"),
        ("dependency", "afterok:training-0a1b2c3d4", "dependency", "afterok:training-0a1b2c3d4"),
        ("begin", "now+1hour", "begin", "now+1hour"),
        ("priority", "TOP", "priority", "TOP"),
        ("hold", "", "hold", True),
        ("requeue", "", "requeue", True),
        ("no-requeue", "", "requeue", False),
        ("signal", "B:USR1@60", "signal", "B:USR1@60"),
        ("comment", "it's", "comment", "it's"),
        ("output", "%j.out", "output", "%j.out"),
        ("network", "job", "network", NetworkLevel.JOB),
    ],
)
def test_options_set_batch_field_with_sbatch_meaning(option: str, text: str, key: str, value: object) -> None:
    job = read(MINIMAL + "batch: {requeue: no, hold: no}\n", {option: text})
    assert getattr(job.batch, key) == value
    place = {"time_s": "time"}.get(key, key)
    assert job.sources[f"batch.{place}"] == "command line"


def test_options_ask_for_whole_node_no_limit_and_expedited_requeue() -> None:
    job = read(MINIMAL + "memory: 8GB\nbatch: {time: 5}\n", {"mem": "0", "time": "UNLIMITED", "requeue": "expedite"})
    assert (job.resources.memory_bytes, job.batch.time_s, job.batch.limit_s) == (WHOLE_NODE, UNLIMITED_S, None)
    assert (job.batch.requeue, job.batch.expedite) == (True, True)
    assert scheduling_options(job.batch) == [SbatchOption("time", "UNLIMITED"), SbatchOption("requeue", "expedite")]
    again = read(MINIMAL + "memory: all\nbatch: {time: infinite, requeue: Expedite}\n")
    assert (again.resources.memory_bytes, again.batch.time_s, again.batch.expedite) == (WHOLE_NODE, UNLIMITED_S, True)
    assert read(MINIMAL + "batch: {requeue: true}\n").batch.expedite is False


def test_options_pass_sbatch_options_and_replace_those_of_the_manifest() -> None:
    text = MINIMAL + "batch: {slurm: {args: [--nice=5, --contiguous]}}\n"
    assert read(text, {"nice": "", "exclusive": "user"}).batch.slurm_args == (
        "--contiguous",
        "--nice",
        "--exclusive=user",
    )
    parsed = parse(text, environment={"SBATCH_EXCLUSIVE": "mcs", "FFDL_NICE": "7"})
    assert parsed.spec is not None
    assert parsed.spec.batch.slurm_args == ("--nice=5", "--contiguous", "--exclusive=mcs")
    assert read(MINIMAL, {"segment": "4"}).batch.slurm_args == ("--segment=4",)


def test_gres_counts_may_have_units() -> None:
    job = read(MINIMAL + "batch: {gres: {lscratch: 200G}}\n")
    assert job.resources.gres == {"lscratch": 200 * 1024**3}
    assert read(MINIMAL, {"gres": "gpu:1,lscratch:2T,io:5kb"}).resources.gres == {"lscratch": 2 * 1024**4, "io": 5000}
    assert "'9000P' is not a number" in errors(parse(MINIMAL, {"gres": "lscratch:9000P"}))[0]


def test_roles_ask_for_whole_nodes_together() -> None:
    roles = "batch: {roles: {a: {memory: all}, b: {memory: 1GB}}}\n"
    assert "memory of their node, and others for a part" in errors(parse(MINIMAL + roles))[0]


@pytest.mark.parametrize(
    ("time", "meant"),
    [
        ("24:00", "'24:00' means 24 minutes, as in Slurm"),
        ("1:30", "'1:30' means 1 minute and 30 seconds, as in Slurm"),
        ("2:01", "'2:01' means 2 minutes and 1 second, as in Slurm"),
    ],
)
@pytest.mark.parametrize("given", ["manifest", "option", "variable"])
def test_time_of_minutes_and_seconds_gets_a_warning(given: str, time: str, meant: str) -> None:
    def found(text: str) -> list[str]:
        if given == "manifest":
            return warnings(parse(MINIMAL + f"batch: {{time: '{text}'}}\n"))
        place = {"time": text}
        return warnings(parse(MINIMAL, place) if given == "option" else parse(MINIMAL, environment=place))

    [warning] = found(time)
    assert meant in warning and f"write {time}:00 if you mean hours" in warning
    assert [found(clear) for clear in ("24:00:00", "1-24:00", "90", "90m", "UNLIMITED")] == [[]] * 5


def test_options_set_name_learners_and_cpus() -> None:
    job = read(MINIMAL, {"job-name": "other", "learners": "4", "cpus-per-task": "2"})
    assert (job.name, job.resources.learners, job.resources.cpus) == ("other", 4, 2)
    assert read(MINIMAL, {"cpus": "0.5"}).resources.cpus == 0.5
    assert read(FRAMEWORK, {"job-name": "only here"}).name == "only here"


@pytest.mark.parametrize(
    ("text", "size"), [("4000", 4000 * 1024**2), ("8G", 8 * 1024**3), ("1T", 1024**4), ("512K", 512 * 1024)]
)
def test_mem_option_uses_sbatch_units(text: str, size: int) -> None:
    assert read(MINIMAL, {"mem": text}).resources.memory_bytes == size


@pytest.mark.parametrize(
    ("text", "gpus", "gpu_type", "gres"),
    [
        ("gpu", 1, "old", {}),
        ("gpu:2", 2, "old", {}),
        ("gpu:v100:2", 2, "v100", {}),
        ("gpu:v100", 1, "v100", {}),
        ("gpu:v100:2,npu:3,fpga", 2, "v100", {"npu": 3, "fpga": 1}),
        ("gpu:1g.10gb:2", 2, "1g.10gb", {}),
        ("gpu:1g.10gb", 1, "1g.10gb", {}),
        ("npu:3", 8, "old", {"npu": 3}),
        ("bandwidth:0", 8, "old", {}),
        ("none", 0, "old", {}),
    ],
)
def test_gres_option_sets_gpus_gpu_type_and_other_resources(
    text: str, gpus: float, gpu_type: str, gres: dict[str, int]
) -> None:
    job = read(MINIMAL + "gpus: 8\ngpu_type: old\nbatch: {gres: {bandwidth: 1}}\n", {"gres": text})
    assert (job.resources.gpus, job.resources.gpu_type, dict(job.resources.gres)) == (gpus, gpu_type, gres)


def test_gres_variable_does_not_override_gpus_of_manifest() -> None:
    parsed = parse(MINIMAL + "gpus: 1\ngpu_type: a\n", environment={"gres": "gpu:b:9,npu:2"})
    assert parsed.spec is not None
    resources = parsed.spec.resources
    assert (resources.gpus, resources.gpu_type, resources.gres) == (1, "a", {"npu": 2})
    filled = parse(MINIMAL, environment={"SBATCH_GRES": "gpu:b:9"}).spec
    assert filled is not None and (filled.resources.gpus, filled.resources.gpu_type) == (9, "b")


def test_gpus_option_accepts_fraction_and_type() -> None:
    assert read(MINIMAL, {"gpus": "0.5"}).resources.gpus == 0.5
    job = read(MINIMAL, {"gpus": "v100:2", "gres": "gpu:2"})
    assert (job.resources.gpus, job.resources.gpu_type) == (2, "v100")


def test_mail_and_network_options_set_notification_and_egress() -> None:
    job = read(MINIMAL, {"mail-type": "END,FAIL", "mail-user": "me", "network": "egress:a:1,b:2"})
    assert (job.batch.notify.events, job.batch.notify.mail_user) == (("END", "FAIL"), "me")
    assert job.batch.egress == (Egress("a", 1), Egress("b", 2))


def test_export_option_is_recorded_as_source() -> None:
    assert read(MINIMAL, {"export": "ALL,X=1"}).sources["export"] == "command line"


def test_partition_option_overrides_aliased_batch_block() -> None:
    text = "x-batch: &b {partition: a}\nbatch: *b\n" + MINIMAL
    assert read(text, {"partition": "b"}).batch.partition == "b"


@pytest.mark.parametrize(("options", "line"), [
    ({"time": "soon"},
     "error: --time: 'soon' is not a time limit (write minutes, [days-]hours:minutes:seconds, or 2h30m)"),
    ({"mem": "lots"}, "error: --mem: 'lots' is not a memory size as sbatch takes it (write for example 4000 or 8G)"),
    ({"gres": "gpu:a:1,gpu:b:1"}, "error: --gres: a job has GPUs of one type (name one type, as gpu:v100:2)"),
    ({"gres": ":3"}, "error: --gres: ':3' is not a generic resource (write name[:type]:count, as gpu:v100:2)"),
    ({"gpus": "1.5"},
     "error: --gpus: 1.5 GPUs: write a whole number, or shares of a GPU below 1 (write 1, to which FfDL cut it)"),
    ({"network": "egress"}, "error: --network: level egress needs destinations (write egress:HOST:PORT)"),
    ({"gpus": "two"}, "error: --gpus: 'two' is not a number (write a number such as 2 or 0.5)"),
    ({"gpus": ":2"}, "error: --gpus: ':2' is not a number of GPUs (write [type:]number, as v100:2)"),
    ({"gpus": "1", "gres": "gpu:2"}, "error: --gpus: --gpus=1 and --gres=gpu:2 differ (give one)"),
    ({"learners": "0"}, "error: --learners: '0' is too small (write a whole number from 1 up)"),
    ({"cpus": ""}, "error: --cpus: a number is needed (write --cpus=1)"),
    ({"partition": "a\nb"}, "error: --partition: 'a\\nb' contains a line break (write it as one line of plain text)"),
    ({"network": "lan"}, "error: --network: 'lan' is not known here (write one of auto, none, job, egress, host)"),
    ({"nodes": "2"}, "error: --nodes: this option is not taken (set learners in the manifest)"),
    ({"partitoin": "x"}, "error: --partitoin: this option is not taken (did you mean --partition?)"),
    ({"wrap": "x"}, "error: --wrap: this option is not taken (it is an option of ffdl-submit)"),
    ({"job-name": ""}, "error: --job-name: Model definition name is not set (write `name: ` and a name for the job)"),
])  # fmt: skip
def test_options_error_names_the_invalid_option(options: dict[str, str], line: str) -> None:
    assert errors(parse(MINIMAL, options)) == [line]


def test_environment_error_names_the_invalid_variable() -> None:
    assert errors(parse(MINIMAL, environment={"time": "soon"}))[0].startswith("error: SBATCH_TIMELIMIT: 'soon'")
    assert errors(parse(MINIMAL, environment={"SBATCH_TIMELIMIT": "x"}))[0].startswith("error: SBATCH_TIMELIMIT: 'x'")
    assert errors(parse(MINIMAL, environment={"FFDL_LEARNERS": "0"}))[0].startswith("error: FFDL_LEARNERS: '0'")
    assert warnings(parse(MINIMAL, environment={"SBATCH_HINT": ""})) == [
        "warning: SBATCH_HINT: this variable sets nothing here and is ignored (unset it)"
    ]


def test_options_do_not_hide_error_in_batch_block() -> None:
    (line,) = errors(parse(MINIMAL + "batch: [a]\n", {"partition": "x"}))
    assert "batch: a mapping is needed here, not a list" in line
