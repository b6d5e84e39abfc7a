"""Hub, spawner and daemons together, with real accounts and HTTPS: who reaches what, by tokens and roles."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.site.fake_slurm import SiteSlurm
from tests.site.rig import ADA, ADDRESS, BOB, HUB, OUTSIDER, Host, Hub, Spawner

ASK = """
import http.client, json, socket, sys
place, method, path, body, *headers = sys.argv[1:]
connection = http.client.HTTPConnection("x", timeout=300)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(place)
more = json.loads(headers[0]) if headers else {}
connection.request(method, path, body or None, ({"Content-Type": "application/json"} if body else {}) | more)
reply = connection.getresponse()
print(json.dumps([reply.status, json.loads(reply.read())]))
"""


def ask_own_daemon(host: Host, uid: int, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
    """A request of a user to the own daemon, without the hub."""
    assert host.ask(uid, f"ensure {uid}\n").startswith("ok ")
    place = host.place / f"run/users/{uid}/daemon.sock"
    status, reply = json.loads(host.python(ASK, str(place), method, path, json.dumps(body) if body else "", uid=uid))
    return status, reply


def ask_hub_socket(host: Host, uid: int, method: str, path: str) -> tuple[int, dict[str, object]]:
    status, reply = json.loads(host.python(ASK, str(host.place / "hub/hub.sock"), method, path, "", uid=uid))
    return status, reply


def token_of(host: Host, uid: int, *scopes: str) -> str:
    status, reply = ask_own_daemon(host, uid, "POST", "/api/v1/tokens", {"name": "laptop", "scopes": list(scopes)})
    assert status == 200, reply
    return str(reply["secret"])


def test_token_reaches_own_daemon_over_https_until_it_is_revoked(host: Host, hub: Hub, spawner: Spawner) -> None:
    token = token_of(host, ADA, "read", "write")
    status, who = hub.ask(token, "/api/v1/whoami")
    assert (status, who["uid"], who["account"], who["scopes"]) == (200, ADA, "ada", ["read", "write"])
    assert hub.ask(token, "/api/v1/jobs")[1]["jobs"] == []
    assert hub.ask(token, "/api/v1/secrets/key", "PUT", {"value": "planted-secret"})[0] == 200
    assert [one["name"] for one in hub.ask(token, "/api/v1/secrets")[1]["secrets"]] == ["key"]
    status, reply = hub.ask(token, "/api/v1/tokens", "POST", {"name": "more", "scopes": ["read"]})
    assert status == 403 and "it needs the right tokens" in reply["problem"]["message"]
    identity = token.split("_")[1]
    assert ask_own_daemon(host, ADA, "DELETE", f"/api/v1/tokens/{identity}")[1]["hub_informed"] is True
    assert hub.ask(token, "/api/v1/jobs")[0] == 401
    for place in (host.place / "hub", host.place / "hub.log"):
        for file in [place] if place.is_file() else place.iterdir():
            if file.is_file() and file.name != "key.pem":
                assert b"planted-secret" not in file.read_bytes() and token.encode() not in file.read_bytes(), file


def test_read_token_changes_nothing_and_token_of_one_user_reaches_no_other(
    host: Host, hub: Hub, spawner: Spawner
) -> None:
    ada, bob = token_of(host, ADA, "read"), token_of(host, BOB, "read", "write")
    assert hub.ask(ada, "/api/v1/secrets/x", "PUT", {"value": "v"})[0] == 403
    assert hub.ask(bob, "/api/v1/secrets/of-bob", "PUT", {"value": "v"})[0] == 200
    assert "of-bob" not in [one["name"] for one in hub.ask(ada, "/api/v1/secrets")[1]["secrets"]]
    forged = f"ffdl_{ada.split('_')[1]}_{bob.split('_', 2)[2]}"
    assert hub.ask(forged, "/api/v1/jobs")[0] == 401
    assert hub.ask(bob, f"/users/{BOB}/api/v1/secrets")[0] == 200


def test_operator_and_auditor_see_states_of_another_daemon_and_no_content(host: Host, hub: Hub) -> None:
    """Oskar may not have a daemon of his own; he is at the hub's socket."""
    for uid, may_stop in ((OUTSIDER, True), (BOB, False)):
        assert ask_hub_socket(host, uid, "GET", f"/users/{ADA}/api/v1/jobs")[0] == 200
        for path in ("secrets", "jobs/x/logs", "tokens"):
            assert ask_hub_socket(host, uid, "GET", f"/users/{ADA}/api/v1/{path}")[0] == 403
        status, _ = ask_hub_socket(host, uid, "POST", f"/users/{ADA}/api/v1/jobs/training-000000000/cancel")
        assert status == (404 if may_stop else 403)
    seen = {
        (line["caller"], line["user"], line["role"])
        for line in hub.audit()
        if line["user"] == ADA and line["role"] != "daemon"
    }
    assert seen == {(OUTSIDER, ADA, "operator"), (BOB, ADA, "auditor")}


def test_hub_without_token_or_role_is_refused_by_daemon_and_cannot_register_for_others(
    host: Host, hub: Hub, spawner: Spawner
) -> None:
    assert ask_own_daemon(host, ADA, "GET", "/api/v1/whoami")[1]["role"] == "owner"
    place = str(host.place / f"run/users/{ADA}/daemon.sock")
    status, _ = json.loads(host.python(ASK, place, "GET", "/api/v1/jobs", "", uid=HUB))
    assert status == 401
    ada = token_of(host, ADA, "read")
    body = json.dumps({"expires_at": time.time() + 50})
    argv = (str(host.place / "hub/hub.sock"), "PUT", f"/api/site/v1/tokens/{ada.split('_')[1]}", body)
    assert json.loads(host.python(ASK, *argv, uid=BOB))[0] == 409


def test_daemon_that_was_killed_and_hub_that_was_restarted_answer_the_next_request(
    host: Host, hub: Hub, spawner: Spawner
) -> None:
    token = token_of(host, ADA, "read")
    os.kill(spawner.daemons()[-1], signal.SIGKILL)
    assert hub.ask(token, "/api/v1/jobs")[0] == 200
    hub.process.kill()
    hub.process.wait()
    hub.start()
    assert hub.ask(token, "/api/v1/jobs")[0] == 200
    assert len(spawner.daemons()) == 2


LISTING = """
import http.client, json, socket, sys
connection = http.client.HTTPConnection("x", timeout=300)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request("GET", "/api/site/v1/listing")
reply = connection.getresponse()
print(json.dumps([reply.status, reply.read().decode().splitlines()]))
"""


def test_users_get_rows_of_their_own_slurm_jobs_from_one_squeue_of_the_hub(
    host: Host, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = SiteSlurm(host.place)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    slurm.add_job(11, ADA)
    slurm.add_job(12, BOB, f"x\n{ADA}|13|RUNNING|0:0|0|1|1|1|n1|None")
    made = Hub(host, listing_interval_s=3600)
    try:
        place = str(host.place / "hub/hub.sock")
        found = {uid: json.loads(host.python(LISTING, place, uid=uid)) for uid in (ADA, BOB, OUTSIDER, ADA)}
    finally:
        made.close()
    rows = {uid: [row.split("|")[:2] for row in found[uid][1]] for uid in found}
    assert rows == {ADA: [["11", "RUNNING"]], BOB: [["12", "RUNNING"]], OUTSIDER: []}
    assert {status for status, _ in found.values()} == {200}
    assert [command for command, *_ in slurm.commands()] == ["scontrol", "squeue"]


def test_connection_without_handshake_ends_and_others_are_served(host: Host, hub: Hub, spawner: Spawner) -> None:
    began = time.monotonic()
    with socket.create_connection((ADDRESS, hub.port), timeout=300) as silent:
        assert hub.ask("", "/api/site/v1/health")[0] == 200
        assert silent.recv(1) == b""
    assert time.monotonic() - began < 50  # asyncio's own limit is 60 s


def test_hub_has_no_privilege_and_no_core_dump(host: Host, hub: Hub) -> None:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{hub.process.pid}/status").read_text().splitlines())
    assert set(fields["Uid"].split()) == {str(HUB)} and int(fields["CapEff"], 16) == 0
    limits = Path(f"/proc/{hub.process.pid}/limits").read_text().splitlines()
    assert [line.split()[4] for line in limits if line.startswith("Max core file size")] in (["0"], ["1"])
