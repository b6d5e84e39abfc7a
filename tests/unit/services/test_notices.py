"""Whoever is to be told of an incident is, until it was taken, by a real relay and a real web server."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ffdl_batch.domain.incidents.incident import Evidence, Incident, Origin
from ffdl_batch.domain.incidents.site_settings import FaultPolicy, NoticeSettings
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.network_address import CHATS, without_query
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.notify.webhook import WebhookRefused, post
from ffdl_batch.services.incidents.notices import FIRST_PAUSE_S, LONGEST_DELAY_S, Notifier
from tests.fakes.certificates import certificate_for
from tests.fakes.mail_server import Relay, mail_relay
from tests.fakes.serving import serving
from tests.unit.services.conftest import MANIFEST, Site

ODD = "ValueError: \udcff\r\nBcc: eve@example.org"


@dataclass
class Hook:
    """A web server that keeps what is posted. `status` is what it answers."""

    address: str = ""
    status: int = 204
    location: str = ""
    posts: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def web_server() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.posts.append((self.path, dict(self.headers), body))
            self.send_response(hook.status)
            if hook.location:
                self.send_header("Location", hook.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.address = f"http://127.0.0.1:{server.server_address[1]}/hooks/ffdl?token=s3cret"
    with serving(server):
        yield hook


@pytest.fixture
def hook() -> Iterator[Hook]:
    with web_server() as made:
        yield made


@pytest.fixture
def relay() -> Iterator[Relay]:
    with mail_relay() as made:
        yield made


def notifier(site: Site, **settings: object) -> Notifier:
    notices = NoticeSettings(**settings)  # type: ignore[arg-type]
    site.set_settings(notices=notices)
    return site.platform.notifier()


def happened(site: Site, job: Job, episode: str = "end-0", kind: str = "user.traceback") -> Job:
    evidence = (Evidence("learner-1", ODD),)
    one = Incident(job.id, 1, episode, kind, site.clock.now(), "C201", ODD, ("n1",), 1, evidence, 7200.0)
    return site.move(site.job(job.id), incidents=(one,))


def test_notifier_posts_to_no_address_that_site_excludes(
    site: Site, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    happened(site, site.accept())
    addresses = hook.address, hook.address.replace("127.0.0.1", "localhost")
    site.set_settings(notices=NoticeSettings(webhooks=addresses), egress=())
    site.platform.notifier().step()
    assert hook.posts == []
    assert caplog.text.count("the site does not permit connections to") >= len(addresses)
    site.set_settings(notices=NoticeSettings(webhooks=(hook.address,)), egress=("127.0.0.1/32",))
    site.clock.tick(FIRST_PAUSE_S * 2)
    site.platform.notifier().step()
    assert len(hook.posts) >= 1


def test_notifier_sends_each_incident_once_by_mail_and_webhook(site: Site, hook: Hook, relay: Relay) -> None:
    telling = notifier(
        site,
        mail=("ops@example.org",),
        webhooks=(hook.address,),
        smtp=f"127.0.0.1:{relay.port}",
        sender="f@example.org",
    )
    job = happened(site, site.accept())
    telling.step()
    telling.step()
    [taken] = relay.taken
    assert (taken.sender, taken.recipients) == ("f@example.org", ["ops@example.org"])
    assert taken.message["Subject"] == f"{job.id} (digits): the learner ended with a Python exception"
    assert taken.message["Bcc"] is None
    text = taken.message.get_content()
    assert "What helps: " in text
    assert "Nodes: n1" in text
    assert "Work to be done again: 2.00 GPU-hours" in text
    assert "learner-1: ValueError: ?" in text
    [(path, headers, body)] = hook.posts
    told = json.loads(body)
    assert path == "/hooks/ffdl?token=s3cret"
    assert (told["schema"], told["id"]) == (1, headers["X-Ffdl-Notice"])
    assert (told["incident"]["job"], told["incident"]["kind"]) == (job.id, "user.traceback")
    assert "X-Ffdl-Signature" not in headers


@pytest.mark.parametrize("chat", CHATS)
def test_notifier_writes_in_form_of_chat_without_mentions(site: Site, hook: Hook, chat: str) -> None:
    address = f"{chat}+{hook.address.partition('?')[0]}/T0/secret"
    telling = notifier(site, webhooks=(address,))
    job = site.accept()
    ping = Evidence("learner-1", "<!channel> @channel ``` **bold** &")
    one = Incident(job.id, 1, "end-0", "user.traceback", site.clock.now(), "C201", "failed", ("n1",), 1, (ping,), 0.0)
    site.move(site.job(job.id), incidents=(one,))
    telling.step()
    [(path, _, body)] = hook.posts
    told = json.loads(body)
    assert job.id in body.decode()
    assert "What helps: " in body.decode()
    if chat == "slack":
        assert (path, "<" in told["text"], "&lt;!channel&gt;" in told["text"]) == ("/hooks/ffdl/T0/secret", False, True)
    elif chat == "mattermost":
        title, fence, *inside, end = told["text"].splitlines()
        assert (fence, end, title[0], title[-1]) == ("```", "```", "`", "`")
        assert "`" not in "".join(inside)
    elif chat == "teams":
        [card] = told["attachments"]
        assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
        assert all(block["type"] == "TextBlock" for block in card["content"]["body"])
    else:
        assert (path, told["topic"]) == ("/hooks/ffdl/T0/", "secret")


def test_log_has_no_secret_of_chat(site: Site, hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    hook.status = 404
    telling = notifier(site, webhooks=(f"slack+{hook.address.partition('?')[0]}/T0/secret",))
    happened(site, site.accept())
    telling.step()
    assert "is abandoned" in caplog.text
    assert "secret" not in caplog.text


def test_notifier_signs_webhook_body_with_key(site: Site, hook: Hook, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key\n")
    telling = notifier(site, webhooks=(hook.address,), webhook_key_file=str(key))
    happened(site, site.accept())
    telling.step()
    [(_, headers, body)] = hook.posts
    assert headers["X-Ffdl-Signature"] == "sha256=" + hmac.new(b"a key", body, hashlib.sha256).hexdigest()


def test_notifier_sends_only_incidents_of_configured_origins(site: Site, hook: Hook) -> None:
    telling = notifier(site, webhooks=(hook.address,), origins=(Origin.NODE,))
    happened(site, happened(site, site.accept()), "end-1", "node.gpu")
    telling.step()
    assert [json.loads(body)["incident"]["kind"] for _, _, body in hook.posts] == ["node.gpu"]


def test_notifier_sends_to_addresses_of_manifest(site: Site, hook: Hook, relay: Relay) -> None:
    manifest = MANIFEST + f"batch:\n  notify: {{mail: me@example.org, webhook: '{hook.address}'}}\n"
    job = site.accept(manifest=manifest)
    happened(site, job)
    notifier(site, smtp=f"127.0.0.1:{relay.port}").step()
    assert [taken.recipients for taken in relay.taken] == [["me@example.org"]]
    assert len(hook.posts) == 1


def test_notifier_posts_to_addresses_of_fault_policy_and_logs_mail_that_has_no_relay(
    site: Site, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    policies = (
        FaultPolicy("licence", "no licence", notify=(hook.address, "a@b.org")),
        FaultPolicy("other", "x", notify=("other@b.org",)),
    )
    site.set_settings(fault_policies=policies)
    telling = notifier(site, origins=(Origin.NODE,))
    job = site.accept()
    spoken = Incident(job.id, 1, "end-0", "user.exit", 1.0, evidence=(Evidence("policy licence", "no licence"),))
    site.move(job, incidents=(spoken,))
    telling.step()
    assert len(hook.posts) == 1
    assert f"no notice of {job.id} is sent to a@b.org: notices.smtp names no mail relay" in caplog.text
    assert "other@b.org" not in caplog.text
    assert site.platform.storage.store.notices.next_due() is None


@pytest.mark.parametrize("key", ["login_file", "ca_file"])
def test_notifier_sends_no_mail_to_relay_that_cannot_prove_its_identity(
    site: Site, relay: Relay, tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """This relay offers no encryption."""
    file, _ = certificate_for("127.0.0.1", tmp_path)
    if key == "login_file":
        file.write_text("user\npassword\n")
    file.chmod(0o600)
    happened(site, site.accept())
    notifier(site, mail=("ops@example.org",), smtp=f"127.0.0.1:{relay.port}", **{key: str(file)}).step()
    assert relay.taken == [] and "it does not offer STARTTLS" in caplog.text


def test_notifier_leaves_owner_mail_to_scheduler_without_relay(site: Site) -> None:
    job = site.accept(manifest=MANIFEST + "batch:\n  notify: {mail: me@example.org}\n")
    happened(site, job)
    notifier(site).step()
    assert site.platform.storage.store.notices.next_due() is None


def test_notifier_retries_webhook_with_same_id_after_temporary_failure(site: Site, hook: Hook) -> None:
    telling = notifier(site, webhooks=(hook.address,))
    happened(site, site.accept())
    hook.status = 503
    assert telling.step() == pytest.approx(FIRST_PAUSE_S, abs=2.0)
    assert telling.is_busy()
    telling.step()
    assert len(hook.posts) == 1  # not before its time
    site.clock.tick(FIRST_PAUSE_S + 1)
    hook.status = 200
    telling.step()
    site.clock.tick(LONGEST_DELAY_S / 2)
    telling.step()
    ids = [headers["X-Ffdl-Notice"] for _, headers, _ in hook.posts]
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert not telling.is_busy()


def test_notifier_stops_after_webhook_refusal_and_hides_token_in_log(
    site: Site, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.status = 403
    telling = notifier(site, webhooks=(hook.address,))
    happened(site, site.accept())
    with caplog.at_level(logging.ERROR):
        telling.step()
    site.clock.tick(LONGEST_DELAY_S / 2)
    telling.step()
    assert len(hook.posts) == 1
    assert "answered 403" in caplog.text
    assert "s3cret" not in caplog.text


def test_notifier_abandons_mail_after_one_day_without_relay(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    telling = notifier(site, mail=("ops@example.org",), smtp="127.0.0.1:9")
    happened(site, site.accept())
    tries = 0
    for _ in range(60):
        pause = telling.step()
        if site.platform.storage.store.notices.next_due() is None:
            break
        tries += 1
        site.clock.tick(pause + 1)
    assert 20 < tries < 40
    assert "is abandoned" in caplog.text


def test_notifier_sends_only_incidents_of_last_day_after_downtime(site: Site, hook: Hook) -> None:
    job = happened(site, site.accept())
    site.clock.tick(LONGEST_DELAY_S + 1)
    happened(site, job, "end-1")
    notifier(site, webhooks=(hook.address,)).step()
    assert [json.loads(body)["incident"]["episode"] for _, _, body in hook.posts] == ["end-1"]


def test_notifier_sends_no_duplicate_when_two_daemons_share_database(site: Site, hook: Hook) -> None:
    first = notifier(site, webhooks=(hook.address,))
    other = replace(site.platform, owner="other").notifier()
    happened(site, site.accept())
    first.step()
    other.step()
    first.close()
    other.step()
    assert len(hook.posts) == 1


def test_notifier_tries_hanging_server_once_per_step_and_serves_others(
    site: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once a step, however many notices it is to get."""
    asked: list[str] = []

    def hang(address: str, body: bytes, notice_id: str, key: bytes = b"", *, named: str = "") -> None:
        asked.append(address)
        if "tarpit" in address:
            site.clock.tick(20.0)
            raise WebhookRefused("it cannot be reached: timed out", may_pass=True)
        post(address, body, notice_id, key)

    monkeypatch.setattr("ffdl_batch.notify.delivery.post", hang)
    telling = notifier(site, webhooks=("http://tarpit.example.org/a", "http://tarpit.example.org/b", hook.address))
    happened(site, happened(site, site.accept()), "end-1")
    telling.step()
    assert len([one for one in asked if "tarpit" in one]) == 1
    assert len(hook.posts) == 2
    assert telling.step() > 0.0


def test_notifier_stops_sending_when_it_loses_lease(site: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    telling = notifier(site, webhooks=(hook.address,))
    happened(site, happened(site, site.accept()), "end-1")
    turns = iter([True, True, False])
    monkeypatch.setattr(telling._turn, "take", lambda: next(turns))
    telling.step()
    assert len(hook.posts) == 1


def test_post_does_not_follow_redirects(hook: Hook) -> None:
    with web_server() as elsewhere:
        hook.status, hook.location = 307, elsewhere.address
        with pytest.raises(WebhookRefused, match="answered 307") as refused:
            post(hook.address, b"{}", "id")
        assert elsewhere.posts == []
    assert not refused.value.may_pass


def test_without_query_removes_credentials_query_and_fragment_from_url() -> None:
    assert without_query("https://me:pw@chat.example.org/hooks/x?token=1#y") == "https://chat.example.org/hooks/x"
    assert without_query("https://me:pw@[::1/x") == "the webhook"
