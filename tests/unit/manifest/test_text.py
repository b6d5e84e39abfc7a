"""Reading YAML: encodings, structure, limits, keys; whatever comes in, a sentence comes out."""

from __future__ import annotations

import pytest

from tests.unit.manifest.samples import FRAMEWORK, MINIMAL, errors, parse, read, warnings


def test_parser_accepts_crlf_bom_and_missing_final_newline() -> None:
    job = read(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").rstrip().encode())
    assert job.framework.command == "run"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_parser_rejects_utf16_by_name(encoding: str) -> None:
    (line,) = errors(parse(MINIMAL.encode(encoding)))
    assert "UTF-16" in line and "save it as UTF-8" in line


@pytest.mark.parametrize(("raw", "line"), [
    (b"name: x\nb: \xff\n", "m.yml:2:4: error: byte \\xff is not UTF-8 (save the manifest as UTF-8)"),
    ("name: x\n\x00",
     "m.yml:2:1: error: a NUL character stands here (delete it, or write it as an escape in double quotes)"),
    ("name: \x1b[0m", "m.yml:1:7: error: the non-printable character U+001B stands here "
     "(delete it, or write it as an escape in double quotes)"),
    ("a: \ud800", "m.yml:1:4: error: the non-printable character U+D800 stands here "
     "(delete it, or write it as an escape in double quotes)"),
    (b"", "m.yml: error: the manifest is empty (`ffdl init` writes one to start from)"),
    (b"PK\x03\x04\x14\x00\x80",
     "m.yml: error: this is a zip archive, not a manifest (name the manifest first, then the model)"),
    (b"\x1f\x8b\x08\x00",
     "m.yml: error: this is a gzip archive, not a manifest (name the manifest first, then the model)"),
    ("text", "m.yml:1:1: error: a manifest is a mapping of keys to values; this is one text"),
])  # fmt: skip
def test_parser_rejects_input_that_is_no_manifest(raw: str | bytes, line: str) -> None:
    assert errors(parse(raw)) == [line]


@pytest.mark.parametrize("raw", ["a" * 50_000_000, b"a: b\n" * 300_000, "é" * 600_000])
def test_parser_rejects_text_over_1_mib_unread(raw: str | bytes) -> None:
    (line,) = errors(parse(raw))
    assert "larger than 1 MiB and was not read" in line


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a:\n "])
def test_parser_limits_nesting_depth(opening: str) -> None:
    assert parse(opening * 100_000).spec is None


def test_parser_limits_alias_expansion() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefgh", "abcdefg", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    (line,) = errors(parse("\n".join(lines)))
    assert "more than 60000 values once its aliases are expanded" in line


def test_parser_limits_nesting_through_aliases() -> None:
    lines = ["x0: &x0 {a: 1}", *(f"x{i}: &x{i} {{k: *x{i - 1}}}" for i in range(1, 100))]
    (line,) = errors(parse("\n".join(lines)))
    assert "nests deeper than 40 levels" in line


@pytest.mark.parametrize(("text", "part"), [
    ("a: &a [*a]\n", "1:8: error: *a stands inside the very value that it repeats"),
    ("<<: 3\n", "<< merges mappings only"),
    ("<<: [{a: 1}, 3]\n", "<< merges mappings only"),
    ("? [a]\n: b\n", "a key must be text"),
    ("? {a: b}\n: b\n", "a key must be text"),
    ("a: !mine x\n", "the tag !mine means nothing"),
    ("a: !!binary eA==\n", "the tag !!binary means nothing"),
    ("!e!x a: b\n", "this tag means nothing in a manifest"),
    ("a: 1\n\tb: 2\n", "2:1: error: a tab indents this line"),
    ("a: |\n\tb\n", "2:1: error: a tab indents this line"),
    ("a: @x\n", "1:4: error: a value cannot start with '@' (put the whole value in quotes)"),
    ("a: `x`\n", "a value cannot start with '`'"),
    ("a: %x\n", "a value cannot start with '%'"),
    ("a: 1\na b\n", "there is a key without its ':'"),
    ("a: [1, 2\nb: 3\n", "the list in [ ] is not closed; it starts on line 1"),
    ('a: "\\q"\n', "this escape is not known in double quotes"),
    ("a: >x\n  b\n", "the text after | or > must start on the next line"),
    ("a: 1\n}\n", "2:1: error: this line does not fit the lines above it"),
    ("a: b\n\n  # why\n   c: 1\n   d: 2\n",
     "4:4: error: this line is indented further than line 1, which has its value already "
     "(indent the keys of one block by the same number of blanks)"),
    ("f:\n  run:\n  pip install a\n  python b\n  time: 1\n",
     "3:3: error: there is a key without its ':' (write `key: value`; if this is the text of `run` on line 2, "
     "write `run: >` there and indent the text further)"),
    ("f:\n  name\n  version: 1\n", "2:3: error: there is a key without its ':' (write `key: value`)"),
    ("f:\n  name tensor\n  version: 1\n", "2:3: error: there is a key without its ':' (write `key: value`)"),
    ("a: 'it's here'\n", "1:8: error: text follows a closing quote (double a quote that is part of the text)"),
    ('a: "x"y\n', "1:7: error: text follows a closing quote (put the whole value in quotes)"),
    ("f:\n   run: >\n  python a\n   b: 1\n",
     "3:3: error: this text belongs to `run` on line 2 and is indented no further than that (indent it further)"),
    ("a: !x[y\n", "'!' starts a tag, and no tag is known here (put the whole value in quotes)"),
    ("a: *.py\n", "1:4: error: a value cannot start with '*' (put the whole value in quotes)"),
    ("a: &&\n", "1:4: error: a value cannot start with '&' (put the whole value in quotes)"),
    ("a: [\n", "a [ or { is opened and never closed"),
    ("a: {{ bucket }}\n", "1:4: error: {{ starts a placeholder of a template that was not filled in"),
    ("a: {{{{x}}}}\n", "1:4: error: {{ starts a placeholder"),
])  # fmt: skip
def test_parser_explains_yaml_error_with_its_position(text: str, part: str) -> None:
    (line,) = errors(parse(text))
    assert line.startswith("m.yml:") and part in line


def test_parser_reads_only_first_document_with_warning() -> None:
    parsed = parse(f"---\n{MINIMAL}---\nname: second\n")
    assert parsed.spec is not None and parsed.spec.name == "job"
    assert warnings(parsed) == [
        "m.yml:5:1: warning: a second document starts here; only the first one is read "
        "(put each manifest into a file of its own)"
    ]


def test_parser_ignores_text_after_document_end() -> None:
    assert warnings(parse(f"{MINIMAL}...\n{{[broken\n")) == []


def test_parser_takes_last_of_duplicate_keys_with_warning() -> None:
    parsed = parse("name: a\nname: b\nmemory: 1GB\n" + FRAMEWORK)
    assert parsed.spec is not None and parsed.spec.name == "b"
    assert warnings(parsed) == [
        "m.yml:2:1: warning: name: this key is written twice, on lines 1 and 2; the last one counts (delete one)"
    ]


def test_parser_supports_anchors_and_merge_keys() -> None:
    job = read(
        "x-d: &d {cpus: 2, learners: 3}\nx-e: &e {cpus: 7, gpus: 1}\n<<: [*d, *e]\nlearners: 4\nname: &n job\n"
        "description: *n\n" + FRAMEWORK
    )
    assert (job.resources.cpus, job.resources.learners, job.resources.gpus) == (2, 4, 1)
    assert job.description == "job"


def test_parser_treats_quoted_merge_key_as_unknown_key() -> None:
    (line,) = warnings(parse(MINIMAL + '"<<": {cpus: 2}\n'))
    assert "<<: this key is not known and is ignored" in line


@pytest.mark.parametrize(("text", "line"), [
    ("gpu: 1\n", "m.yml:4:1: warning: gpu: this key is not known and is ignored (did you mean gpus?)"),
    ("Memory: 1\n", "m.yml:4:1: warning: Memory: this key is not known and is ignored (did you mean memory?)"),
    ("command: x\n", "m.yml:4:1: warning: command: this key is not known and is ignored (it belongs under framework)"),
    ("qos: x\n", "m.yml:4:1: warning: qos: this key is not known and is ignored (it belongs under batch)"),
    ("batch: {cpus: 1}\n",
     "m.yml:4:9: warning: batch.cpus: this key is not known and is ignored (it belongs to the top level)"),
    ("batch: {checkpoint: {grace: 1}}\n",
     "m.yml:4:22: warning: batch.checkpoint.grace: this key is not known and is ignored (did you mean grace_s?)"),
])  # fmt: skip
def test_unknown_key_is_warning_and_error_in_strict_mode(text: str, line: str) -> None:
    assert warnings(parse(MINIMAL + text)) == [line]
    assert errors(parse(MINIMAL + text, strict=True)) == [line.replace("warning", "error")]


def test_parser_accepts_x_and_dot_keys_in_strict_mode() -> None:
    assert warnings(parse(MINIMAL + "x-mine: 1\n.hidden: 2\n", strict=True)) == []


def test_parser_limits_number_of_findings() -> None:
    parsed = parse(MINIMAL + "".join(f"key{i}: v\n" for i in range(500)))
    assert len(parsed.findings) == 101
    assert "more findings are not shown" in str(parsed.findings[-1])


def test_parser_reports_error_despite_many_warnings() -> None:
    assert errors(parse("name: x\n" + "".join(f"key{i}: v\n" for i in range(500))))


@pytest.mark.parametrize("key", ["model_definition", "training_data_reference", "training_results_reference"])
def test_parser_refers_wml_manifest_to_convert(key: str) -> None:
    (line,) = errors(parse(f"# WML\n{key}: {{name: x}}\n"))
    assert line == (
        f"m.yml:2:1: error: {key}: this is a manifest of Watson Machine Learning, not of FfDL "
        "(convert it: ffdl convert)"
    )


@pytest.mark.parametrize(("text", "line"), [
    ("apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {}\n",
     "m.yml:1:13: error: apiVersion: this is an object of Kubernetes, not a manifest of a training job "
     "(`ffdl init` writes one to start from)"),
    ("name: x\nmodel_identifier: y\nframework: {name: tensorflow, version: '1.5'}\ntrain: {trainable: true}\n",
     "m.yml:2:19: error: model_identifier: this describes a model for a catalogue (MAX, Machine Learning "
     "Exchange), not a training job (`ffdl init` writes a manifest; train.execution.command becomes "
     "framework.command)"),
])  # fmt: skip
def test_parser_names_foreign_document_in_one_line(text: str, line: str) -> None:
    parsed = parse(text)
    assert [str(f) for f in parsed.findings] == [line]


def test_parser_treats_foreign_keys_as_unknown_if_command_is_present() -> None:
    parsed = parse(MINIMAL + "apiVersion: v1\nkind: Job\nmodel_identifier: y\ntrain: {}\n")
    assert parsed.spec is not None and len(warnings(parsed)) == 4
