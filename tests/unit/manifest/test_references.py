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
