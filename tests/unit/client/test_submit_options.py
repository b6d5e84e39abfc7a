"""Mappings as manifests, the keywords of `submit`, and its warnings."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest
from pydantic import BaseModel

from ffdl_batch import Client, Manifest, SubmissionWarning
from ffdl_batch.client import InputUnusable, SubmitOptions
from ffdl_batch.client.submissions.manifest_source import read_manifest
from ffdl_batch.domain.job.submission import SubmissionResult
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.manifest.models.batch import ManifestBlock
from ffdl_batch.manifest.options import _PASSED, _PLACES, _SPECIAL
from tests.unit.client.fake_daemon import FakeDaemon


def test_keywords_are_options_that_submissions_take() -> None:
    names = {name.replace("_", "-") for name in SubmitOptions.__annotations__}
    assert names == {*_PLACES, *_SPECIAL, *_PASSED, "export"}


def blocks_in(kind: Any, of: type) -> list[Any]:
    """The blocks in an annotation: models, or typed dictionaries."""
    if (isinstance(kind, type) and issubclass(kind, BaseModel)) if of is BaseModel else is_typeddict(kind):
        return [kind]
    return [block for inner in get_args(kind) for block in blocks_in(inner, of)]


def check_same_keys(model: type[BaseModel], typed: Any, path: str = "") -> int:
    hints = get_type_hints(typed)
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    assert fields.keys() == hints.keys(), path
    assert {name for name, field in fields.items() if field.is_required()} == set(typed.__required_keys__), path
    count = 1
    for name, field in fields.items():
        inner, typed_inner = blocks_in(field.annotation, BaseModel), blocks_in(hints[name], dict)
        assert len(inner) == len(typed_inner), f"{path}.{name}"
        count += sum(check_same_keys(*pair, f"{path}.{name}") for pair in zip(inner, typed_inner, strict=True))
    return count


def test_manifest_type_has_keys_of_manifest() -> None:
    assert check_same_keys(ManifestBlock, Manifest) > 15


WHOLE = Manifest(
    name='a "name": # no comment é',
    description="\u2028 \x7f \ufeff \t \\ ${x}\n",
    cpus=0.5,
    gpus=1,
    memory="1GiB",
    framework={"name": "custom", "version": "python-numpy", "command": "echo one\necho 'two: #'\n"},
    batch={
        "time": "2h",
        "env": {"RATE": 1e-05, "ON": True, "TEXT": "1.10"},
        "sweep": {"SEED": [1, 2]},
        "retry": {"failures": 2},
    },
)


def test_mapping_is_read_as_its_manifest() -> None:
    text = read_manifest(WHOLE).text
    parsed = parse_manifest(ManifestSource(text, "manifest", "/"))
    assert parsed.spec is not None, parsed.findings
    assert (parsed.spec.name, parsed.spec.description) == (WHOLE["name"], WHOLE["description"])
    assert parsed.spec.framework.command == WHOLE["framework"]["command"]
    env = {name: value for name, value in parsed.spec.batch.env.items() if name in ("RATE", "ON", "TEXT")}
    assert env == {"RATE": "1e-05", "ON": "true", "TEXT": "1.10"}
    assert (parsed.spec.resources.cpus, parsed.spec.batch.time_s) == (0.5, 7200)
    assert json.loads(text) == WHOLE


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object(), b"x"], ids=["set", "nan", "object", "bytes"])
def test_mapping_with_unusable_value_is_refused(value: object) -> None:
    with pytest.raises(InputUnusable, match="the manifest cannot be written as text") as caught:
        read_manifest({"name": value})
    assert caught.value.problem.exit_code == 78


def test_submit_sends_mapping_as_text(daemon: FakeDaemon, model: Path) -> None:
    with Client(daemon.path, start=False) as client:
        client.submit(WHOLE, model)
        client.submit({"name": "plain", "path": Path("/data"), "more": {"list": (1, 2)}}, model)
    sent = [json.loads(submission.manifest) for submission in daemon.submissions.values()]
    assert sent == [WHOLE, {"name": "plain", "path": "/data", "more": {"list": [1, 2]}}]


def test_submit_raises_python_warning_for_each_warning(
    daemon: FakeDaemon, manifest: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Client.send

    def send_with_warning(self: Client, submissions: Any) -> list[SubmissionResult]:
        return [
            SubmissionResult(result.id, warnings=("no limit", "no data"), elements=result.elements)
            for result in send(self, submissions)
        ]

    monkeypatch.setattr(Client, "send", send_with_warning)
    with Client(daemon.path, start=False) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = client.submit(manifest, model)
        client.submit_many([manifest, manifest], model)
    assert job.warnings == ("no limit", "no data")
    assert [str(one.message) for one in caught[:2]] == [f"{job.id}: no limit", f"{job.id}: no data"]
    assert len(caught) == 6
    assert {one.category for one in caught} == {SubmissionWarning}
    assert {one.filename for one in caught} == {__file__}, "the line that called the client"
