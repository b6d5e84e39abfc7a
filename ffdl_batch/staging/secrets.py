"""The values of a task's secrets: read them from their file, give them to stores, and keep them out of reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.domain.redaction import without_values
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Fault


@dataclass(frozen=True)
class Secrets:
    """Values by name. repr does not show them."""

    values: Mapping[str, str] = field(repr=False)

    def of(self, store: StoreAddress) -> dict[str, str]:
        """Return the store's credentials by field. Raises Fault with the name of a missing secret."""
        found = {}
        for name, secret in store.credentials.items():
            if secret not in self.values:
                raise Fault(FaultClass.CREDENTIALS, f"there is no secret {secret} for its {name}")
            found[name] = self.values[secret]
        return found

    def scrub(self, text: str) -> str:
        """Return the text without the values."""
        return without_values(text, self.values.values())


def read_secrets(path: str) -> Secrets:
    """Read the file ("" = none). Raises Fault, without any content of the file."""
    if not path:
        return Secrets({})
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Fault(FaultClass.INTERNAL, f"the file of secrets cannot be read: {error.strerror}") from None
    except ValueError:
        raise Fault(FaultClass.INTERNAL, "the file of secrets is not JSON") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Fault(FaultClass.INTERNAL, "the file of secrets does not map names to texts")
    return Secrets(found)
