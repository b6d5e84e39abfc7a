"""References to secrets: what is one, what is none, and names that mean one thing."""

from __future__ import annotations

import pytest

from tests.unit.manifest.samples import MINIMAL, errors, parse, warnings

STORE = (
    "data_stores:\n- id: s\n  type: s3_datastore\n  training_data: {{container: in}}\n"
    "  connection: {{auth_url: 'http://x', user_name: me-in-clear, password: '{}'}}\n"
)


@pytest.mark.parametrize("reference", ["${secret:a.b_c-1}", "${env:TOKEN}", "${file:/a/b.txt}", "${file:beside.txt}"])
def test_manifest_keeps_secret_env_and_file_references(reference: str) -> None:
    parsed = parse(f"{MINIMAL}batch: {{secrets: {{T: '{reference}'}}}}\n{STORE.format(reference)}")
    assert parsed.spec is not None and errors(parsed) == []
    assert parsed.spec.batch.secrets == {"T": reference}
    assert parsed.spec.data_stores[0].connection["password"] == reference
    assert set(parsed.inline_secrets) == {"s-user_name"} and reference in parsed.redacted_text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("${secret:my key}", "a reference is the whole value, without blanks"),
        ("Bearer ${secret:key}", "a reference is the whole value, without blanks"),
        ("${env:}", "a reference is the whole value, without blanks"),
        ("${secret:../up}", "'../up' cannot be a secret's name"),
        ("${secret:.hidden}", "'.hidden' cannot be a secret's name"),
        ("${env:A-B}", "'A-B' cannot be the name of a variable"),
        ("${secrt:key}", "'secrt' is not a kind of reference; did you mean secret?"),
        ("${SECRET:key}", "'SECRET' is not a kind of reference; did you mean secret?"),
        ("${files:/a/b}", "'files' is not a kind of reference; did you mean file?"),
        ("${vault:key}", "this is not a kind of reference; the kinds are secret, env, file"),
    ],
)
def test_manifest_rejects_malformed_reference(value: str, words: str) -> None:
    for text in (f"batch: {{secrets: {{T: '{value}'}}}}\n", STORE.format(value)):
        parsed = parse(MINIMAL + text)
        assert parsed.spec is None
        (line,) = errors(parsed)
        assert words in line and "write ${secret:NAME}, ${env:NAME} or ${file:PATH}" in line


@pytest.mark.parametrize(
    ("text", "place", "cure"),
    [
        (
            "batch:\n  env: {A: a,\n    B: '${file:x}'}\n",
            "6:8: warning: batch.env.B",
            "move the variable to batch.secrets",
        ),
        ("batch:\n  env:\n    B: 'x-${env:USER}'\n", "6:8: warning: batch.env.B", "move the variable to batch.secrets"),
        ("batch:\n  sweep: {A: [1,\n '${env:X}']}\n", "6:2: warning: batch.sweep.A[1]", "write the value"),
        ("batch:\n  sweep: [{A: '${secret:x}'}]\n", "5:15: warning: batch.sweep[0].A", "write the value"),
        (
            "batch:\n  slurm: {args: [--hint=compute_bound,\n '--wckey=${env:X}']}\n",
            "6:2: warning: batch.slurm.args[1]",
            "",
        ),
        ("batch:\n  partition: ${env:PARTITION}\n", "5:14: warning: batch.partition", "write the value"),
        ("batch:\n  roles: {a: {command: 'run ${file:x}'}}\n", "5:24: warning: batch.roles.a.command", "batch.secrets"),
        ("gpu_type: ${env:TYPE}\n", "4:11: warning: gpu_type", "write the value"),
        ("x-own: &own ${env:X}\nbatch: {comment: *own}\n", ": warning: batch.comment", "write the value"),
    ],
)
def test_manifest_warns_of_reference_where_none_is_read(text: str, place: str, cure: str) -> None:
    parsed = parse(MINIMAL + text)
    found = [line for line in warnings(parsed) if "references are read in batch.secrets" in line]
    found = [line for line in found if "x-own" not in line]
    assert parsed.spec is not None and len(found) == 1
    assert place in found[0] and cure in found[0]


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("cat ${file:x}", 1),
        ("run --file=a file.txt ${file:x}", 1),
        ("echo ${env:HOME} ${secret:x}", 1),
        ("file=a.txt; cp a ${file:2}", 0),
        ("for file in *; do mv $file ${file:3}; done", 0),
        ("echo $HOME ${A:-b}", 0),
    ],
)
def test_manifest_warns_of_reference_in_command_unless_script_has_the_variable(command: str, count: int) -> None:
    parsed = parse(MINIMAL.replace("command: run", f"command: '{command}'"))
    assert sum("framework.command: '${" in line and "left to bash" in line for line in warnings(parsed)) == count


def test_manifest_leaves_references_in_free_text_alone() -> None:
    group = "{regex: '${env:X}', scalars: {b: {type: INT, value: 1}}}"
    metrics = f"evaluation_metrics: {{type: regex_extractor, groups: {{a: {group}}}}}\n"
    parsed = parse(f"{MINIMAL}description: 'uses ${{env:X}}' # ${{file:y}}\n{metrics}")
    assert not [line for line in warnings(parsed) if "references are read" in line]


@pytest.mark.parametrize(
    ("store", "path"),
    [
        ("type: s3_datastore\n  training_data: {container: '${env:BUCKET}'}\n  connection: {auth_url: 'http://x'}",
         "8:30: error: data_stores[0].training_data.container"),
        ("type: s3_datastore\n  training_data: {container: a}\n  connection: {auth_url: '${env:URL}', region: a}",
         "9:26: error: data_stores[0].connection.auth_url"),
        ("type: s3_datastore\n  training_data: {container: a}\n  connection: {auth_url: 'http://x',\n"
         "   region: '${env:R}'}",
         "10:12: error: data_stores[0].connection.region"),
        ("type: swift_datastore\n  training_data: {container: a}\n  connection: {auth_url: 'http://x',\n"
         "   project_id: '${file:r}'}",
         "10:16: error: data_stores[0].connection.project_id"),
        ("type: fsspec_datastore\n  training_data: {container: a}\n  connection: {protocol: sftp, host: '${env:HOST}'}",
         "9:38: error: data_stores[0].connection.host"),
        ("type: host_mount\n  training_data: {container: a}\n  connection: {path: '${env:DATA}/in'}",
         "9:22: error: data_stores[0].connection.path"),
    ],
)  # fmt: skip
def test_manifest_rejects_reference_in_field_of_store_that_reads_none(store: str, path: str) -> None:
    (line,) = errors(parse(f"{MINIMAL}# 4\n# 5\ndata_stores:\n- {store}\n"))
    assert path in line and "is not read here; references are read in batch.secrets, credentials of data stores" in line


def test_manifest_reads_reference_in_option_of_fsspec_and_ignores_it_in_directory() -> None:
    data = "training_data: {container: a}"
    fsspec = f"{{id: a, type: fsspec_datastore, {data}, connection: {{protocol: abfs, account_name: '${{env:A}}'}}}}"
    mounted = f"{{id: b, type: host_mount, {data}, connection: {{path: /d, user_name: '${{secret:a}}'}}}}"
    assert errors(parse(f"{MINIMAL}data_stores:\n- {fsspec}\n- {mounted}\n")) == []


def test_manifest_rejects_secret_variable_without_value() -> None:
    (line,) = errors(parse(f"{MINIMAL}batch: {{secrets: {{T: ''}}}}\n"))
    assert "batch.secrets.T: the variable has no value" in line


def test_manifest_takes_dollar_in_password_literally() -> None:
    for literal in ("pa$$word{1}", "${A:-b}", "x${y:z}", "${word}"):
        parsed = parse(MINIMAL + STORE.format(literal))
        assert parsed.inline_secrets["s-password"] == literal


def test_manifest_gives_moved_secret_an_unused_name() -> None:
    secrets = "{A: literal-a, B: '${secret:env-A}', C: '${secret:s-password}'}"
    parsed = parse(f"{MINIMAL}batch: {{secrets: {secrets}}}\n{STORE.format('literal-p')}")
    assert parsed.inline_secrets == {"env-A-2": "literal-a", "s-password-2": "literal-p", "s-user_name": "me-in-clear"}


def test_manifest_warns_if_variable_is_in_env_and_secrets() -> None:
    parsed = parse(f"{MINIMAL}batch: {{env: {{T: in-clear}}, secrets: {{T: '${{secret:t}}'}}}}\n")
    (line,) = warnings(parsed)
    assert "batch.env.T: the secret of this variable counts, and this value reaches no learner" in line


def test_manifest_refuses_secret_for_platform_variable() -> None:
    (line,) = errors(parse(f"{MINIMAL}batch: {{secrets: {{TRAINING_ID: '${{secret:t}}'}}}}\n"))
    assert "batch.secrets.TRAINING_ID: the platform sets TRAINING_ID itself" in line
