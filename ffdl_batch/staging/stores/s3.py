"""S3 and compatible stores, by botocore; and Google Cloud Storage, by its XML API.

botocore's retries are off: the engine retries, and reports each retry. Its checksums in trailers are off, too, because
many stores refuse them: each request carries a signed MD5 that the store checks, so the body is not read a second time
for a SHA-256 in the signature.

GCS differs from S3 only in how a client authenticates: HMAC keys sign as in S3, and a token, or one that is made for a
service account, is sent as a bearer token. s3fs and gcsfs are not used: see :mod:`ffdl_batch.staging`.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ffdl_batch import __version__
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.staging.faults import Denied, Fault, ObjectChanged, TemporaryFailure, UnknownUpload
from ffdl_batch.staging.stores.digests import count_of_parts, is_md5
from ffdl_batch.staging.stores.http import byte_range, failure_of_status, require_trusted
from ffdl_batch.staging.stores.shared_reads import SharedReads
from ffdl_batch.staging.stores.store import CHUNK_BYTES, Item, Sent, library

_CLASSES = {
    FaultClass.CREDENTIALS: (
        "AccessDenied", "AccountProblem", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed",
        "SignatureDoesNotMatch", "TokenRefreshRequired", "ExpiredTokenException", "InvalidClientTokenId",
        "AuthFailure", "AuthorizationHeaderMalformed", "NotSignedUp", "MissingSecurityHeader",
    ),
    FaultClass.MISSING: ("NoSuchBucket", "NoSuchKey", "NotFound"),
    FaultClass.FULL: ("QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "StorageFull"),
}  # fmt: skip
_CLASS_OF = {code: kind for kind, codes in _CLASSES.items() for code in codes}
"""Codes of S3. The HTTP status decides about others."""
_PASSING = {
    "SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "Throttling", "ThrottlingException",
    "RequestLimitExceeded", "OperationAborted", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch",
    "503 Slow Down", "TooManyRequests",
}  # fmt: skip
_NO_FILE = "/dev/null/none"
"""A path that can never be a file. Even /dev/null may have been replaced with a file, which botocore would read."""
_DIGESTS = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1", "ChecksumCRC32": "crc32"}


class S3Store:
    """One bucket. `connections`: maximum simultaneous requests. `token` returns a bearer token, if requests are not
    signed."""

    most_parts = 9000
    """S3's own limit is 10,000."""

    def __init__(
        self,
        address: StoreAddress,
        credentials: Mapping[str, str],
        connections: int,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._bucket = address.container
        self._errors = library("botocore.exceptions", "s3")
        self._shared = SharedReads(address, credentials if token is None else {})
        self._client = _client(address, credentials, connections)
        self._client.meta.events.register_last("before-call.s3", _at_once)
        if token is not None:
            self._client.meta.events.register("before-call.s3", _with_bearer(token))

    def listing(self, prefix: str, start_after: str = "") -> Iterator[list[Item]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        more: dict[str, str] = {"StartAfter": start_after} if start_after else {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **more)
            yield [
                Item(found["Key"], found["Size"], found["ETag"].strip('"'), found["LastModified"].timestamp())
                for found in page.get("Contents", [])
            ]
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def head(self, key: str) -> Item | None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        try:
            found = self._call("head_object", Key=key, ChecksumMode="ENABLED")
        except Fault as fault:
            if fault.kind is FaultClass.MISSING:
                return None
            if fault.kind is FaultClass.REFUSED:  # an answer to HEAD has no body that would say why
                self._call("list_objects_v2", Prefix=key, MaxKeys=1)
            raise
        etag = found["ETag"].strip('"')
        opaque = found.get("ServerSideEncryption", "").startswith("aws:kms") or "SSECustomerAlgorithm" in found
        whole = found.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in etag
        digests = {
            name: base64.b64decode(found[field]).hex()
            for field, name in _DIGESTS.items()
            if field in found and "-" not in found[field] and (whole or found.get("ChecksumType") == "FULL_OBJECT")
        }
        size = found["ContentLength"]
        part = self._length_of_part(key, 1) if count_of_parts(etag) > 1 else 0
        part = 0 if part == size else part  # a store that knows of no parts
        return Item(key, size, etag, found["LastModified"].timestamp(), True, opaque, digests, part)

    def lengths_of_parts(self, item: Item) -> list[int]:
        """See :class:`ffdl_batch.staging.stores.store.KnowsParts`."""
        numbers = range(1, count_of_parts(item.etag) + 1)
        found = [self._length_of_part(item.key, number) for number in numbers]
        return found if sum(found) == item.size else []

    def _length_of_part(self, key: str, number: int) -> int:
        try:
            found = self._call("head_object", Key=key, PartNumber=number)
        except (Fault, ObjectChanged):  # not every store knows of parts
            return 0
        return int(found["ContentLength"])

    @contextmanager
    def read(self, item: Item, start: int, end: int) -> Iterator[Iterator[bytes]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        with self._shared.read(item, start, end) as shared:
            if shared is not None:
                yield shared
                return
        wanted = byte_range(item, start, end)
        asked = {"Range": wanted} if wanted else {}
        found = self._call("get_object", Key=item.key, IfMatch=f'"{item.etag}"', **asked)
        body = found["Body"]
        try:
            if found["ETag"].strip('"') != item.etag:
                raise ObjectChanged
            if asked and found["ContentLength"] > end - start:
                raise Fault(FaultClass.REFUSED, "the store does not give parts of objects", item.key)
            yield self._chunks(body)
        finally:
            body.close()

    def _chunks(self, body: Any) -> Iterator[bytes]:
        while True:
            try:
                data = body.read(CHUNK_BYTES)
            except (self._errors.BotoCoreError, OSError) as error:
                raise TemporaryFailure(f"the answer broke off: {_reason(error)}") from error
            if not data:
                return
            yield data

    def put(self, key: str, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        return _stored(self._call("put_object", Key=key, **_body(sent)), sent)

    def close(self) -> None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        self._client.close()

    def begin(self, key: str) -> str:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        return str(self._call("create_multipart_upload", Key=key)["UploadId"])

    def put_part(self, key: str, upload: str, number: int, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        done = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, **_body(sent))
        return _stored(done, sent)

    def complete(self, key: str, upload: str, etags: list[str]) -> str:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        parts = [{"ETag": f'"{etag}"', "PartNumber": number} for number, etag in enumerate(etags, 1)]
        done = self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        return _etag(done)

    def abort(self, key: str, upload: str) -> None:
        """See :class:`ffdl_batch.staging.stores.store.StoresInParts`."""
        try:
            self._call("abort_multipart_upload", Key=key, UploadId=upload)
        except UnknownUpload:
            return

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, name)(Bucket=self._bucket, **arguments)
        except self._errors.ClientError as error:
            raise self._classified(error.response, arguments.get("Key", "")) from error
        except (self._errors.ParamValidationError, self._errors.UnsupportedSignatureVersionError) as error:
            raise Fault(FaultClass.REFUSED, _reason(error), arguments.get("Key", "")) from error
        except self._errors.SSLError as error:
            require_trusted(error)
            raise TemporaryFailure(_reason(error)) from error
        except (self._errors.BotoCoreError, OSError) as error:
            raise TemporaryFailure(_reason(error)) from error

    @staticmethod
    def _classified(answer: Mapping[str, Any], key: str) -> Exception:
        """The exception that an answer of the store is."""
        error, status = answer.get("Error", {}), answer["ResponseMetadata"]["HTTPStatusCode"]
        code = str(error.get("Code", status))
        named = f"{status} {code}" if code != str(status) else code  # an answer without S3's body has no code
        reply = f"it answered {named}" + (f" ({error['Message']})" if error.get("Message") else "")
        if code == "NoSuchUpload":
            return UnknownUpload()
        if code in _PASSING:
            return TemporaryFailure(reply)
        if code == "AccessDenied" and key:
            return Denied(reply, key)
        kind = _CLASS_OF.get(code)
        return failure_of_status(status, reply, key) if kind is None else Fault(kind, reply, key)


def _at_once(params: dict[str, Any], **_: Any) -> None:
    """Send small bodies without asking: the question costs as much as the body."""
    if isinstance(params.get("body"), io.BytesIO):
        params["headers"].pop("Expect", None)


def _with_bearer(token: Callable[[], str]) -> Callable[..., None]:
    def add(params: dict[str, Any], **_: Any) -> None:
        params["headers"]["Authorization"] = f"Bearer {token()}"

    return add


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _stored(answer: Mapping[str, Any], sent: Sent) -> str:
    """Return the ETag of a stored object, which is its MD5 unless the store encrypts it. Raises TemporaryFailure."""
    etag = _etag(answer)
    if is_md5(etag) and etag != sent.md5 and "ServerSideEncryption" not in answer:
        raise TemporaryFailure("what the store has is not what was sent")
    return etag


def _reason(error: Exception) -> str:
    return str(error).replace("\n", " ") or type(error).__name__


def moment_of(value: Any) -> datetime:
    """Parse a time. botocore's own parser supports every format, and takes longer than the rest of a listing. Raises
    ValueError."""
    if isinstance(value, str):
        with suppress(ValueError):
            if value.endswith("Z"):
                return datetime.fromisoformat(value)
            if value.endswith(" GMT"):
                return parsedate_to_datetime(value)
    found: datetime = library("botocore.utils", "s3").parse_timestamp(value)
    return found


def _body(sent: Sent) -> dict[str, Any]:
    md5 = base64.b64encode(bytes.fromhex(sent.md5)).decode()
    return {"Body": sent.body, "ContentLength": sent.size, "ContentMD5": md5}


def _client(address: StoreAddress, credentials: Mapping[str, str], connections: int) -> Any:
    """Return a client that uses only the task's settings, and nothing of the user's files and environment."""
    botocore = library("botocore", "s3")
    session = library("botocore.session", "s3").Session()
    for variable in ("config_file", "credentials_file"):
        session.set_config_variable(variable, _NO_FILE)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment_of)
    timeout_s = float(address.options.get("timeout_s", "60"))
    style = address.options.get("path_style", "true" if address.endpoint else "false")
    config = library("botocore.config", "s3").Config(
        signature_version=None if credentials else botocore.UNSIGNED,
        connect_timeout=min(timeout_s, 15),
        read_timeout=timeout_s,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path" if style == "true" else "auto", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent=f"ffdl-batch/{__version__}",  # else botocore composes one for each request
    )
    try:
        return session.create_client(
            "s3",
            region_name=address.region or "us-east-1",
            endpoint_url=address.endpoint or None,
            verify=address.options.get("ca_file") or None,
            aws_access_key_id=credentials.get("user_name"),
            aws_secret_access_key=credentials.get("password"),
            aws_session_token=credentials.get("session_token"),
            config=config,
        )
    except ValueError as error:
        raise Fault(FaultClass.TASK, f"its address or region cannot be used: {_reason(error)}") from error


ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
EARLY_S = 300


def gcs_store(address: StoreAddress, credentials: Mapping[str, str], connections: int) -> S3Store:
    """Return the bucket. Raises Fault."""
    here = replace(address, endpoint=address.endpoint or ENDPOINT, region=address.region or "auto")
    keys = {name: value for name, value in credentials.items() if name in ("user_name", "password")}
    if "service_account" in credentials:
        return S3Store(here, {}, connections, ServiceAccount(credentials["service_account"]).token)
    if "token" in credentials:
        token = credentials["token"]
        return S3Store(here, {}, connections, lambda: token)
    return S3Store(here, keys, connections)


class ServiceAccount:
    """An account by the text of its JSON file. Raises Fault if the text is invalid."""

    def __init__(self, text: str, clock: Callable[[], float] = time.time) -> None:
        accounts = library("google.oauth2.service_account", "gcs")
        self._errors, self._clock = library("google.auth.exceptions", "gcs"), clock
        try:
            self._account: Any = accounts.Credentials.from_service_account_info(json.loads(text), scopes=[SCOPE])
        except (ValueError, KeyError, TypeError, self._errors.GoogleAuthError):
            raise Fault(FaultClass.CREDENTIALS, "its service account is not the text of a key file") from None
        self._lock = threading.Lock()

    def token(self) -> str:
        """Return a token that is valid for some minutes. Raises TemporaryFailure, Fault."""
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
            raise TemporaryFailure(f"no token for the service account: {error}") from error
        except self._errors.GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise TemporaryFailure(f"no token for the service account: {error}") from error
            raise Fault(FaultClass.CREDENTIALS, "its service account gets no token") from error


def _seconds(expiry: Any) -> float:
    from datetime import UTC

    return float(expiry.replace(tzinfo=UTC).timestamp())
