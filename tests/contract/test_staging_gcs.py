"""Google's store by its XML API: the same requests as S3's (the server here is S3's), with a bearer's token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, Retry
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests.contract.linked_tree import check_round_trip
from tests.fakes.serving import serving
from tests.staging_rig import StagingRig, rig

__all__ = ["rig"]
TOKEN = "planted-bearer-token"


class Office:
    """Gives tokens to service accounts."""

    def __init__(self) -> None:
        self.asked, self.status, office = 0, 200, self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                assert "assertion=" in form
                office.asked += 1
                given, refused = {"access_token": TOKEN, "expires_in": 3600}, {"error": "invalid_grant"}
                body = json.dumps(given if office.status == 200 else refused).encode()
                self.send_response_only(office.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/token"


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    with serving(made.server):
        yield made


def account(office: Office) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
    return json.dumps({"client_email": "me@project", "private_key": pem, "token_uri": office.url})


def bearers(rig: StagingRig) -> set[str]:
    return set(rig.proxy.authorizations)


def gcs(rig: StagingRig, *fields: str) -> StoreAddress:
    return StoreAddress(StoreKind.GCS, rig.proxy.endpoint, "", rig.bucket, {}, {name: name for name in fields})


def test_gcs_store_transfers_both_ways_with_one_service_account_token(rig: StagingRig, office: Office) -> None:
    rig.put("set/a", b"1")
    rig.secrets.write_text(json.dumps({"service_account": account(office)}))
    assert rig.run(rig.task(prefix="set", store=gcs(rig, "service_account"))).done.files == 1
    assert (office.asked, bearers(rig)) == (1, {f"Bearer {TOKEN}"})
    out = rig.task(Direction.OUT, "job", store=gcs(rig, "service_account"))
    assert rig.run(out).done.files == 1
    assert rig.get("job/a") == b"1"


@pytest.mark.usefixtures("bound_by_modes")
def test_gcs_store_keeps_links_modes_holes_and_empty_directories(rig: StagingRig, office: Office) -> None:
    rig.secrets.write_text(json.dumps({"service_account": account(office)}))
    check_round_trip(rig, gcs(rig, "service_account"))


def test_gcs_store_fails_without_request_when_service_account_gets_no_token(rig: StagingRig, office: Office) -> None:
    office.status = 400
    for text in (account(office), "is not JSON", "{}"):
        rig.secrets.write_text(json.dumps({"service_account": text}))
        outcome = rig.run(rig.task(store=gcs(rig, "service_account")), check=True)
        assert (outcome.status, outcome.failed.class_, outcome.of(Retry)) == (77, FaultClass.CREDENTIALS, [])
    assert rig.proxy.requests == []


@pytest.mark.parametrize(
    ("fields", "begins"), [(("token",), "Bearer x"), (("user_name", "password"), "AWS4"), ((), "")]
)
def test_gcs_store_sends_authorization_header_for_given_credentials(
    rig: StagingRig, fields: tuple[str, ...], begins: str
) -> None:
    rig.put("a", b"1")
    rig.secrets.write_text(json.dumps(dict.fromkeys(fields, "x" * 20)))
    rig.run(rig.task(store=gcs(rig, *fields)))
    assert all(found.startswith(begins) and bool(found) == bool(begins) for found in bearers(rig))
    assert bearers(rig)
