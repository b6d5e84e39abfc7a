"""Credentials: moved to secrets, blotted out of the text, never in a message."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job.secret_references import image_credentials, uses_of
from tests.unit.manifest.samples import MINIMAL, errors, parse, warnings

STORE = """\
# the password is s3cr3t-word, do not tell
name: job
data_stores:
  - id: my store
    type: s3_datastore
    training_data: {container: c}
    connection:
      auth_url: https://s3.example.org
      user_name: AKIAEXAMPLE
      password: s3cr3t-word
framework: {name: custom, version: v, command: run}
"""


def test_manifest_replaces_inline_credentials_with_references_and_redacts_only_them() -> None:
    parsed = parse(STORE)
    assert parsed.spec is not None
    assert parsed.inline_secrets == {"my-store-user_name": "AKIAEXAMPLE", "my-store-password": "s3cr3t-word"}
    connection = parsed.spec.data_stores[0].connection
    assert connection == {
        "auth_url": "https://s3.example.org",
        "user_name": "${secret:my-store-user_name}",
        "password": "${secret:my-store-password}",
    }
    (line,) = warnings(parsed)
    assert line.startswith("m.yml:7:5: warning: data_stores[0].connection: credentials stand in the manifest")
    redacted = parsed.redacted_text
    assert redacted == STORE.replace("AKIAEXAMPLE", '"***"').replace(": s3cr3t-word", ': "***"').replace(
        "s3cr3t-word", "***"
    )
    again = parse(redacted)
    assert again.spec is not None and set(again.inline_secrets.values()) == {"***"}


@pytest.mark.parametrize(
    "written",
    [
        "password: s3cr3t-word",
        "password: 's3cr3t-word'",
        'password: "s3cr3t-word"',
        'password: "s3cr3t\\x2dword"',
        "password: &p s3cr3t-word",
        "password: >-\n        s3cr3t-word",
        "password: |\n        s3cr3t-word",
        "password: !!str s3cr3t-word",
        "pasword: s3cr3t-word",
        "PASSWORD: s3cr3t-word",
        "secret_access_key: s3cr3t-word",
        "api-key: s3cr3t-word",
        "access_token: s3cr3t-word",
        "key: s3cr3t-word",
        "auth_url: https://me:s3cr3t-word@s3.example.org/",
        "password: first-s3cr3t-word\n      password: s3cr3t-word",
    ],
)
def test_manifest_recognizes_credential_in_every_yaml_form(written: str) -> None:
    parsed = parse(STORE.replace("password: s3cr3t-word", written))
    assert parsed.spec is not None
    assert any("s3cr3t-word" in value for value in parsed.inline_secrets.values())
    assert "s3cr3t" not in parsed.redacted_text.replace("# the password is s3cr3t-word", "")
    assert "s3cr3t" not in repr(parsed.spec) and "s3cr3t" not in repr(parsed.findings)


def test_redaction_hides_aliased_credential_at_its_anchor() -> None:
    text = "x-secret: &p s3cr3t-word\n" + STORE.replace("password: s3cr3t-word", "password: *p").partition("\n")[2]
    parsed = parse(text)
    assert parsed.inline_secrets["my-store-password"] == "s3cr3t-word"
    assert "s3cr3t" not in parsed.redacted_text
    assert parse(parsed.redacted_text).spec is not None


def test_manifest_moves_image_access_token_to_secret() -> None:
    parsed = parse(
        "name: x\nframework: {name: pytorch, version: v, command: c, image_location: "
        "{registry: r, namespace: n, access_token: tok-tok-tok, email: e}}\n"
    )
    assert parsed.spec is not None and parsed.spec.framework.image_location is not None
    assert parsed.spec.framework.image_location.registry == "r"
    assert parsed.inline_secrets == {"image-access-token": "tok-tok-tok"}
    assert parsed.spec.framework.image_location.access_token == "${secret:image-access-token}"
    assert "tok-tok" not in parsed.redacted_text and "tok-tok" not in repr(parsed.spec)
    (line,) = warnings(parsed)
    assert "access_token: a credential stands in the manifest; it is moved to a secret at submission" in line


def test_manifest_moves_image_user_name_to_secret_and_keeps_references() -> None:
    text = "name: x\nframework: {{name: a, version: v, command: c, image_location: {{registry: r, {}}}}}\n"
    parsed = parse(text.format("user_name: planted-user, access_token: '${file:token}'"))
    assert parsed.spec is not None
    assert parsed.inline_secrets == {"image-user-name": "planted-user"}
    assert image_credentials(parsed.spec) == {"user_name": "image-user-name"}, "the file is read at submission"
    assert [(use.kind, use.path.rpartition(".")[2]) for use in uses_of(parsed.spec)] == [
        ("secret", "user_name"), ("file", "access_token"),
    ]  # fmt: skip
    (wrong,) = errors(parse(text.format("access_token: 'a ${secret:b}'")))
    assert "a reference is the whole value" in wrong


def test_manifest_moves_literal_batch_secrets_to_secret_references() -> None:
    parsed = parse(MINIMAL + "batch: {secrets: {WANDB: abcd-1234, OTHER: '${env:OTHER}'}}\n")
    assert parsed.spec is not None
    assert parsed.spec.batch.secrets == {"WANDB": "${secret:env-WANDB}", "OTHER": "${env:OTHER}"}
    assert parsed.inline_secrets == {"env-WANDB": "abcd-1234"}
    assert "abcd-1234" not in parsed.redacted_text


def test_manifest_warns_about_env_variable_that_resembles_credential() -> None:
    parsed = parse(MINIMAL + "batch: {env: {WANDB_API_KEY: abcd-1234, TOKENIZERS_PARALLELISM: no}}\n")
    (line,) = warnings(parsed)
    assert "batch.env.WANDB_API_KEY: this looks like a credential" in line
    assert "abcd-1234" not in parsed.redacted_text


def test_redaction_returns_no_text_for_unparsable_manifest() -> None:
    assert parse("password: s3cr3t-word\n  x: [").redacted_text == ""


def test_redaction_hides_credentials_of_rejected_manifest() -> None:
    parsed = parse(STORE + "cpus: -1\n")
    assert parsed.spec is None and parsed.inline_secrets == {}
    assert "s3cr3t" not in parsed.redacted_text and "s3cr3t" not in repr(parsed)


def test_manifest_keeps_secrets_apart_for_stores_with_similar_ids() -> None:
    stores = "data_stores:\n" + "".join(
        f"  - {{id: '{i}', type: s3_datastore, training_data: {{container: c}}, connection: {{password: word-{n}}}}}\n"
        for n, i in enumerate(("a b", "a  b"))
    )
    parsed = parse(MINIMAL + stores)
    assert parsed.spec is not None
    assert sorted(parsed.inline_secrets.values()) == ["word-0", "word-1"]


OLD_STYLE = """\
name: test
description: my test of test data  # a test, password "test"
data_stores:
  - id: test-datastore   # test: not the password
    type: mount_cos
    training_data: {container: test}
    connection: {auth_url: http://s3, user_name: test, password: test}
framework:
  name: custom
  version: registry.example.org/test:1
  command: >
    python test.py
    --password tested
"""


def test_redaction_preserves_spec_when_password_is_common_text() -> None:
    first = parse(OLD_STYLE)
    again = parse(first.redacted_text)
    assert first.spec is not None and again.spec == first.spec
    assert 'user_name: "***", password: "***"}' in first.redacted_text
    assert '# a ***, password "***"' in first.redacted_text


def test_redaction_removes_distinctive_secret_from_other_values() -> None:
    text = OLD_STYLE.replace("password: test", "password: s3cr3t:1").replace("tested", "s3cr3t:1")
    text = text.replace("test-datastore", "s3cr3t:1").replace("description: my", "description: s3cr3t:1")
    parsed = parse(text)
    again = parse(parsed.redacted_text)
    assert "s3cr3t" not in parsed.redacted_text
    assert again.spec is not None and again.spec.framework.command == "python test.py --password ***\n"
    assert again.spec.data_stores[0].id == "***" and again.spec.description == "*** test of test data"


def test_redaction_preserves_key_that_equals_secret_value() -> None:
    parsed = parse(OLD_STYLE.replace("password: test", "password: password").replace("name: test,", "name: id,"))
    again = parse(parsed.redacted_text)
    assert parsed.spec is not None and again.spec == parsed.spec


@pytest.mark.parametrize("end", ["---\n", "...\n"])
def test_redaction_drops_text_after_first_document(end: str) -> None:
    parsed = parse(STORE + end + "password: an0ther-word\n")
    assert parsed.spec is not None
    assert "an0ther" not in parsed.redacted_text and parse(parsed.redacted_text).spec == parsed.spec
