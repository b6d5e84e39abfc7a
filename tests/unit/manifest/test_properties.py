"""Properties: the parser never raises, raw text stays raw, sizes survive writing, secrets never survive."""

from __future__ import annotations

import json
import string

import yaml
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.quantity import format_size
from ffdl_batch.manifest import Parsed, json_schema
from tests.unit.manifest.samples import FRAMEWORK, MINIMAL, parse, read

SCHEMA = json_schema()
KEYS = sorted({key for block in [SCHEMA, *SCHEMA["$defs"].values()] for key in block["properties"]})  # type: ignore[attr-defined]
YAML_SCRAPS = st.lists(
    st.sampled_from(
        [
            *KEYS,
            *[":", "-", "?", "[", "]", "{", "}", ",", "&", "*", "!", "|", ">", "'", '"', "#", "%", "@", "~", "\n"],
            "\n",
            "\n  ",
            "\t",
            " ",
            "<<",
            "&a",
            "*a",
            ": ",
            "- ",
        ]
    ),
    max_size=60,
).map("".join)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["1GB", "job"])
)
KEY = st.sampled_from(KEYS) | st.text(max_size=5)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=4), max_leaves=25
)


def check(parsed: Parsed) -> None:
    has_errors = any(f.severity is Severity.ERROR for f in parsed.findings)
    assert has_errors == (parsed.spec is None)
    assert all("\n" not in str(f) for f in parsed.findings)
    if parsed.spec is not None:
        assert from_plain(JobSpec, json.loads(json.dumps(to_plain(parsed.spec)))) == parsed.spec


@given(st.binary(max_size=300))
def test_parser_returns_spec_or_errors_for_any_bytes(raw: bytes) -> None:
    check(parse(raw))


@given(st.text(max_size=300) | YAML_SCRAPS)
def test_parser_returns_spec_or_errors_for_any_text(text: str) -> None:
    check(parse(text))
    check(parse(MINIMAL + text))


@given(st.dictionaries(KEY, TREES, max_size=6))
def test_parser_returns_spec_or_errors_for_any_structure(tree: dict[str, object]) -> None:
    good = {"name": "x", "framework": {"name": "n", "version": "v", "command": "c"}}
    check(parse(json.dumps(tree)))
    check(parse(yaml.safe_dump({**good, **tree}, allow_unicode=True)))
    check(parse(yaml.safe_dump({**good, "batch": tree, "data_stores": [tree], "evaluation_metrics": tree})))


@given(
    st.dictionaries(
        st.sampled_from(["time", "mem", "gres", "gpus", "cpus", "network", "signal", "x"]), st.text(max_size=12)
    )
)
def test_parser_returns_spec_or_errors_for_any_options(options: dict[str, str]) -> None:
    check(parse(MINIMAL, options=options))
    check(parse(MINIMAL, environment=options))


@given(st.text(string.ascii_letters + string.digits + ".+-_/=<>^()$;~", min_size=1, max_size=20))
def test_parser_keeps_unquoted_text_unchanged(text: str) -> None:
    if text in {"~", "null", "Null", "NULL", "-", "---", "..."} or text.startswith((">", "- ", "=")):
        return
    assert read(f"{MINIMAL}description: {text}\n").description == text


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=40))
def test_parser_keeps_quoted_text_unchanged(text: str) -> None:
    assert read(f"{MINIMAL}description: {json.dumps(text, ensure_ascii=False)}\n").description == text


@given(st.integers(1, 10**6), st.sampled_from(["MB", "MiB", "GB", "GiB", "TB", "TiB", "M", "Gi", "gb", " GB"]))
def test_format_size_round_trips_through_memory_field(number: int, unit: str) -> None:
    size = read(f"name: x\nmemory: {number}{unit}\n{FRAMEWORK}").resources.memory_bytes
    if size % 1024**2 == 0:
        again = read(f"name: x\nmemory: {format_size(size)}\n{FRAMEWORK}").resources.memory_bytes
        assert again == size
    assert read(f"name: x\nmemory: {size}B\n{FRAMEWORK}").resources.memory_bytes == size


@given(
    st.text(
        st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]),
        min_size=4,
        max_size=20,
    ),
    st.sampled_from(["password", "user_name", "access_token", "api_key"]),
)
def test_redaction_removes_any_secret_from_text(secret: str, key: str) -> None:
    text = (
        f"name: x\ndata_stores:\n  - id: a\n    type: s3_datastore\n    training_data: {{container: c}}\n"
        f"    connection: {{{key}: {json.dumps(secret, ensure_ascii=False)}}}\n{FRAMEWORK}"
    )
    parsed = parse(text)
    assert parsed.spec is not None
    assert list(parsed.inline_secrets.values()) == [secret]
    assert secret not in parsed.redacted_text
    assert json.dumps(secret, ensure_ascii=False)[1:-1] not in parsed.redacted_text
    assert parse(parsed.redacted_text).spec is not None


@given(
    st.from_regex(r"[A-Za-z0-9@:*&#'\"{}%-]{1,12}", fullmatch=True) | st.sampled_from(KEYS),
    st.sampled_from(["{}", "a {} b", "my-{}-store", "{}/{}", "{}\n"]),
)
def test_redacted_text_parses_when_other_values_repeat_the_secret(secret: str, around: str) -> None:
    text = json.dumps(
        {
            "name": around.format(secret, secret).strip(),
            "description": around.format(secret, secret),
            "data_stores": [
                {"id": f"store {secret}", "type": "s3_datastore", "training_data": {"container": secret}}
                | {"connection": {"auth_url": "u", "password": secret, "user_name": secret}}
            ],
            "framework": {"name": "custom", "version": secret, "command": "run " + around.format(secret, secret)},
        }
    )
    for written in (
        text,
        yaml.safe_dump(json.loads(text)),
        f"# {secret}\n{yaml.safe_dump(json.loads(text))}# {secret}",
    ):
        parsed = parse(written)
        assert parsed.spec is not None
        again = parse(parsed.redacted_text)
        assert again.spec is not None
        assert set(again.inline_secrets.values()) == {"***"}
