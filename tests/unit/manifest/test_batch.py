"""`batch:`, our extension."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.job.elastic import Elastic, LearningRate
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    Egress,
    JobSpec,
    NetworkLevel,
    Notify,
    Placement,
    Restart,
    Retry,
    Role,
)
from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.manifest import Defaults
from tests.unit.manifest.samples import CORPUS, MINIMAL, errors, notes, parse, read, warnings


def batch(text: str) -> BatchOptions:
    return read(f"{MINIMAL}batch: {text}\n").batch


def test_batch_block_reads_every_option_and_survives_codec() -> None:
    job = read((CORPUS / "good" / "batch-full.yml").read_bytes())
    got = job.batch
    assert got == BatchOptions(
        time_s=36 * 3600, profile="big", partition="gpu,gpu-long", account="physics", qos="high", constraint="ib&ssd",
        reservation="maintenance", priority="100", preemptible=True, placement=Placement.PACK,
        network=NetworkLevel.EGRESS, egress=(Egress("data.example.org", 443), Egress("192.0.2.7", 80)),
        env={"EPOCHS": "10", "GREETING": "it's $(id) %j", "EMPTY": ""},
        secrets={"API_TOKEN": "${secret:wandb}", "OTHER": "${env:OTHER}"},
        checkpoint=Checkpoint("USR1", 120, 600, True), retry=Retry(3, 10, 2, 0, 250.5), restart=Restart.LEARNER,
        roles={
            "ps": Role(1, None, 0.0, 8 * 1000**3, "", True),
            "worker": Role(3, None, None, None, "python worker.py", False),
        },
        array="0-9%2",
        notify=Notify("me@example.org", ("END", "FAIL"), "https://hooks.example.org/x"),
        slurm_args=("--exclusive", "--switches=1"), kubernetes={"priorityClassName": "batch"},
        nodelist="node[01-04]", exclude="node05", dependency="afterok:training-0a1b2c3d4", begin="now+1hour",
        hold=False, requeue=True, signal="USR1@120", comment="a remark", output="slurm-%j.out",
    )  # fmt: skip
    assert job.resources.gres == {"npu": 2}
    assert job.sources["batch.retry"] == "manifest:24"
    assert from_plain(JobSpec, to_plain(job)) == job


def test_batch_block_equals_domain_defaults_when_empty() -> None:
    assert read(MINIMAL).batch == batch("") == batch("{env: , roles: , notify: , network: }") == BatchOptions()


@pytest.mark.parametrize(
    ("learners", "batch_text", "count"),
    [
        ("", "", 1),
        ("", "batch: {roles: {ps: {learners: 2}, worker: {learners: 3}}}", 5),
        ("", "batch: {roles: {chief: {}, worker: {learners: 3}}}", 4),
        ("learners: 4", "batch: {roles: {chief: {}, worker: {learners: 3}}}", 4),
        ("learners: 4", "", 4),
    ],
)
def test_batch_roles_determine_learner_count_its_source_and_services(
    learners: str, batch_text: str, count: int
) -> None:
    job = read(f"{MINIMAL}{learners}\n{batch_text}\n")
    assert job.resources.learners == count
    assert job.sources.get("learners") == ("manifest:4" if learners else "manifest:5" if batch_text else "site default")
    assert [role.service for role in job.batch.roles.values()] == [name == "ps" for name in job.batch.roles]


def test_batch_roles_reject_conflicting_learner_count() -> None:
    (message,) = errors(parse(MINIMAL + "learners: 2\nbatch: {roles: {worker: {learners: 3}}}\n"))
    assert "learners: 2 learners, but the roles have 3 together (leave it out, or write learners: 3)" in message
    parsed = parse(MINIMAL + "batch: {roles: {worker: {learners: 3}}}\n", options={"learners": "2"})
    assert [finding.path for finding in parsed.findings if finding.severity == "error"] == ["--learners"]


@pytest.mark.parametrize(
    ("written", "service"), [("ps: {}", True), ("ps: {service: false}", False), ("w: {service: yes}", True)]
)
def test_batch_role_service_flag_defaults_to_true_only_for_ps(written: str, service: bool) -> None:
    job = read(f"{MINIMAL}batch: {{roles: {{{written}, worker: {{}}}}}}\n")
    assert next(iter(job.batch.roles.values())).service is service


@pytest.mark.parametrize(
    ("written", "seconds"), [("90", 5400), ("'90'", 5400), ("1:30", 90), ("1:30:00", 5400), ("1-0", 86400)]
)
def test_batch_time_is_read_as_text_and_not_as_yaml_number_or_date(written: str, seconds: int) -> None:
    assert batch(f"{{time: {written}}}").time_s == seconds


@pytest.mark.parametrize(
    ("written", "value"), [("yes", True), ("on", True), ("TRUE", True), ("'1'", True), ("n", False), ("off", False)]
)
def test_batch_flag_accepts_boolean_spellings(written: str, value: bool) -> None:
    assert batch(f"{{requeue: {written}}}").requeue is value


@pytest.mark.parametrize("level", list(NetworkLevel))
def test_batch_network_accepts_every_level(level: NetworkLevel) -> None:
    extra = ", allow: ['h:1']" if level is NetworkLevel.EGRESS else ""
    assert batch(f"{{network: {{level: {level}{extra}}}}}").network is level
    if not extra:
        assert batch(f"{{network: {level}}}").network is level


@pytest.mark.parametrize(
    "text", ["'shard:2,license:matlab:1,example.com/npu:3'", "{shard: 2, 'license:matlab': '1', example.com/npu: 3}"]
)
def test_batch_gres_accepts_text_and_mapping_with_kubernetes_resource_names(text: str) -> None:
    wanted = {"shard": 2, "license:matlab": 1, "example.com/npu": 3}
    assert read(f"{MINIMAL}batch: {{gres: {text}}}\n").resources.gres == wanted


@pytest.mark.parametrize(("text", "part"), [
    ("{time: 0}", "batch.time: a time limit must be more than zero"),
    ("{time: [1]}", "batch.time: one text is needed here, not a list"),
    ("{network: egress}", "m.yml:4:18: error: batch.network: level egress needs destinations"),
    ("{network: {allow: ['h:1']}}", "batch.network.allow: destinations mean something at level egress only"),
    ("{network: {level: egress, allow: [h]}}", "batch.network.allow[0]: 'h' is not a destination"),
    ("{network: {level: egress, allow: ['h:99999']}}", "is not a destination"),
    ("{network: {level: egress, allow: 'h:1'}}", "batch.network.allow: a list is needed here, not a single value"),
    ("{network: [job]}", "batch.network: a mapping is needed here, not a list"),
    ("{placement: near}", "batch.placement: 'near' is not known here (write one of node, pack, spread)"),
    ("{hold: perhaps}", "batch.hold: 'perhaps' is neither true nor false"),
    ("{env: {1A: x}}", "batch.env.1A: '1A' cannot be the name of a variable"),
    ("{env: {A: [x]}}", "batch.env.A: one text is needed here, not a list"),
    ("{env: [A]}", "batch.env: a mapping is needed here, not a list"),
    ('{env: {A: "a\\0b"}}', "batch.env.A: the text contains a NUL character"),
    ("{checkpoint: {signal: NOPE}}", "batch.checkpoint.signal: 'NOPE' is not a signal"),
    ("{checkpoint: {grace_s: 1.5}}", "batch.checkpoint.grace_s: '1.5' is not a whole number"),
    ("{retry: {failures: -1}}", "batch.retry.failures: '-1' is too small (write a whole number from 0 up)"),
    ("{retry: {gpu_hours: -1}}", "batch.retry.gpu_hours: '-1' is not a valid number of GPU-hours (write a"),
    ("{retry: {gpu_hours: lots}}", "batch.retry.gpu_hours: 'lots' is not a number"),
    ("{retry: {gpu_hours: 1e10}}", "batch.retry.gpu_hours: '1e10' GPU-hours are more than any machine has"),
    ("{roles: {ps: {learners: 0}}}", "batch.roles.ps.learners: '0' is too small"),
    ("{roles: {worker: {service: true}}}", "batch.roles: every role is a service"),
    ("{restart: node}", "batch.restart: 'node' is not known here (write one of job, learner)"),
    ("{roles: {ps: 2}}", "batch.roles.ps: a mapping is needed here, not a single value"),
    ("{slurm: {args: '--x'}}", "batch.slurm.args: a list is needed here, not a single value"),
    ("{slurm: {args: ['-N2']}}", "'-N2' is not a long sbatch option"),
    ("{slurm: {args: ['--wrap=id']}}", "--wrap cannot be passed on (it is an option of ffdl-submit)"),
    ("{slurm: {args: ['--nosuch']}}", "--nosuch is not among the options that may be passed on (allowed are "),
    ("{slurm: {args: ['--mem=1G']}}", "--mem has a key of its own (use memory)"),
    ('{slurm: {args: ["--hint=a\\nb"]}}', "contains a line break"),
    ("{gres: {shard: 1.5}}", "m.yml:4:23: error: batch.gres.shard: '1.5' is not a count of a resource"),
    ("{gres: {shard: -1}}", "batch.gres.shard: '-1' is not a count of a resource (write a whole number from 1 up, or "
     "one with K, M, G, T or P)"),
    ("{gres: {shard: }}", "batch.gres.shard: '' is not a count of a resource"),
    ("{gres: {shard: 0}}", "batch.gres.shard: 0 asks for nothing (leave it out"),
    ("{gres: {shard: [1]}}", "batch.gres.shard: one text is needed here, not a list"),
    ("{gres: 'shard:0'}", "batch.gres: 0 asks for nothing"),
    ("{gres: {'a b': 1}}", "batch.gres.a b: 'a b' is not the name of a resource"),
    ("{gres: {'a:': 1}}", "'a:' is not the name of a resource"),
    ("{gres: {':3': 1}}", "':3' is not the name of a resource"),
    ("{gres: {'npu ': 1}}", "'npu ' is not the name of a resource"),
    *((f"{{gres: '{wrong}'}}", f"batch.gres: '{wrong}' is not a generic resource") for wrong in (":3", "npu:", "npu:-1",
      "npu:a:b:2", "npu::2", "none:2:3:x", "-npu:1", "n@u:1", "gres/gpu:1", "/npu:1", "a.b/:1")),
    ("{gres: ':3'}", "m.yml:4:15: error: batch.gres: ':3' is not a generic resource (write name[:type]:count"),
    ("{gres: 'npu:1.5'}", "batch.gres: '1.5' is not a count of a resource"),
    ("{gres: 'npu:1,npu:2'}", "batch.gres: 'npu' is named twice"),
    ("{network: {level: egress, allow: ['a:1', '[::1]:80']}}", "m.yml:4:49: error: batch.network.allow[1]: '::1'"),
    (f"{{network: {{level: egress, allow: {[f'h{n}:1' for n in range(17)]}}}}}", "batch.network.allow[16]: 17 dest"),
    ("{network: {level: egress}}", "m.yml:4:26: error: batch.network.level: level egress needs destinations"),
    ("{gres: {shard: 1, mps: 2}}", "m.yml:4:31: error: batch.gres.mps: shard, mps: shares of a GPU"),
    ("{roles: {a: {gpus: 1.5}}}", "m.yml:4:27: error: batch.roles.a.gpus: 1.5 GPUs: write a whole number"),
    ("{dependency: afterok}", "batch.dependency: 'afterok' names no job"),
    ("{signal: 'USR1 120'}", "batch.signal: 'USR1 120' is not sbatch's form of a signal"),
    ('{account: "a\\0"}', "batch.account: the text contains a NUL character"),
    ('{output: "a\\rb"}', "batch.output: 'a\\rb' contains a line break"),
    *((f"{{notify: {{webhook: '{address}'}}}}", f"batch.notify.webhook: '{address}' is not a web address (write https:")
      for address in ("https://[::1", "https://a]b", "https://h:99999", "https://h:x", "https://", "https://\u2100/x")),
    ("words", "batch: a mapping is needed here, not a single value"),
])  # fmt: skip
def test_batch_block_rejects_invalid_value_at_its_line(text: str, part: str) -> None:
    lines = errors(parse(f"{MINIMAL}batch: {text}\n"))
    assert len(lines) == 1 and lines[0].startswith("m.yml:4:") and part in lines[0]


@pytest.mark.parametrize(
    ("written", "hours"), [("", None), ("gpu_hours: ~", None), ("gpu_hours: 0", 0.0), ("gpu_hours: 2_000_000", 2e6)]
)
def test_batch_retry_reads_gpu_hours_budget(written: str, hours: float | None) -> None:
    assert batch(f"{{retry: {{{written}}}}}").retry == Retry(gpu_hours=hours)


@pytest.mark.parametrize(("written", "name"), [("SIGUSR1", "USR1"), ("usr2", "USR2"), ("15", "TERM")])
def test_batch_checkpoint_signal_accepts_names_and_numbers(written: str, name: str) -> None:
    assert batch(f"{{checkpoint: {{signal: {written}}}}}").checkpoint.signal == name


LONG = "x" * 131_072


@pytest.mark.parametrize(
    ("block", "line", "found"),
    [
        ("slurm: {args: [--exclusive,\n --nosuch]}", 5, "batch.slurm.args[1]: --nosuch is not among the options"),
        ("slurm: {args: [--exclusive,\n --deadline=x]}", 5, "batch.slurm.args[1]: 'x' is not a time"),
        ("slurm: {args: [--exclusive,\n [a]]}", 5, "batch.slurm.args[1]: one text is needed here, not a list"),
        ("notify: {events: [END,\n LUNCH]}", 5, "batch.notify.events[1]: 'LUNCH' is not an event"),
        ("env: {A: 1,\n a-b: 2}", 5, "batch.env.a-b: 'a-b' cannot be the name of a variable"),
        ("env: {A: 1,\n UID: 2}", 5, "batch.env.UID: UID belongs to the shell"),
        (f"env: {{A: 1,\n B: {LONG}}}", 5, "batch.env.B: B has 131074 bytes"),
        ("secrets: {A: '${secret:a}',\n UID: '${secret:a}'}", 5, "batch.secrets.UID: UID belongs to the shell"),
        (f"sweep: {{A: [1,\n {LONG}]}}", 5, "batch.sweep.A[1]: A has 131074 bytes"),
        (f"sweep: [{{A: 1}},\n {{A: {LONG}}}]", 5, "batch.sweep[1].A: A has 131074 bytes"),
        ("gres: {npu: 1,\n shard: 0}", 5, "batch.gres.shard: 0 asks for nothing"),
        ("network: {level: egress, allow: ['a.b:1',\n 'c']}", 5, "batch.network.allow[1]: 'c' is not a destination"),
        ("roles: {a: {},\n b: {cpus: -1}}", 5, "batch.roles.b.cpus: '-1' is not a valid number of CPUs"),
    ],
)
def test_batch_finding_names_the_line_of_the_member(block: str, line: int, found: str) -> None:
    (error,) = errors(parse(f"{MINIMAL}batch: {{{block}}}\n"))
    assert error.startswith(f"m.yml:{line}:") and f"error: {found}" in error


@pytest.mark.parametrize(
    ("events", "read_events"),
    [("'END,fail'", ("END", "FAIL")), ("[END, '', none]", ("END",)), ("[none]", ("NONE",)), ("[]", ()), ("", ())],
)
def test_batch_notify_reads_events_of_text_and_list(events: str, read_events: tuple[str, ...]) -> None:
    assert batch(f"{{notify: {{events: {events}}}}}").notify.events == read_events


def test_lines_of_manifest_name_members_and_options() -> None:
    text = f"{MINIMAL}batch:\n  partition: a\n  slurm:\n    args:\n    - --exclusive\n    - --contiguous\n"
    lines = parse(text, {"partition": "b"}).lines
    assert {path: lines[path] for path in ("batch", "batch.slurm.args[1]", "batch.partition", "framework.name")} == {
        "batch": 4, "batch.slurm.args[1]": 9, "batch.partition": "--partition", "framework.name": 3
    }  # fmt: skip


@pytest.mark.parametrize("text", ["singleton", "afterok:1:2,afterany:3", "after:5+10", "afternotok:7?afterok:8"])
def test_batch_dependency_accepts_slurm_expressions(text: str) -> None:
    assert batch(f"{{dependency: '{text}'}}").dependency == text


@pytest.mark.parametrize(
    ("name", "whose"), [("APPTAINER_BIND", "container runtime"), ("UID", "shell"), ("IFS", "shell")]
)
def test_batch_env_secrets_and_sweep_reject_variable_of_container_or_shell(name: str, whose: str) -> None:
    for block in (f"env: {{{name}: x}}", f"secrets: {{{name}: '${{secret:x}}'}}", f"sweep: {{{name}: [1]}}"):
        (line,) = errors(parse(MINIMAL + f"batch: {{{block}}}\n"))
        assert f"{name} belongs to the {whose}" in line and "leave it out" in line


ELASTIC = "max_learners: 4, batch: {min: 32, max: 512, per_gpu_max: 64}"


def elastic(text: str) -> Elastic | None:
    return read(f"{MINIMAL}learners: 2\nbatch: {{elastic: {{{text}}}}}\n").batch.elasticity


def test_batch_elastic_reads_bounds_with_defaults() -> None:
    assert elastic(ELASTIC) == Elastic(1, 4, 32, 512, 64, 32, 1.0, "default", LearningRate.LINEAR)
    full = "min_learners: 2, max_learners: '0x4', weight: 2.5, pool: night.1, learning_rate: SQRT, "
    assert elastic(full + "batch: {min: 32, max: 512, per_gpu_max: 64, start: 128}") == Elastic(
        2, 4, 32, 512, 64, 128, 2.5, "night.1", LearningRate.SQRT
    )
    assert elastic(f"{ELASTIC}, pool: , weight: , learning_rate: , min_learners: ") == elastic(ELASTIC)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("", "max_learners", "this is not set (write the maximum number of learners that the job can use)"),
        ("max_learners: ", "max_learners", "this is not set (write the maximum number of learners"),
        ("max_learners: 4", "batch", "this is not set (write batch: {min: 32, max: 512, per_gpu_max: 64}"),
        ("max_learners: 4, batch: {min: 1, max: 9}", "batch.per_gpu_max", "this is not set (write the largest batch"),
        ("max_learners: 4, batch: {min: 1, per_gpu_max: 9}", "batch.max", "this is not set"),
        ("max_learners: 4, batch: {min: , max: 1, per_gpu_max: 9}", "batch.min", "this is not set"),
        ("max_learners: 4, batch: 32", "batch", "a mapping is needed here, not a single value"),
        (ELASTIC.replace("4", "0"), "max_learners", "'0' is too small"),
        (f"{ELASTIC}, weight: 0", "weight", "'0' is not a weight (write a number above 0, up to 1000000)"),
        (f"{ELASTIC}, weight: 1e9", "weight", "'1e9' is not a weight"),
        (f"{ELASTIC}, weight: nan", "weight", "'nan' is not a number"),
        (f"{ELASTIC}, pool: a b", "pool", "'a b' cannot be the name of a pool"),
        (f"{ELASTIC}, pool: ../x", "pool", "'../x' cannot be the name of a pool"),
        (f"{ELASTIC}, learning_rate: cubic", "learning_rate", "'cubic' is not known here (write one of linear, sqrt, "),
        (f"min_learners: 3, {ELASTIC}", "", "learners: 2 is not in the range of batch.elastic, 3 to 4"),
    ],
)
def test_batch_elastic_rejects_invalid_value_at_its_line(text: str, path: str, words: str) -> None:
    lines = errors(parse(f"{MINIMAL}learners: 2\nbatch:\n  elastic: {{{text}}}\n"))
    (line,) = [line for line in lines if words in line]
    assert line.startswith("m.yml:6:" if path else "m.yml:4:")
    assert f"batch.elastic.{path}: " in line if path else "error: learners: " in line


def test_batch_elastic_rejects_missing_value() -> None:
    lines = errors(parse(f"{MINIMAL}batch:\n  elastic:\n"))
    assert [line.partition(": error: ")[2].partition(":")[0] for line in lines] == [
        "batch.elastic.max_learners",
        "batch.elastic.batch",
    ]


def test_batch_elastic_warns_of_batch_that_largest_size_cannot_hold() -> None:
    (line,) = warnings(parse(f"{MINIMAL}batch:\n  elastic: {{{ELASTIC}}}\n"))
    assert (
        line.startswith("m.yml:5:")
        and "batch.max: is never used: with max_learners 4, GPUs hold a batch of 256" in line
    )
    assert warnings(parse(f"{MINIMAL}batch:\n  elastic: {{{ELASTIC.replace('512', '256')}}}\n")) == []


def test_batch_elastic_produces_a_note_unless_its_pool_is_configured() -> None:
    for text, pools, noted in (("", [], True), ("", ["default"], False), (", pool: night", ["default"], True)):
        parsed = parse(f"{MINIMAL}batch: {{elastic: {{{ELASTIC}{text}}}}}\n", defaults=Defaults(pools=frozenset(pools)))
        assert any("the job keeps its size" in line for line in notes(parsed)) is noted


def test_batch_elastic_note_names_unknown_pool_and_the_configured_ones() -> None:
    text = f"{MINIMAL}batch:\n  elastic:\n    pool: nigth\n    {ELASTIC.replace(', batch', chr(10) + '    batch')}\n"
    (line,) = notes(parse(text, defaults=Defaults(pools=frozenset(["night", "default"]))))
    assert line.startswith("m.yml:6:") and "batch.elastic.pool: pool 'nigth' is not configured here" in line
    assert "the job keeps its size" in line and "configured pools: default, night" in line


def test_batch_elastic_refuses_env_of_its_own_variables_only_if_elastic() -> None:
    text = f"{MINIMAL}batch: {{env: {{BATCH_SIZE: 8}}, secrets: {{LEARNING_RATE_SCALE: '${{secret:x}}'}}"
    assert errors(parse(f"{text}}}\n")) == []
    lines = errors(parse(f"{text}, elastic: {{{ELASTIC}}}}}\n"))
    assert [line.partition("batch.")[2].partition(":")[0] for line in lines] == [
        "env.BATCH_SIZE", "secrets.LEARNING_RATE_SCALE",
    ]  # fmt: skip


def test_batch_options_for_other_backend_produce_a_note() -> None:
    parsed = parse(f"{MINIMAL}batch: {{kubernetes: {{priorityClassName: batch}}, slurm: {{args: [--exclusive]}}}}\n")
    assert warnings(parsed) == []
    (line,) = (line for line in notes(parsed) if "batch" in line)
    assert "batch.kubernetes: this is for Kubernetes; other backends leave it alone" in line


_WORDS = (None, frozenset[str](), frozenset({"kubernetes", "profile"}))


def test_batch_profile_and_kubernetes_findings_depend_on_backend() -> None:
    text = f"{MINIMAL}batch: {{profile: big, kubernetes: {{priority_class: high}}}}\n"
    unknown, without, able = (parse(text, defaults=Defaults(own_keys=words)) for words in _WORDS)
    assert [line for line in notes(unknown) if "profiles are those of the site" in line] and warnings(unknown) == []
    (line,) = warnings(without)
    assert "batch.profile: this backend has no profiles: this changes nothing" in line
    assert [line for line in notes(without) if "batch.kubernetes: this is for Kubernetes" in line]
    assert [line for line in (*warnings(able), *notes(able)) if "batch." in line] == []


@pytest.mark.parametrize("kind", ["logger", "none", "''", "tensorboard", "emetrics_file"])
def test_evaluation_metrics_of_every_type_produce_no_finding(kind: str) -> None:
    parsed = parse(f"{MINIMAL}evaluation_metrics: {{type: {kind}}}\n")
    assert [line for line in (*errors(parsed), *warnings(parsed), *notes(parsed)) if "metrics" in line] == []


def test_batch_block_produces_no_finding_for_empty_entries() -> None:
    parsed = parse(f"{MINIMAL}batch: {{secrets: , profile: , kubernetes: {{}}, elastic: , notify: {{mail: me}}}}\n")
    assert warnings(parsed) == [] == [line for line in notes(parsed) if "batch" in line]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("{gpu_below: 5%, for: 30m}", IdleLimit(0.05, 1800)),
        ("{}", IdleLimit(0.05, 1800)),
        ("{gpu_below: 12.5, for: 2h}", IdleLimit(0.125, 7200)),
        ("{for: UNLIMITED}", None),
        ("", None),
    ],
)
def test_idle_reads_share_in_per_cent_and_time(text: str, limit: IdleLimit | None) -> None:
    got = batch(f"{{idle: {text}}}")
    assert got.idle == limit
    assert from_plain(BatchOptions, to_plain(got)) == got


@pytest.mark.parametrize("share", ["0", "101%", "five", "-5%", "1e1"])
def test_idle_refuses_share_that_is_no_percentage(share: str) -> None:
    [error] = errors(parse(f"{MINIMAL}batch: {{idle: {{gpu_below: {share}}}}}\n"))
    assert "is not a percentage above 0 and up to 100" in str(error)
