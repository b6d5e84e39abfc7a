"""The corpus: manifests in FfDL's styles, right ones and wrong ones, against the parser and the JSON Schema.

Exact messages of the wrong ones are in golden_messages.txt; FFDL_UPDATE_GOLDEN=1 rewrites it, for review.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from ffdl_batch.domain.findings import Severity
from ffdl_batch.manifest import ManifestSource, json_schema, parse_manifest
from tests.unit.manifest.samples import CORPUS

GOOD = sorted((CORPUS / "good").iterdir())
BAD = sorted((CORPUS / "bad").iterdir())
GOLDEN = CORPUS.parent / "golden_messages.txt"
BEYOND_THE_SCHEMA = {"host-mount-path.yml", "store-blocks.yml", "store-bucket.yml"}
"""What spans several fields."""
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def load_as_an_editor_does(path: Path) -> object:
    """The first document as an ordinary YAML reader has it; dates as text, since JSON has none."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, datetime.date) else value

    return plain(next(iter(yaml.safe_load_all(path.read_bytes())), None))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_corpus_good_manifests_pass_parser_and_json_schema_and_parse_alike_when_redacted(path: Path) -> None:
    parsed = parse_manifest(ManifestSource(path.read_bytes(), path.name, "/base"))
    assert parsed.spec is not None, "\n".join(str(f) for f in parsed.findings)
    assert parsed.spec.name and parsed.spec.framework.command
    VALIDATOR.validate(load_as_an_editor_does(path))
    assert parse_manifest(ManifestSource(parsed.redacted_text, path.name, "/base")).spec == parsed.spec
    assert not any(value in parsed.redacted_text for value in parsed.inline_secrets.values())


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_corpus_bad_manifests_fail_in_parser_and_in_schema_within_its_scope(path: Path) -> None:
    parsed = parse_manifest(ManifestSource(path.read_bytes(), path.name, "/base"))
    assert parsed.spec is None and any(f.severity is Severity.ERROR for f in parsed.findings)
    try:
        document = load_as_an_editor_does(path)
    except yaml.YAMLError:
        return
    assert VALIDATOR.is_valid(document) == (path.name in BEYOND_THE_SCHEMA)


def test_corpus_bad_manifest_messages_match_golden_file() -> None:
    lines: list[str] = []
    for path in BAD:
        parsed = parse_manifest(ManifestSource(path.read_bytes(), path.name, "/base"))
        lines += [str(f) for f in parsed.findings]
    text = "\n".join(lines) + "\n"
    if os.environ.get("FFDL_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_corpus_has_minimum_size_and_line_ending_variants() -> None:
    assert len(GOOD) >= 40 and len(BAD) >= 20
    raw = [path.read_bytes() for path in GOOD]
    assert any(b"\r\n" in text for text in raw) and any(not text.endswith(b"\n") for text in raw)
