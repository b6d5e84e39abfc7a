"""Who may do what: every operation of the OpenAPI document for every kind of caller, and what the hub's headers do."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import text
from starlette.types import Receive, Scope, Send

from ffdl_batch.daemon import peer_gate
from ffdl_batch.daemon.connections import Peer, PeerProtocol, with_peer
from ffdl_batch.daemon.server import Server
from ffdl_batch.domain.access import Role, Token, new_token
from ffdl_batch.domain.access import Scope as TokenScope
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import user_name
from ffdl_batch.services.authorisation import OPERATIONS, may, refuse_unless_allowed
from ffdl_batch.services.hub import Hub, hub_of
from ffdl_batch.services.refusals import Refused
from ffdl_batch.store import StoredToken, StoreUnavailable
from tests.contract.daemon_rig import submission
from tests.unit.daemon.conftest import OWN_UID, Answer, Desk
from tests.unit.daemon.test_routes import DIGEST, submit

HUB_UID, OTHER_UID, OPERATOR_UID = 7000, 4711, 1001
RIGHTS = """
operation          read  write  tokens  operator  auditor

openapi            yes   yes    yes     yes       yes
whoami             yes   yes    yes     yes       yes

array              yes   yes    -       yes       yes
events             yes   yes    -       yes       yes
get                yes   yes    -       yes       yes
health             yes   yes    -       yes       yes
list               yes   yes    -       yes       yes
prometheus         yes   yes    -       yes       yes
scaler_explain     yes   yes    -       yes       yes
scaler_replay      yes   yes    -       yes       yes
scaler_status      yes   yes    -       yes       yes
states             yes   yes    -       yes       yes
wait               yes   yes    -       yes       yes
wait_array         yes   yes    -       yes       yes
why                yes   yes    -       yes       yes

cancel             -     yes    -       yes       -
cancel_array       -     yes    -       yes       -
halt               -     yes    -       yes       -
halt_array         -     yes    -       yes       -

ffdl_delete_model  -     yes    -       yes       -
ffdl_patch_model   -     yes    -       yes       -

ffdl_create_model  -     yes    -       -         -

ffdl_get_definition    yes   -      -       -         -
ffdl_get_model         yes   -      -       -         -
ffdl_get_trained_model yes   -      -       -         -
ffdl_list_emetrics     yes   -      -       -         -
ffdl_list_loglines     yes   -      -       -         -
ffdl_list_models       yes   -      -       -         -
ffdl_stream_logs       yes   -      -       -         -

attach             -     yes    -       -         -
attach_stream      -     yes    -       -         -
drill              -     yes    -       -         -
has_archive        -     yes    -       -         -
put_archive        -     yes    -       -         -
remove             -     yes    -       -         -
remove_secret      -     yes    -       -         -
resume             -     yes    -       -         -
scaler_pause       -     yes    -       -         -
scaler_resume      -     yes    -       -         -
set_secret         -     yes    -       -         -
submit             -     yes    -       -         -

advise             yes   -      -       -         -
list_secrets       yes   -      -       -         -
logs               yes   -      -       -         -
metrics            yes   -      -       -         -
outlook            yes   -      -       -         -
output             yes   -      -       -         -
output_files       yes   -      -       -         -
plan               yes   -      -       -         -
report_faults      yes   -      -       -         -
report_nodes       yes   -      -       -         -
report_usage       yes   -      -       -         -
report_usage_jobs  yes   -      -       -         -
support            yes   -      -       -         -
usage              yes   -      -       -         -
usage_agreement    yes   -      -       -         -

create_token       -     -      yes     -         -
list_tokens        -     -      yes     -         -
revoke_token       -     -      yes     -         -

login              -     -      -       -         -
trusted_login      -     -      -       -         -
"""
"""The expectation, written independently of the product's table."""
VALUES = {"job_id": "training-000000000", "model_id": "training-000000000", "array_id": "array-000000000",
          "kind": "results", "name": "x", "digest": "0" * 64, "token_id": "x"}  # fmt: skip


def expected_rights() -> Mapping[str, Mapping[str, bool]]:
    """Whether a caller of each column may do each operation."""
    head, *rows = (line.split() for line in RIGHTS.strip().splitlines() if line)
    found = {row[0]: dict(zip(head[1:], (cell == "yes" for cell in row[1:]), strict=True)) for row in rows}
    for row in found.values():
        row |= {"owner": True, "read+write": row["read"] or row["write"]}
    return found


EXPECTED = expected_rights()


@dataclass
class Site:
    """A daemon in site mode, and the headers of each kind of caller of its hub."""

    desk: Desk
    headers: Mapping[str, Mapping[str, str]]

    def ask(self, caller: str, method: str, target: str, body: Any = None, **more: str) -> Answer:
        """One request that the hub passes on."""
        return self.desk.ask(method, target, body, uid=HUB_UID, headers={**self.headers[caller], **more})


def bearer(token: Token) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token.text}"}


def add_token(desk: Desk, *scopes: TokenScope, lifetime_s: float = 1000.0) -> Token:
    token, now = new_token(), desk.platform.storage.clock.now()
    stored = StoredToken(token.id, "laptop", token.digest, scopes, now, now + lifetime_s)
    assert desk.platform.storage.store.tokens.add(stored, 100)
    return token


@pytest.fixture
def site(desk: Desk, tmp_path: Path) -> Iterator[Site]:
    desk.context.admits_root, desk.context.hub = False, Hub(HUB_UID, str(tmp_path / "no-hub.sock"))
    revoked = add_token(desk, *TokenScope)
    desk.platform.storage.store.tokens.revoke(revoked.id, 1.0)
    yield Site(
        desk,
        {
            "read": bearer(add_token(desk, TokenScope.READ)),
            "write": bearer(add_token(desk, TokenScope.WRITE)),
            "read+write": bearer(add_token(desk, TokenScope.READ, TokenScope.WRITE)),
            "tokens": bearer(add_token(desk, TokenScope.TOKENS)),
            "expired": bearer(add_token(desk, *TokenScope, lifetime_s=0.0)),
            "revoked": bearer(revoked),
            "operator": {"FfDL-Role": "operator", "FfDL-Actor": str(OPERATOR_UID)},
            "auditor": {"FfDL-Role": "auditor", "FfDL-Actor": str(OPERATOR_UID)},
            "hub": {},
        },
    )


def operations(desk: Desk) -> dict[str, tuple[str, str]]:
    """Method and path of every operation, with values in the path."""
    document = desk.ask("GET", "/openapi.json").json
    return {"openapi": ("GET", "/openapi.json")} | {
        operation["operationId"]: (method.upper(), re.sub(r"\{(\w+)\}", lambda match: VALUES[match[1]], path))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def statuses(desk: Desk, uid: int, headers: Mapping[str, str]) -> dict[str, int]:
    """The status of every operation for a caller; an admitted one gets that of a request that does not fit."""
    return {
        name: desk.ask(method, path, {}, uid=uid, headers=headers).status
        for name, (method, path) in operations(desk).items()
    }


def test_table_has_every_operation_and_no_other(desk: Desk) -> None:
    assert set(operations(desk)) == set(OPERATIONS) == set(EXPECTED)


@pytest.mark.parametrize("caller", ["read", "write", "read+write", "tokens", "operator", "auditor"])
def test_hub_caller_may_do_exactly_the_operations_of_its_rights(site: Site, caller: str) -> None:
    found = statuses(site.desk, HUB_UID, site.headers[caller])
    assert 401 not in found.values()
    assert {name: status != 403 for name, status in found.items()} == {n: row[caller] for n, row in EXPECTED.items()}


@pytest.mark.parametrize("caller", ["expired", "revoked", "hub"])
def test_hub_caller_who_is_not_identified_may_do_nothing(site: Site, caller: str) -> None:
    found = statuses(site.desk, HUB_UID, site.headers[caller])
    if caller == "hub":
        assert (found.pop("login"), found.pop("trusted_login")) == (400, 400)  # what proves them is not in this body
    assert set(found.values()) == {401}


@pytest.mark.parametrize("headers", ["hub", "read+write", "auditor", "revoked"])
def test_owner_may_do_everything_whatever_the_headers(site: Site, headers: str) -> None:
    assert not {401, 403} & set(statuses(site.desk, OWN_UID, site.headers[headers]).values())


@pytest.mark.parametrize("headers", ["hub", "read+write", "operator"])
@pytest.mark.parametrize("uid", [0, OTHER_UID])
def test_root_and_other_users_may_do_nothing_in_site_mode_whatever_the_headers(
    site: Site, uid: int, headers: str
) -> None:
    assert set(statuses(site.desk, uid, site.headers[headers]).values()) == {403}


def test_personal_mode_admits_root_and_no_hub(site: Site) -> None:
    site.desk.context.admits_root, site.desk.context.hub = True, None
    assert not {401, 403} & set(statuses(site.desk, 0, {}).values())
    for uid in (HUB_UID, OTHER_UID):
        for headers in site.headers.values():
            assert site.desk.ask("GET", "/api/v1/jobs", uid=uid, headers=headers).status == 403


def test_operation_that_is_not_in_table_is_refused_to_everybody() -> None:
    for caller in (Caller(1), Caller(1, role=Role.TOKEN, scopes=frozenset(TokenScope))):
        assert not may(caller, "unheard_of")
        with pytest.raises(Refused, match="may not do unheard_of: no right permits it"):
            refuse_unless_allowed(caller, "unheard_of")


async def wait_with(desk: Desk, token: Token, job_id: str, dropped: list[Token]) -> asyncio.Task[None]:
    """Send a request of the hub that waits for a job which does not end; return when the daemon has admitted it. The
    request ends when its connection is dropped."""
    incoming = asyncio.Queue[Any]()
    incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    def abort() -> None:
        dropped.append(token)
        incoming.put_nowait({"type": "http.disconnect"})

    async def send(_: object) -> None: ...

    scope = desk.scope("GET", f"/api/v1/jobs/{job_id}/wait?wait_s=30", HUB_UID, bearer(token))
    with_peer(scope, Peer(1, HUB_UID, abort))
    before = desk.context.requests
    task = asyncio.ensure_future(desk.app(scope, incoming.get, send))
    while desk.context.requests == before:
        await asyncio.sleep(0.001)
    return task


def test_requests_of_revoked_and_expired_tokens_are_dropped_and_no_others(site: Site) -> None:
    desk, job_id, dropped = site.desk, submit(site.desk)["id"], list[Token]()
    stolen, other = (add_token(desk, TokenScope.READ, TokenScope.TOKENS) for _ in range(2))
    short = add_token(desk, TokenScope.READ, lifetime_s=0.2)

    async def scenario() -> None:
        tasks = [await wait_with(desk, token, job_id, dropped) for token in (stolen, other, stolen, short)]
        revoked = await desk._ask("DELETE", f"/api/v1/tokens/{stolen.id}", b"", HUB_UID, bearer(stolen))
        assert revoked.status == 200
        await asyncio.gather(tasks[0], *tasks[2:])
        tasks[1].cancel()
        assert Counter(token.id for token in dropped) == {stolen.id: 2, short.id: 1}

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_token_that_is_revoked_while_it_is_verified_is_refused(site: Site) -> None:
    token = add_token(site.desk, TokenScope.READ)
    site.desk.context.note_revoked(token.id, None)  # after the look into the database
    refused = site.desk.ask("GET", "/api/v1/jobs", uid=HUB_UID, headers=bearer(token))
    assert (refused.status, refused.json["problem"]["message"]) == (401, f"token {token.id} was revoked")


def test_refusals_name_right_and_cure_in_usual_form(site: Site) -> None:
    refused = site.ask("read", "POST", "/api/v1/jobs", b"{")
    problem = refused.json["problem"]
    assert (refused.status, problem["exit_code"]) == (403, 77)
    assert problem["message"].endswith("may not do submit: it needs the right change")
    assert problem["cure"] == "use a token with the scope write"
    refused = site.ask("auditor", "POST", "/api/v1/jobs/x/halt")
    assert refused.json["problem"]["message"] == "auditor 1001 may not do halt: it needs the right stop"
    refused = site.ask("expired", "GET", "/api/v1/health")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json["problem"]["message"].endswith("has expired")
    assert refused.json["problem"]["cure"].endswith("ffdl token create")


@pytest.mark.parametrize(
    "headers",
    [
        {"FfDL-Role": "owner", "FfDL-Actor": "1000"},
        {"FfDL-Role": "token", "FfDL-Actor": "1000"},
        {"FfDL-Role": "operator"},
        {"FfDL-Role": "operator", "FfDL-Actor": "-1"},
        {"FfDL-Role": "operator", "FfDL-Actor": "12345678901"},
        {"FfDL-Role": "operator", "FfDL-Actor": "1001", "ffdl-actor": "1002"},
        {"FfDL-Role": "auditor", "ffdl-role": "operator", "FfDL-Actor": "1001"},
        {"FfDL-Actor": "1001"},
        {"Authorization": "Basic cm9vdDo="},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer ffdl_aaaaaaaaaaaa_" + "A" * 43},
        {"Authorization": "Bearer \xe9"},
    ],
)
def test_hub_headers_in_another_form_identify_nobody(site: Site, headers: Mapping[str, str]) -> None:
    refused = site.desk.ask("GET", "/api/v1/whoami", uid=HUB_UID, headers=headers)
    assert (refused.status, refused.json["problem"]["exit_code"]) == (401, 77)


def test_token_with_another_secret_beside_a_role_or_twice_identifies_nobody(site: Site) -> None:
    right = site.headers["read"]["Authorization"]
    for headers in (
        {"Authorization": f"{right[:-1]}{'B' if right[-1] == 'A' else 'A'}"},
        {"Authorization": right, "authorization": right},
        {"Authorization": right, **site.headers["operator"]},
    ):
        assert site.desk.ask("GET", "/api/v1/whoami", uid=HUB_UID, headers=headers).status == 401
    assert site.desk.ask("GET", "/api/v1/whoami", uid=HUB_UID, headers={"Authorization": right}).status == 200


def test_whoami_describes_each_caller(site: Site) -> None:
    owner = {"uid": OWN_UID, "account": "alice", "role": "owner", "scopes": [], "expires_at": None, "schema": 1}
    expires_at = site.desk.platform.storage.clock.now() + 1000
    assert site.desk.ask("GET", "/api/v1/whoami").json == owner
    token = owner | {"role": "token", "scopes": ["read", "write"], "expires_at": expires_at}
    assert site.ask("read+write", "GET", "/api/v1/whoami").json == token
    operator = owner | {"uid": OPERATOR_UID, "account": user_name(OPERATOR_UID), "role": "operator"}
    assert site.ask("operator", "GET", "/api/v1/whoami").json == operator


def test_unknown_path_and_method_are_reported_to_identified_callers_only(site: Site) -> None:
    for caller, statuses_found in (("tokens", (404, 405)), ("auditor", (404, 405)), ("hub", (401, 401))):
        found = site.ask(caller, "GET", "/api/v1/nothing").status, site.ask(caller, "PATCH", "/api/v1/jobs").status
        assert found == statuses_found


def test_refused_requests_are_no_use_of_the_daemon(site: Site) -> None:
    for caller in ("hub", "revoked", "auditor"):
        site.ask(caller, "POST", "/api/v1/jobs")
    assert site.desk.context.requests == 0
    site.ask("auditor", "GET", "/api/v1/jobs")
    assert site.desk.context.requests == 1


def test_database_that_fails_while_token_is_checked_is_reported_as_such(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(peer_gate, "verify_token", fail)
    answer = site.ask("read", "GET", "/api/v1/jobs")
    assert (answer.status, answer.json["problem"]["message"]) == (503, "the database is away")


def test_operator_sees_owner_jobs_and_stops_them_but_reads_no_log_line(site: Site) -> None:
    desk = site.desk
    job_id = submit(desk)["id"]
    change = "UPDATE jobs SET log_tail = '[\"loss is 0.25\"]', revision = revision + 1"
    with desk.platform.storage.store.engine.begin() as connection:
        connection.execute(text(change))
    reads = ("/api/v1/jobs", f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/wait?wait_s=0")
    beginning = f"/api/v1/jobs/{job_id[:-2]}"
    for path in reads:
        assert b"loss is 0.25" in desk.ask("GET", path).body
        assert b"loss is 0.25" in site.ask("read", "GET", path).body
    for caller in ("operator", "auditor", "write"):
        for path in (*reads, beginning):
            answer = site.ask(caller, "GET", path)
            assert answer.status == 200 and job_id.encode() in answer.body and b"loss" not in answer.body, path
    halted = site.ask("operator", "POST", f"{beginning}/halt")
    assert (halted.status, halted.json["job"]["state"]) == (200, "HALTED") and b"loss" not in halted.body


def test_log_names_actor_and_request_and_no_secret(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    job_id = submit(site.desk)["id"]
    site.ask("operator", "POST", f"/api/v1/jobs/{job_id}/halt", **{"FfDL-Request": "0a1b"})
    site.ask("write", "POST", f"/api/v1/jobs/{job_id}/cancel", **{"FfDL-Request": "bad\tid"})
    token_id = site.headers["write"]["Authorization"][len("Bearer ffdl_") :].partition("_")[0]
    assert f"operator 1001 (request 0a1b): halt of {job_id}" in caplog.text
    assert f"user 1000 by token {token_id}: cancel of {job_id}" in caplog.text
    for headers in site.headers.values():
        assert headers.get("Authorization", "ffdl_x_no secret").split("_", 2)[2] not in caplog.text


@pytest.mark.parametrize("caller", ["write", "read+write"])
def test_token_starts_no_job_on_the_host_of_the_daemon(site: Site, caller: str) -> None:
    submit(site.desk)  # with the archive
    here = submission("here", DIGEST) | {"backend": "local"}
    answer = site.ask(caller, "POST", "/api/v1/jobs", {"submissions": [here, submission("there", DIGEST)]})
    refused, accepted = answer.json["results"]
    assert refused["problem"]["exit_code"] == 77 and "they run on the hub's host" in refused["problem"]["message"]
    assert accepted["problem"] is None
    own = site.desk.ask("POST", "/api/v1/jobs", {"submissions": [here]}, uid=OWN_UID).json["results"][0]
    assert own["problem"] is None
    assert site.desk.ask("POST", f"/api/v1/jobs/{own['id']}/halt", uid=OWN_UID).json["job"]["state"] == "HALTED"
    assert site.ask(caller, "POST", f"/api/v1/jobs/{own['id']}/resume", {}).status == 403
    assert site.ask(caller, "GET", f"/api/v1/jobs/{own['id']}/attach").status == 403
    assert site.desk.ask("GET", f"/api/v1/jobs/{own['id']}/attach", uid=OWN_UID).status == 409


def test_job_of_token_belongs_to_owner(site: Site) -> None:
    submit(site.desk)
    answer = site.ask("write", "POST", "/api/v1/jobs", {"submissions": [submission("by token", DIGEST)]})
    stored = site.desk.platform.storage.store.get(answer.json["results"][0]["id"])
    assert stored is not None and (stored.uid, stored.user) == (OWN_UID, "alice")
    assert len(site.ask("read", "GET", "/api/v1/jobs").json["jobs"]) == 2


def test_idle_connections_of_hub_do_not_count(site: Site) -> None:
    def connection(uid: int, *, answering: bool) -> PeerProtocol:
        made = object.__new__(PeerProtocol)
        made.peer = Peer(1, uid, lambda: None)
        made.cycle = cast("Any", SimpleNamespace(response_complete=not answering))
        return made

    server = object.__new__(Server)
    server._context = site.desk.context
    idle, busy = connection(HUB_UID, answering=False), connection(HUB_UID, answering=True)
    fresh = connection(HUB_UID, answering=False)
    fresh.cycle = cast("Any", None)
    own, stranger = connection(OWN_UID, answering=False), connection(OTHER_UID, answering=True)
    for connections, count in (([idle, fresh], 0), ([idle, busy], 1), ([own, idle, stranger], 1)):
        server.server_state = cast("Any", SimpleNamespace(connections=set(connections)))
        assert server.count_connections() == count


def test_hub_is_read_from_environment() -> None:
    assert hub_of({}) is None and hub_of({"FFDL_HUB_UID": "ffdl"}) is None and hub_of({"FFDL_HUB_UID": "-1"}) is None
    assert hub_of({"FFDL_HUB_UID": "7000"}) == Hub(7000, "/run/ffdl-hub/hub.sock")
    assert hub_of({"FFDL_HUB_UID": "7000", "FFDL_HUB_SOCKET": "/x"}) == Hub(7000, "/x")


def test_gate_leaves_other_kinds_of_connection_alone() -> None:
    seen: list[str] = []

    async def application(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["type"])

    gate = peer_gate.PeerGate(application)
    with pytest.raises(StopIteration):
        gate({"type": "lifespan"}, cast("Any", None), cast("Any", None)).send(None)
    assert seen == ["lifespan"]
