"""Stores as people name them."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.staging import StoreAddress, StoreKind
from ffdl_batch.domain.store_urls import StorePlace, StoreUrlError, Wishes, read_store_url, say_store_url

S3, GCS, SWIFT, HTTP, FILE, FSSPEC = (
    StoreKind.S3, StoreKind.GCS, StoreKind.SWIFT, StoreKind.HTTP, StoreKind.FILE, StoreKind.FSSPEC
)  # fmt: skip


@pytest.mark.parametrize(
    ("url", "kind", "endpoint", "container", "prefix"),
    [
        ("s3://bucket", S3, "", "bucket", ""),
        ("S3://bucket/a/b c#?/", S3, "", "bucket", "a/b c#?"),
        ("gs://bucket/a", GCS, "", "bucket", "a"),
        ("swift://container/a", SWIFT, "", "container", "a"),
        ("file:///data/my%20set/", FILE, "", "/data/my set", ""),
        ("https://web:8443/a%20b/c.tar", HTTP, "https://web:8443", "", "a b/c.tar"),
        ("sftp://host:2222/data/set", FSSPEC, "host:2222", "/", "data/set"),
        ("sftp://host/~/set", FSSPEC, "host", "", "set"),
        ("sftp://host/~", FSSPEC, "host", "", ""),
        ("sftp://host/~ada/set", FSSPEC, "host", "/", "~ada/set"),
        ("abfs://container/a", FSSPEC, "", "container", "a"),
    ],
)
def test_read_store_url_parses_each_scheme_into_address_and_prefix(
    url: str, kind: StoreKind, endpoint: str, container: str, prefix: str
) -> None:
    found = read_store_url(url, Wishes())
    address = found.address
    assert (address.kind, address.endpoint, address.container, found.prefix) == (kind, endpoint, container, prefix)
    assert address.credentials == {}
    if kind is FSSPEC:
        assert address.options["protocol"] == url.partition(":")[0]


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket", "s3://bucket/a/b c#?", "gs://bucket/a", "swift://container/a", "file:///data/my%20set",
        "https://web:8443/a%20b/c.tar", "sftp://host:2222/data/set", "sftp://host/~/set", "abfs://container/a",
    ],
)  # fmt: skip
def test_store_url_survives_read_and_format_round_trip(url: str) -> None:
    found = read_store_url(url, Wishes())
    assert say_store_url(found.address, found.prefix) == url


def test_read_store_url_applies_requested_options_and_user() -> None:
    wishes = Wishes("https://store", "eu", {"ca_file": "/ca.pem"})
    made = read_store_url("s3://bucket/a", wishes)
    assert made == StorePlace(StoreAddress(S3, "https://store", "eu", "bucket", {"ca_file": "/ca.pem"}), "a")
    assert read_store_url("sftp://ada@host/a", Wishes()).user == "ada"


@pytest.mark.parametrize(
    "url",
    [
        "", "bucket/a", "/data", "s3:/bucket", "s3://", "s3:///a", "file://host/a", "file:///", "https://", "sftp:///a",
        "https://web/a?key=1", "s3://planted@bucket/a", "s3://planted:planted@bucket", "https://u:planted@web/a",
    ],
)  # fmt: skip
def test_read_store_url_rejects_invalid_url_without_printing_credentials(url: str) -> None:
    with pytest.raises(StoreUrlError) as raised:
        read_store_url(url, Wishes())
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "endpoint"), [("sftp://host/a", "https://other"), ("s3://b", "https://u:planted@other")]
)
def test_read_store_url_rejects_unusable_endpoint_without_printing_credentials(url: str, endpoint: str) -> None:
    with pytest.raises(StoreUrlError) as raised:
        read_store_url(url, Wishes(endpoint))
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "wishes", "text"),
    [
        ("s3://b", Wishes(options={"ca_fiel": "/x"}), "'ca_fiel' is not an option of s3 stores; did you mean ca_file?"),
        ("s3://b", Wishes(options={"domain_name": "x"}), "it has path_style, ca_file, timeout_s"),
        ("sftp://h/a", Wishes(options={"know_hosts": "/x"}), "an option of sftp stores; did you mean known_hosts?"),
        ("https://h/a", Wishes(options={"qqq": "x"}), "'qqq' is not an option of a web server; it has ca_file"),
        ("file:///a", Wishes(options={"ca_file": "/x"}), "an option of a directory; it has none"),
        ("s3://b", Wishes(options={"path_style": "yes"}), "--option path_style: 'yes' is neither true nor false"),
        ("swift://b", Wishes(options={"timeout_s": "soon"}), "--option timeout_s: 'soon' is no number of seconds"),
        ("s3://b", Wishes(secrets={"username": "n"}), "credential of s3 stores; did you mean user_name?"),
        ("swift://b", Wishes(secrets={"private_key": "n"}), "a credential of swift stores; it has user_name, password"),
        ("file:///a", Wishes(secrets={"password": "n"}), "a credential of a directory; it has none"),
        ("s3://b", Wishes(secrets={"password": "n"}), "--secret names a password and no user_name"),
        ("file:///a", Wishes("https://x"), "--endpoint is for buckets and containers"),
        ("sftp://h/a", Wishes(region="eu"), "--region is for s3://, gs:// and swift:// alone"),
    ],
)  # fmt: skip
def test_read_store_url_rejects_option_or_secret_that_store_does_not_use(url: str, wishes: Wishes, text: str) -> None:
    with pytest.raises(StoreUrlError) as raised:
        read_store_url(url, wishes)
    assert text in str(raised.value)


def test_read_store_url_leaves_library_options_unchecked() -> None:
    made = read_store_url("abfs://b", Wishes(options={"account_name": "x"}, secrets={"sas_token": "n"}))
    assert made.address.options["account_name"] == "x"
    one_key = read_store_url("sftp://h/a", Wishes(options={"key_file": "k"}, secrets={"password": "n"}))
    assert one_key.address.options["key_file"] == "k"
