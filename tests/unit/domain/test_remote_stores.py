"""Stores as people name them, and how the staging program reaches what a manifest calls a data store."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.data.store_urls import StoreOptions, StorePlace, StoreUrlError, format_store_url, read_store_url
from ffdl_batch.domain.job.data_stores import REMOTE, StoreRefused, address_of, place_in, place_of_results
from ffdl_batch.domain.job.spec import DataStore, StoreType

S3, GCS, SWIFT, HTTP, FILE, FSSPEC = (
    StoreKind.S3, StoreKind.GCS, StoreKind.SWIFT, StoreKind.HTTP, StoreKind.FILE, StoreKind.FSSPEC
)  # fmt: skip


SAID_AGAIN = {"S3://bucket/a/b c#?/": "s3://bucket/a/b c#?", "sftp://host/~": "sftp://host/~/",
              "file:///data/my%20set/": "file:///data/my%20set"}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "kind", "endpoint", "container", "prefix"),
    [
        ("s3://bucket", S3, "", "bucket", ""),
        ("s3://bucket/a/b c#?", S3, "", "bucket", "a/b c#?"),
        ("S3://bucket/a/b c#?/", S3, "", "bucket", "a/b c#?"),
        ("gs://bucket/a", GCS, "", "bucket", "a"),
        ("swift://container/a", SWIFT, "", "container", "a"),
        ("file:///data/my%20set", FILE, "", "/data/my set", ""),
        ("file:///data/my%20set/", FILE, "", "/data/my set", ""),
        ("https://web:8443/a%20b/c.tar", HTTP, "https://web:8443", "", "a b/c.tar"),
        ("sftp://host:2222/data/set", FSSPEC, "host:2222", "/", "data/set"),
        ("sftp://host/~/set", FSSPEC, "host", "", "set"),
        ("sftp://host/~", FSSPEC, "host", "", ""),
        ("sftp://host/~ada/set", FSSPEC, "host", "/", "~ada/set"),
        ("abfs://container/a", FSSPEC, "", "container", "a"),
    ],
)
def test_read_store_url_parses_each_scheme_into_address_and_prefix_and_back(
    url: str, kind: StoreKind, endpoint: str, container: str, prefix: str
) -> None:
    found = read_store_url(url, StoreOptions())
    address = found.address
    assert (address.kind, address.endpoint, address.container, found.prefix) == (kind, endpoint, container, prefix)
    assert address.credentials == {}
    if kind is FSSPEC:
        assert address.options["protocol"] == url.partition(":")[0]
    assert format_store_url(address, found.prefix) == SAID_AGAIN.get(url, url)


def test_read_store_url_applies_requested_options_and_user() -> None:
    options = StoreOptions("https://store", "eu", {"ca_file": "/ca.pem"})
    made = read_store_url("s3://bucket/a", options)
    assert made == StorePlace(StoreAddress(S3, "https://store", "eu", "bucket", {"ca_file": "/ca.pem"}), "a")
    assert read_store_url("sftp://ada@host/a", StoreOptions()).user == "ada"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        *((url, "") for url in (
            "", "bucket/a", "/data", "s3:/bucket", "s3://", "s3:///a", "file://host/a", "file:///", "https://",
            "sftp:///a", "https://web/a?key=1", "s3://planted@bucket/a", "s3://planted:planted@bucket",
            "https://u:planted@web/a", "https://[::1/x", "https://[zz]:9/x", "https://a]b/x", "http://h:x/y", "sftp://[::1/x",
        )),
        ("sftp://host/a", "https://other"),
        ("s3://b", "https://u:planted@other"),
        ("s3://b", "https://[::1"),
        ("swift://b", "https://a[b"),
    ],
)  # fmt: skip
def test_read_store_url_rejects_invalid_url_or_endpoint_without_printing_credentials(url: str, endpoint: str) -> None:
    with pytest.raises(StoreUrlError) as raised:
        read_store_url(url, StoreOptions(endpoint))
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        (
            "s3://b",
            StoreOptions(options={"ca_fiel": "/x"}),
            "'ca_fiel' is not an option of s3 stores; did you mean ca_file?",
        ),
        ("s3://b", StoreOptions(options={"domain_name": "x"}), "it has path_style, ca_file, timeout_s"),
        (
            "sftp://h/a",
            StoreOptions(options={"know_hosts": "/x"}),
            "an option of sftp stores; did you mean known_hosts?",
        ),
        ("https://h/a", StoreOptions(options={"qqq": "x"}), "'qqq' is not an option of a web server; it has ca_file"),
        ("file:///a", StoreOptions(options={"ca_file": "/x"}), "an option of a directory; it has none"),
        ("s3://b", StoreOptions(options={"path_style": "yes"}), "--option path_style: 'yes' is neither true nor false"),
        (
            "swift://b",
            StoreOptions(options={"timeout_s": "soon"}),
            "--option timeout_s: 'soon' is not a number of seconds",
        ),
        ("s3://b", StoreOptions(secrets={"username": "n"}), "credential of s3 stores; did you mean user_name?"),
        (
            "swift://b",
            StoreOptions(secrets={"private_key": "n"}),
            "a credential of swift stores; it has user_name, password",
        ),
        ("file:///a", StoreOptions(secrets={"password": "n"}), "a credential of a directory; it has none"),
        ("s3://b", StoreOptions(secrets={"password": "n"}), "--secret names a password and no user_name"),
        ("s3://b", StoreOptions(secrets={"session_token": "n"}), "--secret names a session_token and no user_name"),
        ("s3://b", StoreOptions(region="eu west"), "--region: 'eu west' is not the name of a region"),
        ("file:///a", StoreOptions("https://x"), "--endpoint is for buckets and containers"),
        ("sftp://h/a", StoreOptions(region="eu"), "--region is for s3://, gs:// and swift:// alone"),
    ],
)
def test_read_store_url_rejects_option_or_secret_that_store_does_not_use(
    url: str, options: StoreOptions, text: str
) -> None:
    with pytest.raises(StoreUrlError) as raised:
        read_store_url(url, options)
    assert text in str(raised.value)


def test_read_store_url_leaves_library_options_unchecked() -> None:
    made = read_store_url("abfs://b", StoreOptions(options={"account_name": "x"}, secrets={"sas_token": "n"}))
    assert made.address.options["account_name"] == "x"
    one_key = read_store_url("sftp://h/a", StoreOptions(options={"key_file": "k"}, secrets={"password": "n"}))
    assert one_key.address.options["key_file"] == "k"


KEYS = {"user_name": "${secret:s3-user_name}", "password": "${secret:s3-password}"}
NAMES = {"user_name": "s3-user_name", "password": "s3-password"}
URL = "https://s3.example.org"


def store(kind: StoreType, connection: Mapping[str, str]) -> DataStore:
    return DataStore("s3", kind, kind, "in", "out", connection)


@pytest.mark.parametrize("kind", [StoreType.MOUNT_COS, StoreType.S3_DATASTORE, StoreType.SOFTLAYER_OBJECTSTORE])
def test_address_of_maps_object_store_types_to_s3(kind: StoreType) -> None:
    connection = {"auth_url": URL, "region": "eu-de", "name": "n", **KEYS}
    assert address_of(store(kind, connection)) == StoreAddress(StoreKind.S3, URL, "eu-de", credentials=NAMES)


def test_address_of_passes_options_and_session_token_and_accepts_s3_store_without_endpoint_or_credentials() -> None:
    options = {"path_style": "false", "ca_file": "/etc/ca.pem", "timeout_s": "20"}
    found = address_of(store(StoreType.MOUNT_COS, {**options, "session_token": "${secret:t}", **KEYS}))
    assert (found.options, found.credentials) == (options, {**NAMES, "session_token": "t"})
    public = address_of(store(StoreType.S3_DATASTORE, {"region": "us-east-2"}))
    assert public == StoreAddress(StoreKind.S3, region="us-east-2")


@pytest.mark.parametrize(
    ("kind", "connection"),
    [
        (StoreType.SWIFT_DATASTORE, {"auth_url": URL}),
        (StoreType.SOFTLAYER_OBJECTSTORE, {"auth_url": f"{URL}/auth/v1.0/"}),
        (StoreType.BLUEMIX_OBJECTSTORE, {"auth_url": f"{URL}/v3"}),
        (StoreType.BLUEMIX_OBJECTSTORE, {"auth_url": URL, "project_id": "p", "domain_name": "d"}),
    ],
)
def test_address_of_maps_stores_with_token_endpoint_to_swift(kind: StoreType, connection: dict[str, str]) -> None:
    found = address_of(store(kind, {**connection, **KEYS}))
    options = {key: connection[key] for key in ("domain_name", "project_id") if key in connection}
    assert (found.kind, found.endpoint, found.options) == (StoreKind.SWIFT, connection["auth_url"], options)


def test_address_of_maps_gcs_and_http_stores_with_credentials() -> None:
    google = address_of(store(StoreType.GCS_DATASTORE, {"service_account": "${file:/home/me/key.json}"}))
    assert google == StoreAddress(StoreKind.GCS, credentials={"service_account": "file:/home/me/key.json"})
    web = address_of(store(StoreType.HTTP_DATASTORE, {"auth_url": URL, "token": "${env:TOKEN}"}))
    assert web == StoreAddress(StoreKind.HTTP, URL, credentials={"token": "env:TOKEN"})


def test_address_of_maps_fsspec_protocol_options_and_credentials() -> None:
    connection = {"protocol": "sftp", "host": "files.example.org:2022", "path": "/srv", "private_key": "${file:/k}"}
    found = address_of(store(StoreType.FSSPEC_DATASTORE, {**connection, "user_name": "${secret:me}", "timeout_s": "9"}))
    assert found == StoreAddress(
        StoreKind.FSSPEC, "files.example.org:2022", container="/srv", options={"protocol": "sftp", "timeout_s": "9"},
        credentials={"user_name": "me", "private_key": "file:/k"},
    )  # fmt: skip
    connection = {"protocol": "abfs", "account_name": "data", "account_key": "${secret:key}", "type": "", "name": "n"}
    found = address_of(store(StoreType.FSSPEC_DATASTORE, connection))
    assert found.options == {"protocol": "abfs", "account_name": "data"}
    assert (found.endpoint, found.container, found.credentials) == ("", "", {"account_key": "key"})


@pytest.mark.parametrize(
    ("kind", "container", "bucket", "prefix"),
    [
        (StoreType.MOUNT_COS, "in", "in", ""),
        (StoreType.MOUNT_COS, "in/a//b/", "in", "a/b"),
        (StoreType.GCS_DATASTORE, "in/a", "in", "a"),
        (StoreType.HTTP_DATASTORE, "sets/mnist.npz", "", "sets/mnist.npz"),
        (StoreType.FSSPEC_DATASTORE, "sets/./mnist/", "", "sets/mnist"),
    ],
)
def test_place_in_splits_bucket_and_prefix(kind: StoreType, container: str, bucket: str, prefix: str) -> None:
    address, found = place_in(store(kind, {"auth_url": URL, "protocol": "ftp"}), container)
    assert (address.container, found) == (bucket, prefix)


MALFORMED = ("https://[::1", "https://[zz]:9", "https://a]b", "https://a[b", "https://\u2100")
WITH_ADDRESS = (
    StoreType.MOUNT_COS, StoreType.S3_DATASTORE, StoreType.SWIFT_DATASTORE, StoreType.GCS_DATASTORE,
    StoreType.HTTP_DATASTORE, StoreType.SOFTLAYER_OBJECTSTORE, StoreType.BLUEMIX_OBJECTSTORE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "connection", "path", "words"),
    [
        (StoreType.INMEM_DATASTORE, {}, "type", "keeps nothing"),
        (StoreType.SWIFT_DATASTORE, {}, "connection.auth_url", "not set"),
        (StoreType.HTTP_DATASTORE, {}, "connection.auth_url", "not set"),
        (StoreType.MOUNT_COS, {"auth_url": "s3.example.org"}, "connection.auth_url", "not the address"),
        (StoreType.MOUNT_COS, {"auth_url": "https://s3:x/"}, "connection.auth_url", "not the address"),
        (StoreType.MOUNT_COS, {"auth_url": "ftp://s3.example.org"}, "connection.auth_url", "not the address"),
        (StoreType.MOUNT_COS, {"auth_url": "https://me@s3.example.org"}, "connection.auth_url", "not the address"),
        (StoreType.MOUNT_COS, {"auth_url": "${secret:s3-auth_url}"}, "connection.auth_url", "name or a password"),
        (StoreType.MOUNT_COS, {"user_name": "${secret:a}"}, "connection.user_name", "no password"),
        (StoreType.MOUNT_COS, {"password": "${secret:a}"}, "connection.password", "no user_name"),
        (
            StoreType.MOUNT_COS,
            {"user_name": "me", "password": "${secret:a}"},
            "connection.user_name",
            "not a reference",
        ),
        (StoreType.MOUNT_COS, {"path_style": "yes"}, "connection.path_style", "neither true nor false"),
        (StoreType.MOUNT_COS, {"ca_file": "ca.pem"}, "connection.ca_file", "not absolute"),
        (StoreType.FSSPEC_DATASTORE, {}, "connection.protocol", "not set"),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "sftp://host"}, "connection.protocol", "not a protocol"),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "s3"}, "connection.protocol", "type of store of its own"),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "sftp"}, "connection.host", "not set"),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "sftp", "host": "me@h"}, "connection.host", "not a host"),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "ftp", "path": "a/../.."}, "connection.path", "upwards"),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "ftp", "key_file": "id"}, "connection.key_file", "not absolute"),
        *(
            (kind, {"auth_url": url}, "connection.auth_url", "not the address")
            for url in MALFORMED
            for kind in WITH_ADDRESS
        ),
        (StoreType.FSSPEC_DATASTORE, {"protocol": "sftp", "host": "[::1"}, "connection.host", "not a host"),
        (StoreType.MOUNT_COS, {"session_token": "${secret:t}"}, "connection.session_token", "no user_name"),
        (StoreType.S3_DATASTORE, {"region": "eu west"}, "connection.region", "not the name of a region"),
        (StoreType.GCS_DATASTORE, {"region": "eu/west"}, "connection.region", "not the name of a region"),
        (StoreType.MOUNT_COS, {"timeout_s": "0"}, "connection.timeout_s", "not a number of seconds"),
    ],
)
def test_address_of_rejects_unusable_connection_with_path_and_cure(
    kind: StoreType, connection: dict[str, str], path: str, words: str
) -> None:
    with pytest.raises(StoreRefused, match=words) as refused:
        address_of(store(kind, connection))
    assert refused.value.path == path
    assert refused.value.cure


def test_remote_store_types_exclude_directories_and_mounts() -> None:
    assert frozenset(StoreType) - REMOTE == {StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, StoreType.DIRECTORY}


def test_place_of_results_returns_first_usable_remote_result_store() -> None:
    bucket = DataStore("a", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "in", "out/deep", {"auth_url": URL})
    only_data = DataStore("b", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "in", "", {"auth_url": URL})
    directory = DataStore("c", StoreType.DIRECTORY, StoreType.DIRECTORY, "", "kept", {"path": "/nfs"})
    refused = DataStore("d", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "", "out", {"auth_url": "nowhere"})
    found = place_of_results((only_data, bucket), "training-1")
    assert found == (StoreAddress(StoreKind.S3, URL, container="out"), "deep/training-1")
    for stores in ((), (only_data,), (directory,), (refused,)):
        assert place_of_results(stores, "training-1") is None
