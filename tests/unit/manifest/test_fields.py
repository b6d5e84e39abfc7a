"""FfDL's own fields: raw text, numbers, sizes, what is required, what is different."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job.metric_collection import collecting_of
from ffdl_batch.domain.job.secret_references import image_credentials, needed_secrets
from ffdl_batch.domain.metrics.records import Collecting
from ffdl_batch.manifest import Defaults
from tests.unit.manifest.samples import FRAMEWORK, MINIMAL, errors, notes, parse, read, warnings


@pytest.mark.parametrize(("written", "meant"), [
    ("1.10", "1.10"), ("yes", "yes"), ("0x10", "0x10"), ("0123", "0123"), ("on", "on"), ("1e3", "1e3"),
    ("2019-01-01", "2019-01-01"), ("12:30:45", "12:30:45"), (".inf", ".inf"), ("True", "True"), ("=", "="), ("~", ""),
    ("null", ""), ("", ""), ("'~'", "~"), ('"null"', "null"), ("!!str null", "null"), ("!!int 07", "07"),
    ("'a: b'", "a: b"),
])  # fmt: skip
def test_manifest_text_field_keeps_raw_scalar(written: str, meant: str) -> None:
    assert read(f"{MINIMAL}description: {written}\n").description == meant


def test_manifest_reads_name_framework_version_and_command_as_text() -> None:
    job = read("name: yes\nframework: {name: tensorflow, version: 1.10, command: on}\n")
    assert (job.name, job.framework.version, job.framework.command) == ("yes", "1.10", "on")


@pytest.mark.parametrize(("written", "number"), [
    ("2", 2.0), ('"2"', 2.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("1e+3", 1000.0),
    ("1_000", 1000.0), ("0x10", 16.0), ("0b11", 3.0), ("010", 8.0), ("0o17", 15.0), ("08", 8.0), ("+4", 4.0),
    ("' 4 '", 4.0), ("0.005", 0.005),
])  # fmt: skip
def test_manifest_cpus_accepts_yaml_number_forms(written: str, number: float) -> None:
    assert read(f"{MINIMAL}cpus: {written}\n").resources.cpus == number


@pytest.mark.parametrize(
    "written", ["yes", "two", ".nan", ".inf", "-.inf", "1:30", "0x", "1e99999", "١", "[1]", "{}", "0", "-1", "1e7"]
)
def test_manifest_cpus_rejects_non_number_or_value_out_of_range(written: str) -> None:
    (line,) = errors(parse(f"{MINIMAL}cpus: {written}\n"))
    assert line.startswith("m.yml:4:") and ": error: cpus: " in line


@pytest.mark.parametrize("written", ["0", "-1", "2.7", "1e-1", "99999999999", "two", "1e308"])
def test_manifest_learners_rejects_fraction_or_count_out_of_range(written: str) -> None:
    (line,) = errors(parse(f"{MINIMAL}learners: {written}\n"))
    assert line.startswith("m.yml:4:11: error: learners: ")


@pytest.mark.parametrize(("written", "count"), [("3", 3), ("2.0", 2), ("'2'", 2), ("0x3", 3), ("1e1", 10)])
def test_manifest_learners_accepts_whole_number_forms(written: str, count: int) -> None:
    assert read(f"{MINIMAL}learners: {written}\n").resources.learners == count


def test_manifest_gpus_accepts_zero_and_warns_about_fraction() -> None:
    assert read(f"{MINIMAL}gpus: 0\n").resources.gpus == 0
    parsed = parse(f"{MINIMAL}gpus: 0.5\n")
    assert parsed.spec is not None and parsed.spec.resources.gpus == 0.5
    assert [line for line in warnings(parsed) if "m.yml:4:7" in line and "FfDL cut this to 0" in line]


def test_manifest_learners_warns_about_octal_number() -> None:
    (line,) = warnings(parse(f"{MINIMAL}learners: 010\n"))
    assert line == (
        "m.yml:4:11: warning: learners: 010 is an octal number to YAML and to FfDL: 8 (drop the leading zero)"
    )


@pytest.mark.parametrize(
    ("written", "size"), [("8.5GB", 8500 * 1000**2), ("16 GiB", 16 * 1024**3), ("' 1Gb'", 1000**3)]
)
def test_manifest_memory_accepts_decimal_and_binary_units(written: str, size: int) -> None:
    assert read(f"name: x\nmemory: {written}\n{FRAMEWORK}").resources.memory_bytes == size


@pytest.mark.parametrize("written", ["512", "GB", "0GB", "1GBfoo", "lots", "-1GB", "[1GB]", "9999999999999PB"])
def test_manifest_memory_rejects_invalid_size(written: str) -> None:
    (line,) = errors(parse(f"name: x\nmemory: {written}\n{FRAMEWORK}"))
    assert line.startswith("m.yml:2:") and "error: memory: " in line


@pytest.mark.parametrize("written", ["1Gi", "512Mi", "8G", "2t", "8.5GB", "1TB"])
def test_manifest_memory_warns_about_unit_unknown_to_ffdl(written: str) -> None:
    (line,) = warnings(parse(f"name: x\nmemory: {written}\n{FRAMEWORK}"))
    assert line.startswith("m.yml:2:9: warning: memory: FfDL did not understand ")


@pytest.mark.parametrize(
    ("written", "ours", "theirs", "as_much"),
    [("1GB", 1000**3, 1_048_576_000, "1049MB"), ("1GiB", 1024**3, 1_125_899_907, "1126MB")],
)
def test_manifest_memory_notes_size_difference_from_ffdl(written: str, ours: int, theirs: int, as_much: str) -> None:
    assert notes(parse(f"name: x\nmemory: {written}\n{FRAMEWORK}")) == [
        f"m.yml:2:9: note: memory: {written} is {ours:,} bytes here; FfDL gave {theirs:,} (write {as_much} for as much)"
    ]


def test_manifest_memory_notes_ffdl_rounding_of_one_mb() -> None:
    assert "FfDL gave 1,048,576" in notes(parse(f"name: x\nmemory: 1MB\n{FRAMEWORK}"))[0]


def test_manifest_uses_and_records_site_defaults() -> None:
    parsed = parse("name: x\n" + FRAMEWORK, defaults=Defaults(memory_bytes=5, cpus=2.5, learners=3))
    assert parsed.spec is not None
    resources = parsed.spec.resources
    assert (resources.memory_bytes, resources.cpus, resources.learners, resources.gpus) == (5, 2.5, 3, 0)
    assert {parsed.spec.sources[key] for key in ("memory", "cpus", "learners")} == {"site default"}
    assert "memory is not given: the site's 5B" in notes(parsed)[0]


def test_manifest_sources_name_the_line_of_each_key() -> None:
    sources = read(MINIMAL + "batch: {time: 5}\ndata_stores:\n").sources
    assert sources["name"] == "manifest:1"
    assert sources["framework.command"] == "manifest:3"
    assert sources["batch.time"] == "manifest:4"


@pytest.mark.parametrize(("text", "line"), [
    ("name: x\nframework: ~\n",
     "m.yml:2:1: error: framework: Framework is not set (write framework: with name, version and command)"),
    ("name: x\nframework: {name: n, command: ' ', version: v}\n",
     "m.yml:2:31: error: framework.command: Training command is not set (write `command: ` under framework)"),
])  # fmt: skip
def test_manifest_rejects_null_framework_and_blank_command_with_ffdl_message(text: str, line: str) -> None:
    assert errors(parse(text)) == [line]


def test_framework_name_and_version_must_be_in_site_list() -> None:
    site = Defaults(known_frameworks={"tensorflow": ("1.5", "2.1"), "caffe": (), "pytorch": ("2.1", "*")})

    def check(name: str, version: str) -> list[str]:
        text = f"name: x\nframework: {{name: {name}, version: '{version}', command: c}}\n"
        return errors(parse(text, defaults=site))

    assert (
        check("tensorflow", "1.5") == check("caffe", "any") == check("pytorch", "0.1") == check("custom", "x/y") == []
    )
    assert check("TensorFlow", "1.5") == [
        "m.yml:2:19: error: framework.name: 'TensorFlow' is not a framework here "
        "(did you mean tensorflow? known are caffe, custom, pytorch, tensorflow)"
    ]
    assert check("tensorflow-gpu", "1.5")[0].endswith(
        "(did you mean tensorflow? known are caffe, custom, pytorch, tensorflow)"
    )
    assert check("mxnet", "1.5")[0].endswith("(known are caffe, custom, pytorch, tensorflow)")
    assert check("org/repo", "1.5")[0].endswith(
        "'org/repo' is not a framework here (for an image of your own write name: custom and version: 'org/repo:1.5')"
    )
    assert check("tensorflow", "9") == [
        "m.yml:2:40: error: framework.version: tensorflow has no version '9' here (known are 1.5, 2.1)"
    ]


@pytest.mark.parametrize("registry", ["https://[::1", "https://r.example.org", "[::1", "a]b", "me@r.example.org"])
def test_image_location_rejects_registry_that_is_not_a_host(registry: str) -> None:
    (line,) = errors(parse(LOCATED.format("my-image", f"{{registry: '{registry}'}}")))
    assert f"image_location.registry: '{registry}' is not the host of a registry" in line
    assert line.startswith("m.yml:2:") and "write HOST or HOST:PORT" in line


LOCATED = "name: x\nframework: {{name: {}, version: '1', command: c, image_location: {}}}\n"


def test_image_location_allows_framework_unknown_to_site() -> None:
    site = Defaults(known_frameworks={"tensorflow": ("1.5",)})
    parsed = parse(LOCATED.format("my-image", "{registry: r.example.org, namespace: n}"), defaults=site)
    assert parsed.spec is not None and warnings(parsed) == []
    parsed = parse(LOCATED.format("my-image", "{registry: r.example.org, user_name: '${env:ME}'}"), defaults=site)
    assert warnings(parsed) == [
        "m.yml:2:108: warning: framework.image_location.user_name: there is a user_name and no access_token, so the "
        "registry is asked as anybody (write access_token: ${secret:NAME}, too)"
    ]


def test_custom_framework_uses_access_token_for_registry_in_version() -> None:
    text = LOCATED.replace("'1'", "r.example.org/a/b:1")
    parsed = parse(text.format("custom", "{access_token: '${secret:mine}'}"))
    assert parsed.spec is not None
    assert warnings(parsed) == []
    assert image_credentials(parsed.spec) == {"password": "mine"}
    parsed = parse(text.format("tensorflow", "{access_token: '${secret:mine}'}"))
    assert parsed.spec is not None
    assert "registry is not set, so this is ignored" in warnings(parsed)[0]
    assert needed_secrets(parsed.spec) == ()


def test_image_location_is_ignored_with_warning_without_registry() -> None:
    site = Defaults(known_frameworks={"tensorflow": ("1",)})
    parsed = parse(LOCATED.format("tensorflow", "{namespace: n}"), defaults=site)
    assert parsed.spec is not None
    assert warnings(parsed) == [
        "m.yml:2:57: warning: framework.image_location: registry is not set, so this is ignored "
        "(write registry: and the host that has the image)"
    ]
    assert errors(parse(LOCATED.format("my-image", "{}"), defaults=site))


def test_manifest_compares_amounts_with_ffdl_only_without_batch_block() -> None:
    """A `batch` block is ours: who wrote one has left FfDL behind."""
    amounts = "name: x\nmemory: 1GB\ngpus: 1\n" + FRAMEWORK
    assert len(notes(parse(amounts))) == len(notes(parse(amounts, {"time": "1"}))) == 2
    assert notes(parse(amounts + "batch: {time: 1}\n")) == []
    assert notes(parse("name: x\nbatch: {time: 1}\n" + FRAMEWORK)) == [
        "m.yml:1:1: note: memory is not given: the site's 8GB for each learner"
    ]


def test_evaluation_metrics_reads_every_field() -> None:
    text = (
        MINIMAL
        + "evaluation_metrics:\n  type: regex_extractor\n  in: log\n  line_lookahead: 8\n  eventTypes: [a, 1.10]\n"
        + "  groups:\n    g:\n      regex: '%{FLOAT:x}'\n      meta: {time: $t}\n"
        + "      scalars: {x: {type: FLOAT, value: $x}}\n      etimes: {i: {type: INT, value: 1}}\n"
    )
    metrics = read(text).metrics
    assert (metrics.type, metrics.in_, metrics.line_lookahead) == ("regex_extractor", "log", 8)
    assert metrics.event_types == ("a", "1.10")
    group = metrics.groups["g"]
    assert (group.regex, group.meta_time) == ("%{FLOAT:x}", "$t")
    assert (group.scalars["x"].type, group.scalars["x"].value, group.etimes["i"].value) == ("FLOAT", "$x", "1")


def test_evaluation_metrics_warns_about_unknown_key_type_and_missing_meta() -> None:
    text = (
        MINIMAL
        + "evaluation_metrics:\n  type: regex_extractor\n  event_types: [a]\n"
        + "  groups: {g: {regex: '%{FLOAT:loss}', scalars: {x: {type: REAL, value: $loss}}}}\n"
    )
    parsed = parse(text)
    lines = "\n".join(warnings(parsed))
    assert "evaluation_metrics.event_types: this key is not known and is ignored (did you mean eventTypes?)" in lines
    assert "groups.g.meta: FfDL's server fails on a group without meta" in lines
    assert "scalars.x.type: there is no type 'REAL'" in lines
    assert parsed.spec is not None and errors(parsed) == []


@pytest.mark.parametrize(("metrics", "line", "said"), [
    ("type: regex_extractor\n  groups:\n    g:\n      regex: '('", 8, "groups.g.regex: is not a regular expression"),
    ("type: regex_extractor\n  groups:\n    g:\n      regex: '%{X:a}'", 8, "there is no macro %{X}"),
    ("type: regex_extractor\n  groups: {g: {regex: a, scalars: {x: {value: $b}}}}", 6,
     "groups.g.scalars.x.value: the regex has no group b (its groups are: none)"),
    ("type: regex_extractor\n  line_lookahead: 1000\n  groups: {}", 6, "1000 lines are not looked at together"),
])  # fmt: skip
def test_evaluation_metrics_rejects_expression_that_finds_nothing_at_its_line(
    metrics: str, line: int, said: str
) -> None:
    found = errors(parse(f"{MINIMAL}evaluation_metrics:\n  {metrics}\n"))
    assert [text for text in found if said in text and f":{line}:" in text], found


def test_evaluation_metrics_without_groups_collect_reports_of_the_learner() -> None:
    parsed = parse(f"{MINIMAL}evaluation_metrics: {{type: regex_extractor}}\n")
    assert parsed.spec is not None and errors(parsed) == []
    assert collecting_of(parsed.spec.metrics) == Collecting("regex_extractor")


def test_evaluation_metrics_warns_about_unknown_meta_group_and_collector() -> None:
    regex = "type: regex_extractor, groups: {g: {regex: '%{INT:n}', meta: {time: $when}, scalars: {n: {value: $n}}}}"
    parsed = parse(f"{MINIMAL}evaluation_metrics: {{{regex}}}\n")
    assert errors(parsed) == [] and "groups.g.meta.time: the regex has no group when" in "\n".join(warnings(parsed))
    parsed = parse(f"{MINIMAL}evaluation_metrics: {{type: my/image}}\n")
    assert errors(parsed) == [] and "there is no collector 'my/image'" in "\n".join(warnings(parsed))


def test_evaluation_metrics_rejects_misspelled_collector_with_suggestion() -> None:
    (said,) = errors(parse(f"{MINIMAL}evaluation_metrics:\n  type: tensorbord\n"))
    assert "there is no collector 'tensorbord'" in said and "did you mean tensorboard?" in said
    parsed = parse(f"{MINIMAL}evaluation_metrics: {{type: tensorboard_extract}}\n")
    assert errors(parsed) == [] and warnings(parsed) == []


def test_evaluation_metrics_line_lookahead_defaults_to_4_and_accepts_0() -> None:
    assert read(MINIMAL + "evaluation_metrics: {type: file}\n").metrics.line_lookahead == 4
    assert read(MINIMAL + "evaluation_metrics: {line_lookahead: 0}\n").metrics.line_lookahead == 0


def test_framework_image_tag_is_recorded_with_note() -> None:
    parsed = parse("name: x\nmemory: 1GB\nframework: {name: n, version: v, command: c, image_tag: t}\n")
    assert parsed.spec is not None and parsed.spec.framework.image_tag == "t"
    assert any("framework.image_tag" in line for line in notes(parsed))


@pytest.mark.parametrize("text", ['"a\\nb"', '"a\\0"', '"a\\x1b"', '"a\\u2028b"'])
@pytest.mark.parametrize("key", ["name", "gpu_type"])
def test_manifest_one_line_field_rejects_control_characters(key: str, text: str) -> None:
    lines = errors(parse(f"{FRAMEWORK}{'name: x' if key != 'name' else ''}\n{key}: {text}\n"))
    assert len(lines) == 1 and f"error: {key}: " in lines[0]


def test_manifest_name_drops_final_line_break_of_block_scalar() -> None:
    assert read("name: >\n  a\n  b\n" + FRAMEWORK).name == "a b"
