"""What leaves a redactor has no known secret, in no encoding, and nothing that looks like a secret."""

from __future__ import annotations

import base64
import json
import time

import pytest

from ffdl_batch.domain.redaction import MARK, Redactor, names_secret, secret_values, without_values
from tests.secret_search import Search, forms

VALUE = "plänted \"x\" 'y' \\ $HOME %+/?&\nsecond line-0f3a"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nMIIEvQIBADANBg\n-----END OPENSSH PRIVATE KEY-----"

LINE = '2026-11-30T12:00:00 INFO epoch 3: loss=0.25 tokens_per_second=1,024.5 file "/home/ada/train.py"\n'


@pytest.mark.parametrize("form", sorted(forms(VALUE)))
def test_redactor_removes_known_value_in_every_form(form: bytes) -> None:
    text = f"before {form.decode()} behind"
    clean = Redactor([VALUE]).clean(text)
    assert Search({"value": VALUE}).within(clean.encode()) == set()
    assert clean.startswith("before ") and clean.endswith(" behind")


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_redactor_removes_known_value_within_longer_base64(before: int, encode: object) -> None:
    assert callable(encode)
    text = encode(b"x" * before + VALUE.encode() + b"behind").decode()
    assert Search({"value": VALUE}).within(Redactor([VALUE]).clean(text).encode()) == set()


def test_redactor_removes_known_value_from_json_in_json() -> None:
    text = json.dumps({"log_tail": [json.dumps({"said": VALUE})]})
    inner = json.loads(Redactor([VALUE]).clean(text))["log_tail"][0]
    assert json.loads(inner) == {"said": MARK}


def test_redactor_removes_single_lines_of_known_value() -> None:
    assert Redactor([VALUE]).clean("[1] second line-0f3a\n[2] epoch 3") == f"[1] {MARK}\n[2] epoch 3"


def test_redactor_keeps_values_too_short_to_recognise() -> None:
    assert Redactor(["abc"]).clean("abcdef") == without_values("abcdef", ["abc"]) == "abcdef"


@pytest.mark.parametrize(
    "text",
    [
        "password: SENTINEL7",
        'password = "SENTINEL7 and more SENTINEL7"',
        "export WANDB_API_KEY='SENTINEL7 x'",
        json.dumps({"db": {"adminPassword": 'a"SENTINEL7\\'}}),
        json.dumps(json.dumps({"token": "SENTINEL7"})),
        "MYSQL_PWD=SENTINEL7 DB_PASS=SENTINEL7",
        "LICENSE_KEY=SENTINEL7",
        "prog --password SENTINEL7 --api-key=SENTINEL7",
        json.dumps(["prog", "--password", "SENTINEL7"]),
        json.dumps([{"name": "HF_TOKEN", "value": "SENTINEL7"}], indent=1),
        "- name: HF_TOKEN\n  value: SENTINEL7",
        "url: postgresql://ada:SENTINEL7@db.example.org/x?sslmode=require",
        "https://ada:p/SENTINEL7@x@host/path",
        "https://SENTINEL7SENTINEL7@github.com/x.git",
        "GET https://host/x?a=1&access_token=SENTINEL7&b=2",
        "https://s3/x?X-Amz-Signature=SENTINEL7",
        "Authorization: AWS4-HMAC-SHA256 Credential=SENTINEL7, Signature=SENTINEL7",
        '"Cookie": "session=SENTINEL7; other=SENTINEL7"',
        "curl -H 'Authorization: Bearer SENTINEL7'",
        "sent Basic SENTINEL7==",
        'key_password = """\nSENTINEL7\nSENTINEL7\n"""',
        "password: |\n  SENTINEL7\n  SENTINEL7\nnext: 1",
        'password = "SENTINEL7',
        "-----1password=SENTINEL7",
        "MUNGE:SENTINEL7SENTINEL7==:",
        "ffdl_0a1b2c3d4e5f_SENTINEL7SENTINEL7SENTINEL7SENTINEL7SENTINE",
        "eyJSENTINEL7.eyJSENTINEL7.SENTINEL7",
        "ghp_SENTINEL7SENTINEL7SENTINEL7",
        "hf_SENTINEL7SENTINEL7SENTINEL7",
        "https://hooks.slack.com/services/T0/B0/SENTINEL7",
        "npm_SENTINEL7SENTINEL7SENTINEL7",
        f"?key=AIza{'SENTINEL7'.ljust(35, 'x')}",
        "https://x.blob.core.windows.net/c/b?sv=2024&sig=SENTINEL7SENTINEL7%2Bx%3D&se=2027",
        "ssh_key=SENTINEL7",
        "encryption-key: SENTINEL7",
        json.dumps({"password": ["x", "SENTINEL7"]}),
        json.dumps(json.dumps({"password": ["x", "SENTINEL7"]})),
        "tokens: [x, SENTINEL7]",
        "PASSWORD=${PASSWORD:-SENTINEL7}",
        KEY.replace("MIIEvQIBADANBg", "SENTINEL7"),
        json.dumps({"key": KEY.replace("MIIEvQIBADANBg", "SENTINEL7")}),
        KEY.replace("MIIEvQIBADANBg", "SENTINEL7").partition("-----END")[0],
        KEY.replace("MIIEvQIBADANBg", "SENTINEL7").partition("b3Blbn")[2],
    ],
)
def test_redactor_removes_what_looks_like_a_secret(text: str) -> None:
    clean = Redactor([]).clean(text)
    assert "SENTINEL7" not in clean
    assert MARK in clean


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 12345, tokens_per_second=1,024.5, loss=0.25",
        "tokenizer: gpt2",
        "tokens: [15496, 995], sort_key: name, key: x",
        'password: "${secret:hub}"',
        "password: ${env:PW}",
        '"credentials": {"access_key_id": {}}',
        "see https://host:8080/path and mailto:ada@example.org",
        "PWD=/home/ada OLDPWD=/tmp token_file=/etc/ffdl/token",
        "ssh://ada@login.example.org/x",
        "secret: null, auth: true",
        "Traceback (most recent call last):\n  File 'train.py', line 3",
    ],
)
def test_redactor_keeps_ordinary_text(text: str) -> None:
    assert Redactor(["elsewhere-7"]).clean(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "://",
        "://a:",
        "a-",
        "--a",
        "eyJ-",
        "eyJ12345678.",
        "-----BEGIN PRIVATE KEY",
        "-----END PRIVATE KEY",
        "PRIVATE KEY",
        "password=",
        'password="',
        "password='",
        'password=\\"',
        'password="""',
        "password=${a:",
        "password='${env:",
        "password: |\n ",
        "password:[",
        'password:[\\"',
        'password:["${env:',
        "--password ",
        "_key",
        "cookie=",
        "?sig=",
        "name:",
        "name: a ",
        "x",
        "\\",
        " ",
        "=",
    ],
)
def test_redactor_takes_time_of_ordinary_text_for_hostile_text(piece: str) -> None:
    redactor = Redactor(["known-value"])

    def cpu_s(piece: str) -> float:
        text = f"-----END {piece * (30_000 // len(piece))} known-value"
        begin = time.thread_time()
        clean = redactor.clean(text)
        taken = time.thread_time() - begin
        assert "known-value" not in clean
        return taken

    assert any(cpu_s(piece) < 5 * cpu_s(LINE) for _ in range(5))


def test_redactor_keeps_json_readable() -> None:
    text = json.dumps(
        {"password": "x-y-z", "passwords": ["x", "y"], "list": ["a", 1], "url": "s3://k:secret7@h/b"}, indent=2
    )
    assert json.loads(Redactor(["secret7"]).clean(text)) == {
        "password": MARK,
        "passwords": [MARK, MARK],
        "list": ["a", 1],
        "url": f"s3://{MARK}@h/b",
    }


def test_secret_values_takes_variables_with_names_of_secrets_only() -> None:
    found = secret_values({"AWS_SECRET_ACCESS_KEY": "a-b-c-d", "HOME": "/home/ada", "USE_TOKEN": "true", "PASS": "x y"})
    assert found == {"a-b-c-d", "x y"}
    assert not names_secret("PWD")
