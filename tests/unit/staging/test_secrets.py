"""Secrets: handed to stores, never said."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, StageTask, Transfer, encode_task
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging import program
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.secrets import Secrets, read_secrets

VALUE = "planted-value"
STORE = StoreAddress(StoreKind.S3, credentials={"password": "name"})


def test_secrets_are_found_by_name_and_scrubbed_from_text(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"name": VALUE, "long": f"{VALUE}-longer", "short": "a"}))
    secrets = read_secrets(str(path))
    assert secrets.of(STORE) == {"password": VALUE}
    assert secrets.scrub(f"a {VALUE} and {VALUE}-longer") == "a *** and ***"
    assert VALUE not in repr(secrets)


def test_secrets_report_name_of_missing_secret() -> None:
    with pytest.raises(Fault, match="no secret name for its password") as raised:
        Secrets({}).of(STORE)
    assert raised.value.kind is FaultClass.CREDENTIALS
    assert read_secrets("").values == {}


@pytest.mark.parametrize("text", [VALUE, f'["{VALUE}"]', f'{{"name": ["{VALUE}"]}}'])
def test_read_secrets_hides_content_of_invalid_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(text)
    for place in (path, tmp_path / "missing"):
        with pytest.raises(Fault) as raised:
            read_secrets(str(place))
        assert raised.value.kind is FaultClass.INTERNAL
        assert VALUE not in str(raised.value)


def test_staging_program_limits_core_dump_before_reading_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit is set before it reads them."""
    limits: list[object] = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, values: limits.append((what, values[0])))

    def read(_: str) -> Secrets:
        limits.append("read")
        return Secrets({})

    monkeypatch.setattr(program, "read_secrets", read)
    transfer = Transfer(StoreAddress(StoreKind.FILE, container=str(tmp_path)), "", str(tmp_path / "in"))
    task = StageTask(Direction.IN, (transfer,), str(tmp_path / "state"), str(tmp_path / "secrets.json"))
    (tmp_path / "task.json").write_text(encode_task(task))
    with (tmp_path / "said").open("wb") as said:
        program.run_program(str(tmp_path / "task.json"), check=True, output=said.fileno())
    assert limits == [(resource.RLIMIT_CORE, 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1), "read"]
