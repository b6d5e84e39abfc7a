"""Commands for operators of a site, with a running hub."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.admission import Claim
from tests.unit.admin.conftest import run_admin
from tests.unit.hub.conftest import serving_hub

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
    with serving_hub(tmp_path, operators=[ACCOUNT]) as site:

        def run(*words: str) -> tuple[int, str]:
            code, out, err = run_admin(capsys, operator, *words)
            said = [line for line in err.splitlines(keepends=True) if not line.startswith('{"audit"')]  # the hub's
            return code, out + "".join(said)

        assert run("tenant", "add", "vision", "--account", "vis", "--weight", "2") == (0, "")
        assert run("member", "add", "vision", ACCOUNT) == (0, "")
        for words in (("gpus", "8"), ("gpus:a100", "4"), ("jobs", "5", "--each"), ("jobs", "1", "--user", NAME)):
            assert run("quota", "set", "vision", *words) == (0, "")
        decide = site.store.admission.decide
        assert decide(os.getuid(), [Claim("a", gpus=2)])["a"].word == "go"
        assert "jobs 1, in use 1, asked 1" in decide(os.getuid(), [Claim("b")])["b"].reason
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
            "ffdl-admin: the tenant vision has 1 live job; stop its submissions, then wait\n",
        )
        site.store.admission.end(os.getuid(), ["a"])
        assert run("member", "remove", "vision", NAME) == (0, "")
        assert run("tenant", "remove", "vision") == (0, "")
        assert run("tenant", "list") == (0, "")
    audit = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    changes = [one["what"] for one in audit if one["role"] == "operator" and not one["what"].startswith("GET")]
    assert changes[:2] == ["PUT /api/site/v1/tenants/vision", f"PUT /api/site/v1/tenants/vision/members/{ACCOUNT}"]
    assert {one["caller"] for one in audit} == {os.getuid()}


def test_submissions_commands_stop_and_permit_submissions(
    tmp_path: Path, operator: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_hub(tmp_path, operators=[ACCOUNT]) as site:
        assert run_admin(capsys, operator, "submissions", "stop", "--why", "no power")[0] == 0
        assert run_admin(capsys, operator, "submissions", "stop", "--user", "eve")[0] == 0
        answer = site.store.admission.decide(os.getuid(), [Claim("a")])["a"]
        assert (answer.word, answer.reason) == ("wait", f"{ACCOUNT} has stopped all submissions: no power")
        _, listed, _ = run_admin(capsys, operator, "submissions", "list")
        assert [line.split("  ")[0] for line in listed.splitlines()] == ["site", "user eve"]
        assert listed.splitlines()[0].endswith(f"by {ACCOUNT}: no power")
        assert run_admin(capsys, operator, "submissions", "permit")[0] == 0
        assert site.store.admission.decide(os.getuid(), [Claim("a")])["a"].word == "go"
        code, _, said = run_admin(capsys, operator, "submissions", "permit", "--tenant", "vision")
        assert code == 1
        assert said.endswith("ffdl-admin: the submissions of the tenant vision are not stopped\n")


@pytest.mark.parametrize(
    ("roles", "words", "code"),
    [
        ({}, ("tenant", "list"), 77),
        ({"auditors": [ACCOUNT]}, ("tenant", "list"), 0),
        ({"auditors": [ACCOUNT]}, ("tenant", "add", "vision"), 77),
        ({"operators": [ACCOUNT]}, ("tenant", "add", "a b"), 1),
        ({"operators": [ACCOUNT]}, ("member", "add", "vision", "no-such-account"), 1),
        ({"operators": [ACCOUNT]}, ("quota", "set", "vision", "gpus", "1"), 1),
        ({"operators": [ACCOUNT]}, ("submissions", "stop", "--user", "a", "--tenant", "b"), 2),
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
