"""Secrets: handed to stores, never said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.domain.staging import FaultClass, StoreAddress, StoreKind
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.secrets import Secrets, read_secrets

VALUE = "planted-value"
STORE = StoreAddress(StoreKind.S3, credentials={"password": "name"})


def test_values_are_found_by_name_and_scrubbed(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"name": VALUE, "long": f"{VALUE}-longer", "short": "a"}))
    secrets = read_secrets(str(path))
    assert secrets.of(STORE) == {"password": VALUE}
    assert secrets.scrub(f"a {VALUE} and {VALUE}-longer") == "a *** and ***"
    assert VALUE not in repr(secrets)


def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(Fault, match="no secret name for its password") as raised:
        Secrets({}).of(STORE)
    assert raised.value.kind is FaultClass.CREDENTIALS
    assert read_secrets("").values == {}


@pytest.mark.parametrize("text", [VALUE, f'["{VALUE}"]', f'{{"name": ["{VALUE}"]}}'])
def test_a_file_that_is_none_is_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(text)
    for place in (path, tmp_path / "missing"):
        with pytest.raises(Fault) as raised:
            read_secrets(str(place))
        assert raised.value.kind is FaultClass.TASK
        assert VALUE not in str(raised.value)
