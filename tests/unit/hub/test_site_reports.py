"""Reports about all users of a site: what the hub stores of incidents, and what operators get, with ``ffdl`` itself."""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.incidents.incident import MOST_IN_REQUEST, EvidenceRow, IncidentRow
from ffdl_batch.domain.incidents.node_score import LOOK_BACK_S
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub import incident_index
from ffdl_batch.site.hub.incident_index import IncidentIndex, read_incidents
from ffdl_batch.site.hub.store import open_hub_store
from ffdl_batch.store.database import Database, connect
from tests.preloaded import FFDL, run
from tests.unit.hub.conftest import Site, answer, serving_hub
from tests.unit.hub.test_gpu_hours import Accounting
from tests.unit.store.conftest import empty_url  # noqa: F401 - a fixture
from tests.unit.store.jobs import FakeClock

ADA, BOB = 7001, 7002
NOW = 1_795_000_000.0
ACCOUNT = pwd.getpwuid(os.getuid()).pw_name


def add(index: IncidentIndex, uid: int, *rows: IncidentRow) -> None:
    """Store what a daemon reports."""
    index.add(uid, read_incidents({"incidents": to_plain(rows)}))


def incident(number: int, *, at: float = NOW, kind: str = "node.gpu", node: str = "n1", **changes: Any) -> IncidentRow:
    """An incident as a daemon reports it."""
    row = IncidentRow(
        f"training-{number:09x}", 1, "end-0", kind, "node", "a title of the user", "a cure", at, at, "S110",
        "ECC error", "digits", "somebody", (node,), 0, 2.0, (EvidenceRow("health", "Xid 48", at),),
    )  # fmt: skip
    return replace(row, **changes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(NOW)
    monkeypatch.setattr(Database, "now", lambda *_: clock.time)
    return clock


@pytest.fixture
def index(empty_url: str, clock: FakeClock) -> Iterator[IncidentIndex]:  # noqa: F811
    database = connect(empty_url, False, clock)
    yield open_hub_store(database, lambda uid: {ADA: "ada", BOB: "bob"}.get(uid, "")).incidents
    database.close()


def test_incident_is_stored_once_with_user_of_connection_and_time_of_hub(
    index: IncidentIndex, clock: FakeClock
) -> None:
    add(index, ADA, incident(1, at=NOW + 900))
    clock.time += 60
    add(index, ADA, incident(1, message="another"), incident(2, at=NOW - 500))
    add(index, BOB, incident(1))
    report = index.faults(NOW - 3600, None, None)
    assert [(row.user, row.at, row.noticed_at, row.message) for row in report.rows] == [
        ("ada", NOW, NOW, "ECC error"),
        ("ada", NOW - 500, NOW + 60, "ECC error"),
        ("bob", NOW, NOW + 60, "ECC error"),
    ]
    assert (report.incidents, report.lost_gpu_hours, report.own_only) == (3, 6.0, False)
    assert [(one.name, one.incidents) for one in report.users] == [("ada", 2), ("bob", 1)]
    assert report.rows[0].title != "a title of the user"
    assert (index.newest(ADA), index.newest(7003)) == (NOW, 0.0)  # not the future that ada's daemon believes in
    assert index.lost_gpu_hours(NOW - 3600, NOW + 60) == {"ada": 4.0, "bob": 2.0}


def test_each_incident_is_in_the_report_of_the_period_in_which_it_came(index: IncidentIndex, clock: FakeClock) -> None:
    add(index, ADA, incident(1))
    clock.time += 100
    add(index, ADA, incident(2, at=NOW - 100))
    assert [row.job[-1] for row in index.faults(NOW - 1, NOW + 50, None).rows] == ["1"]
    assert [row.job[-1] for row in index.faults(NOW + 50, None, None).rows] == ["2"]
    assert [row.job[-1] for row in index.faults(NOW + 50, None, NOW - 1).rows] == ["1", "2"]
    with pytest.raises(Refused, match="the period is empty"):
        index.faults(NOW + 200, None, None)


def test_node_has_score_only_if_it_failed_jobs_of_two_users(index: IncidentIndex) -> None:
    add(index, ADA, incident(1), incident(2, node="n2"), incident(3, node="n2"), incident(4, kind="user.exit"))
    assert index.nodes().nodes == ()
    add(index, BOB, incident(1), incident(5, kind="user.exit", node="n2"))
    (found,) = index.nodes().nodes
    assert (found.node, found.jobs, dict(found.kinds), found.last) == ("n1", 1, {"node.gpu": 2}, NOW)


def test_incidents_of_one_user_are_bounded_in_number_and_age(
    index: IncidentIndex, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_index, "MOST_OF_USER", 3)
    add(index, BOB, incident(9))
    for number in range(6):
        clock.time += 1
        add(index, ADA, incident(number))
    report = index.faults(NOW - 1, None, None)
    assert [(row.user, row.job[-1]) for row in report.rows] == [("bob", "9"), ("ada", "3"), ("ada", "4"), ("ada", "5")]
    clock.time += LOOK_BACK_S + 1
    add(index, ADA)
    assert index.faults(NOW - 1, None, None).rows == ()


ROW = to_plain(incident(1))


@pytest.mark.parametrize(
    "plain",
    [None, {}, {"incidents": 1}, {"incidents": [ROW] * (MOST_IN_REQUEST + 1)}, {"incidents": [1]}, {"incidents": [{}]},
     {"incidents": [ROW | {"at": float("nan")}]}, {"incidents": [ROW | {"noticed_at": "soon"}]},
     {"incidents": [ROW | {"lost_gpu_hours": -1.0}]}, {"incidents": [ROW | {"lost_gpu_hours": 1e308}]},
     {"incidents": [ROW | {"at": -1e300}]}, {"incidents": [ROW | {"job": "x" * 300}]},
     {"incidents": [ROW | {"nodes": "n1"}]},
     {"incidents": [ROW | {"evidence": [{"source": "a", "text": "b", "at": float("inf")}]}]}],
)  # fmt: skip
def test_unreadable_incidents_are_refused(plain: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_incidents(plain)


def test_texts_and_lists_of_incidents_are_cut() -> None:
    long = ROW | {
        "message": "m" * 9999,
        "nodes": ["n"] * 9999,
        "evidence": [{"source": "s" * 999, "text": "t" * 999}] * 99,
    }
    (row,) = read_incidents({"incidents": [long]})
    assert len(json.dumps(to_plain(row))) < 30_000


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Site]:
    began = time.time() - 3 * 3600
    accounting = Accounting([("ada", "vis", began, began + 7200), ("bob", "own", began, began + 3600)])
    with serving_hub(tmp_path, accounting=accounting, operators=[ACCOUNT]) as site:
        site.store.tenants.put("vision", None, ["vis"])
        add(site.store.incidents, ADA, incident(1, at=began))
        add(site.store.incidents, BOB, incident(2, at=began))
        yield site


def report(hub: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``ffdl report`` on the hub's host."""
    environ = {"PATH": os.environ["PATH"], "FFDL_HUB_SOCKET": f"{hub.place}/hub.sock", "HOME": str(hub.place),
               "LC_ALL": "C.UTF-8", "TZ": "UTC"}  # fmt: skip
    return run([*FFDL, "report", *words], env=environ, capture_output=True, text=True, timeout=120)


def test_operator_gets_site_reports_of_faults_nodes_and_usage(hub: Site) -> None:
    faults = report(hub, "faults", "--site", "--json")
    assert faults.returncode == 2, faults  # incidents that are not the users'
    rows = json.loads(faults.stdout)["faults"]["rows"]
    assert [(row["user"], row["nodes"]) for row in rows] == [("user7001", ["n1"]), ("user7002", ["n1"])]
    nodes = report(hub, "nodes", "--site")
    assert "These nodes have failed jobs of at least two users." in nodes.stdout
    assert [line.split()[0] for line in nodes.stdout.splitlines() if line.startswith("n1")] == ["n1"]
    usage = report(hub, "usage", "--site", "--since", "4h", "--format", "csv")
    found = [(row["kind"], row["name"], row["gpu_hours"]) for row in csv.DictReader(io.StringIO(usage.stdout))]
    assert found == [
        ("tenant", "vision", "2.000000"), ("tenant", "", "1.000000"),
        ("user", "ada", "2.000000"), ("user", "bob", "1.000000"),
    ]  # fmt: skip
    text = report(hub, "usage", "--site", "--since", "4h").stdout
    assert "2 jobs held 3.0 GPU-hours" in text and "in this period, 4.0 GPU-hours" in text
    plain = json.loads(report(hub, "usage", "--site", "--since", "4h", "--json").stdout)["usage"]
    assert (plain["jobs"], plain["gpu_hours"], plain["users"][0]["name"]) == (2, 3.0, "ada")


def test_cron_report_of_site_has_each_incident_once(hub: Site, tmp_path: Path) -> None:
    words = ("faults", "--site", "--quiet", "--state-file", str(tmp_path / "state"))
    first, second = report(hub, *words), report(hub, *words)
    assert (first.returncode, "training-000000001" in first.stdout) == (2, True)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    add(hub.store.incidents, ADA, incident(3, at=time.time() - 9000))
    third = report(hub, *words, "--json")
    assert [row["job"] for row in json.loads(third.stdout)["faults"]["rows"]] == ["training-000000003"]


@pytest.mark.parametrize(
    ("roles", "path", "method", "status"),
    [
        ({}, "faults?since=0", "GET", 403),
        ({"auditors": [ACCOUNT]}, "faults?since=1795000000", "GET", 200),
        ({"operators": [ACCOUNT]}, "faults?since=1795000000", "POST", 404),
        ({"operators": [ACCOUNT]}, "jobs", "GET", 404),
        ({"operators": [ACCOUNT]}, "faults", "GET", 400),
        ({"operators": [ACCOUNT]}, "faults?since=nan", "GET", 400),
        ({"operators": [ACCOUNT]}, "faults?since=0", "GET", 400),
        ({"operators": [ACCOUNT]}, "usage?since=99999999999", "GET", 400),
        ({"operators": [ACCOUNT]}, "usage?since=1795000000", "GET", 503),
    ],
)
def test_site_reports_are_for_operators_and_auditors_with_possible_periods(
    tmp_path: Path, roles: dict[str, Any], path: str, method: str, status: int
) -> None:
    with serving_hub(tmp_path, None, **roles) as site:
        found = site.ask(f"/site/api/v1/reports/{path}", method, local=True, token="")
        assert found.status == status, found.body


def test_operator_with_token_gets_site_report_after_own_daemon_has_checked_the_token(tmp_path: Path) -> None:
    checked: list[str] = []

    def whoami(handler: Any) -> None:
        checked.append(handler.path)
        answer(handler, json.dumps({"scopes": ["read"]}).encode())

    with serving_hub(tmp_path, None, operators=[ACCOUNT]) as site:
        site.serve_daemon(whoami)
        assert site.ask("/site/api/v1/reports/nodes").status == 200
    assert checked == ["/api/v1/whoami"]
    audit = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(one["what"], one["role"]) for one in audit] == [("GET /site/api/v1/reports/nodes", "operator")]
