"""Commands for operators of a site, with a running hub."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.admission import GO, Answer, Claim, Word
from ffdl_batch.domain.launch.attach_protocol import UPGRADE
from ffdl_batch.site.hub import tenant_routes
from ffdl_batch.site.hub.tenants import Quota
from tests.unit.admin.conftest import run_admin
from tests.unit.hub.conftest import answer, serving_hub
from tests.unit.hub.test_gpu_hours import Accounting

NAME = f"user{os.getuid()}"
"""How the hub of the tests names this account."""
ACCOUNT = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This account is an operator of the hub that the commands find."""
    monkeypatch.setenv("FFDL_HUB_SOCKET", str(tmp_path / "hub.sock"))
    return monkeypatch


def test_tenant_commands_change_what_the_hub_decides_by(
    tmp_path: Path, operator: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accounting = Accounting([(NAME, "vis", time.time() - 7200, time.time())])
    with serving_hub(tmp_path, accounting=accounting, operators=[ACCOUNT]) as site:

        def run(*words: str) -> tuple[int, str]:
            code, out, err = run_admin(capsys, operator, *words)
            said = [line for line in err.splitlines(keepends=True) if not line.startswith('{"audit"')]  # the hub's
            return code, out + "".join(said)

        assert run("tenant", "add", "vision", "--account", "vis", "--weight", "2") == (0, "")
        assert run("member", "add", "vision", ACCOUNT) == (0, "")
        for words in (("gpus", "8"), ("gpus:a100", "4"), ("jobs", "5", "--each"), ("jobs", "1", "--user", NAME),
                      ("gpu-hours/month", "0.0001")):  # fmt: skip
            assert run("quota", "set", "vision", *words) == (0, "")
        decide = site.store.admission.decide
        exceeded = decide(os.getuid(), [Claim("a", gpus=2, hours=1)])["a"].reason
        assert exceeded.startswith("gpu-hours/month: 2 exceeds the quota of tenant vision (0.0001)")
        (quota,) = [one for one in json.loads(run("tenant", "list", "--json")[1])["tenants"][0]["quotas"]
                    if one["resource"] == "gpu-hours/month"]  # fmt: skip
        assert 0 <= quota["used"] <= 2.001  # less within two hours after the beginning of a month
        assert run("quota", "remove", "vision", "gpu-hours/month") == (0, "")
        assert decide(os.getuid(), [Claim("a", gpus=2)])["a"].word == "go"
        assert "jobs limit 1, in use 1, requested 1" in decide(os.getuid(), [Claim("b")])["b"].reason
        code, listed = run("tenant", "list")
        assert (code, listed.splitlines()) == (
            0,
            [
                "vision  weight 2",
                "  accounts  vis",
                f"  members   {NAME}",
                "  quota     gpus 8 for the tenant, in use 2",
                "  quota     gpus:a100 4 for the tenant, in use 0",
                "  quota     jobs 5 for each member",
                f"  quota     jobs 1 for {NAME}, in use 1",
            ],
        )
        (shown,) = json.loads(run("tenant", "list", "--json")[1])["tenants"]
        assert (shown["name"], shown["quotas"][0]) == (
            "vision",
            {"member": "", "resource": "gpus", "amount": 8.0, "used": 2.0},
        )
        assert run("tenant", "slurm", "--print")[1].splitlines() == [
            "sacctmgr -i modify account name=vis set Fairshare=2 GrpTRES=gres/gpu=8,gres/gpu:a100=4",
            f"sacctmgr -i modify user name={NAME} account=vis set GrpSubmitJobs=1",
        ]
        assert run("quota", "remove", "vision", "jobs", "--user", NAME) == (0, "")
        assert run("tenant", "slurm", "--print", "vision")[1].splitlines()[1].endswith("set GrpSubmitJobs=5")
        assert run("tenant", "remove", "vision") == (
            1,
            "ffdl-admin: tenant 'vision' has 1 live job; run `ffdl-admin emergency stop --tenant vision`, and try "
            "again after they end\n",
        )
        site.store.admission.end(os.getuid(), ["a"])
        assert run("member", "remove", "vision", NAME) == (0, "")
        assert run("tenant", "remove", "vision") == (0, "")
        assert run("tenant", "list") == (0, "")
    audit = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    changes = [one["what"] for one in audit if one["role"] == "operator" and not one["what"].startswith("GET")]
    assert changes[:2] == ["PUT /api/site/v1/tenants/vision", f"PUT /api/site/v1/tenants/vision/members/{ACCOUNT}"]
    assert {one["caller"] for one in audit} == {os.getuid()}


def test_removed_member_of_tenant_without_accounts_has_no_token_any_more(
    tmp_path: Path, operator: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = 200000
    with serving_hub(tmp_path, operators=[ACCOUNT], tenants={"vision": daemon}) as site:

        def run(*words: str) -> tuple[int, str]:
            code, out, _ = run_admin(capsys, operator, *words)
            return code, out

        site.store.tokens.put("z" * 12, daemon, time.time() + 1000)
        for words in (("tenant", "add", "vision"), ("member", "add", "vision", "ada@example.org", "bob@example.org")):
            assert run(*words) == (0, "")
        assert site.store.tenants.daemon_of_guest("ada@example.org") == daemon
        assert "  members   ada@example.org, bob@example.org" in run("tenant", "list")[1]
        assert site.store.tokens.owner("z" * 12) == daemon
        assert run("member", "remove", "vision", "ada@example.org") == (0, "")
        assert site.store.tokens.owner("z" * 12) is None
        assert site.store.tenants.daemon_of_guest("ada@example.org") is None
        assert site.store.tenants.daemon_of_guest("bob@example.org") == daemon
        assert run("member", "remove", "vision", "ada@example.org")[0] == 1
        for wrong in ("", "a b", "x" * 65, "ä"):
            assert run("member", "add", "vision", wrong)[0] != 0
        assert run("quota", "set", "vision", "gpu-hours/day", "1")[0] == 1
        site.store.tenants.put_quota("vision", Quota("", "jobs", 1))
        decide = site.store.admission.decide
        assert [decide(daemon, [Claim(job)])[job].word.value for job in "ab"] == ["go", "wait"]


def test_emergency_commands_stop_submissions_tokens_and_changes_until_they_are_undone(
    tmp_path: Path, operator: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.setattr(tenant_routes, "_uid_of", {NAME: os.getuid()}.__getitem__)
    with serving_hub(tmp_path, operators=[ACCOUNT]) as site:
        site.serve_daemon(answer)

        def run(*words: str) -> str:
            code, out, _ = run_admin(capsys, operator, "emergency", *words)
            assert code == 0, words
            return out

        def states() -> tuple[str, int, int]:
            """The hub's answer to a new job, and the statuses of a request that reads and of one that changes."""
            admitted = site.store.admission.decide(os.getuid(), [Claim("a")])["a"]
            site.store.admission.end(os.getuid(), ["a"])
            return str(admitted), site.ask("/api/v1/jobs").status, site.ask("/api/v1/jobs", "POST", body="{}").status

        go = str(GO)
        assert states() == (go, 200, 200)
        for words, what, expected in (
            (("stop", "--why", "no power"), "stopped all submissions: no power", (200, 200)),
            (("stop", "--user", NAME), f"stopped the submissions of the user {NAME}", (200, 200)),
            (("revoke-tokens",), "revoked all tokens", (401, 401)),
            (("drain", "--why", "fire"), "drained the service: fire", (200, 503)),
        ):
            assert run(*words) == ""
            sentence = f"{ACCOUNT} has {what}"
            assert run("list").split("  ", 1)[1] == f"{sentence}\n"
            (shown,) = json.loads(run("list", "--json"))["levers"]
            assert shown["sentence"] == sentence
            stopped = go if words[0] == "revoke-tokens" else str(Answer(Word.WAIT, sentence))
            assert states() == (stopped, *expected)
            if words[0] == "drain":
                refused = site.ask("/api/v1/jobs", "POST", body="{}")
                assert refused.message == f"no changes are accepted: {sentence}"
                upgrade: dict[str, Any] = {"Connection": "Upgrade", "Upgrade": UPGRADE}
                assert site.ask("/api/v1/jobs/j/attach/stream", **upgrade).message == refused.message
            if words[0] == "revoke-tokens":
                later = f"ffdl_{'z' * 12}_{'t' * 43}"
                site.store.tokens.put("z" * 12, os.getuid(), time.time() + 1000)
                assert site.ask("/api/v1/jobs", token=later).status == 200
            assert run("undo", words[0], *(words[1:] if "--user" in words else ())) == ""
            assert states() == (go, 200, 200)
        code, _, said = run_admin(capsys, operator, "emergency", "undo", "stop", "--tenant", "vision")
        assert code == 1
        assert said.endswith(
            "ffdl-admin: nothing to undo for tenant vision; `ffdl-admin emergency list` shows what is stopped\n"
        )


@pytest.mark.parametrize(
    ("roles", "words", "code"),
    [
        ({}, ("tenant", "list"), 77),
        ({"auditors": [ACCOUNT]}, ("tenant", "list"), 0),
        ({"auditors": [ACCOUNT]}, ("tenant", "add", "vision"), 77),
        ({"operators": [ACCOUNT]}, ("tenant", "add", "a b"), 1),
        ({"operators": [ACCOUNT]}, ("member", "add", "vision", "no-such-account"), 1),
        ({"operators": [ACCOUNT]}, ("quota", "set", "vision", "gpus", "1"), 1),
        ({"operators": [ACCOUNT]}, ("quota", "set", "vision", "gpu-hours/month", "1"), 1),
        ({"operators": [ACCOUNT]}, ("quota", "set", "vision", "gpu-hours/year", "1"), 1),
        ({"operators": [ACCOUNT]}, ("emergency", "stop", "--user", "a", "--tenant", "b"), 2),
        ({"operators": [ACCOUNT]}, ("emergency", "stop", "--user", "no-such-account"), 1),
        ({"operators": [ACCOUNT]}, ("emergency", "stop", "--tenant", "no-such-tenant"), 1),
        ({"operators": [ACCOUNT]}, ("emergency", "undo", "drain", "--user", "a"), 2),
        ({"auditors": [ACCOUNT]}, ("emergency", "drain"), 77),
        ({"operators": [ACCOUNT]}, ("quota", "set", "vision", "gpus", "1", "--each", "--user", "a"), 2),
        ({"operators": [ACCOUNT]}, ("tenant", "slurm"), 2),
    ],
)
def test_tenant_commands_refuse_who_may_not_and_what_cannot_be(
    tmp_path: Path,
    operator: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    roles: dict[str, Any],
    words: tuple[str, ...],
    code: int,
) -> None:
    with serving_hub(tmp_path, None, **roles) as site:
        assert run_admin(capsys, operator, *words)[0] == code
        assert (site.store.tenants.read(), site.store.tenants.levers()) == ([], [])


def test_tenant_commands_name_host_without_hub(
    operator: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, said = run_admin(capsys, operator, "tenant", "list")
    assert (code, said) == (69, f"ffdl-admin: this host has no hub: {tmp_path}/hub.sock: No such file or directory\n")
