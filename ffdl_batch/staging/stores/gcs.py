"""Google Cloud Storage by its XML API, which is S3's with another way to say who asks.

So it is one engine for both: gcsfs would be a second one with tries and pools of its own. HMAC keys sign as in S3, a
token or a service account is a bearer's. The token of a service account is made anew before it ends.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass, StoreAddress
from ffdl_batch.staging.faults import Fault, Passing
from ffdl_batch.staging.stores.optional_libraries import library
from ffdl_batch.staging.stores.s3 import S3Store

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
EARLY_S = 300


def gcs_store(address: StoreAddress, credentials: Mapping[str, str], connections: int) -> S3Store:
    """The bucket. Raises Fault."""
    here = replace(address, endpoint=address.endpoint or ENDPOINT, region=address.region or "auto")
    keys = {name: value for name, value in credentials.items() if name in ("user_name", "password")}
    if "service_account" in credentials:
        return S3Store(here, {}, connections, ServiceAccount(credentials["service_account"]).token)
    if "token" in credentials:
        token = credentials["token"]
        return S3Store(here, {}, connections, lambda: token)
    return S3Store(here, keys, connections)


class ServiceAccount:
    """An account by the text of its JSON file. Raises Fault where it is none."""

    def __init__(self, text: str, clock: Callable[[], float] = time.time) -> None:
        accounts = library("google.oauth2.service_account", "gcs")
        self._errors, self._clock = library("google.auth.exceptions", "gcs"), clock
        try:
            self._account: Any = accounts.Credentials.from_service_account_info(json.loads(text), scopes=[SCOPE])
        except (ValueError, KeyError, TypeError, self._errors.GoogleAuthError):
            raise Fault(FaultClass.CREDENTIALS, "its service account is not the text of a key file") from None
        self._lock = threading.Lock()

    def token(self) -> str:
        """One that is good for some minutes. Raises Passing, Fault."""
        with self._lock:
            expiry = self._account.expiry
            if not self._account.token or expiry is None or _seconds(expiry) - self._clock() < EARLY_S:
                self._renew()
            return str(self._account.token)

    def _renew(self) -> None:
        transport, urllib3 = library("google.auth.transport.urllib3", "gcs"), library("urllib3", "gcs")
        try:
            with urllib3.PoolManager() as pool:
                self._account.refresh(transport.Request(pool))
        except self._errors.TransportError as error:
            raise Passing(f"no token for the service account: {error}") from error
        except self._errors.GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise Passing(f"no token for the service account: {error}") from error
            raise Fault(FaultClass.CREDENTIALS, "its service account gets no token") from error


def _seconds(expiry: Any) -> float:
    from datetime import UTC

    return float(expiry.replace(tzinfo=UTC).timestamp())
