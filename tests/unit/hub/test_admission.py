"""Tenants, quotas and stopped submissions in the hub's database, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ffdl_batch.domain.admission import Claim, Word
from ffdl_batch.site.hub import admission
from ffdl_batch.site.hub.store import HubStore, open_hub_store
from ffdl_batch.site.hub.tenants import EACH, WHOLE, LeverKind, Quota, TenantRefused
from ffdl_batch.store.database import connect
from tests.unit.store.conftest import empty_url  # noqa: F401 - a fixture
from tests.unit.store.jobs import FakeClock

ADA, BOB, EVE = 7001, 7002, 7003
NAMES = {ADA: "ada", BOB: "bob", EVE: "eve"}


@contextmanager
def opened(url: str) -> Iterator[HubStore]:
    """What a hub has that starts."""
    database = connect(url, False, FakeClock())
    try:
        yield open_hub_store(database, lambda uid: NAMES.get(uid, ""))
    finally:
        database.close()


@pytest.fixture
def store(empty_url: str) -> Iterator[HubStore]:  # noqa: F811
    """A hub with two tenants; ada and bob are members of vision, and ada of speech."""
    with opened(empty_url) as found:
        found.tenants.put("vision", None, ["vis", "vis-big"])
        found.tenants.put("speech", 2.0, ["sp"])
        for tenant, uid in (("vision", ADA), ("vision", BOB), ("speech", ADA)):
            found.tenants.add_member(tenant, uid)
        yield found


def ask(store: HubStore, uid: int, *claims: Claim) -> list[str]:
    """The answers as texts: the word, and the reason if there is one."""
    answers = store.admission.decide(uid, claims)
    return [": ".join(filter(None, (answers[one.job].word.value, answers[one.job].reason))) for one in claims]


def limit(store: HubStore, resource: str, amount: float, member: str = WHOLE, tenant: str = "vision") -> None:
    store.tenants.put_quota(tenant, Quota(member, resource, amount))


@pytest.mark.parametrize(
    ("uid", "account", "answer"),
    [
        (ADA, "vis", "go"),
        (ADA, "elsewhere", "go"),
        (BOB, "", "go"),
        (EVE, "", "go"),
        (EVE, "sp", "refuse: account 'sp' belongs to tenant 'speech', but eve is not a member; choose another "
         "account with --account, or ask an operator to add you"),
        (ADA, "", "refuse: ada is a member of several tenants; choose one with --account: "
         "sp (speech), vis/vis-big (vision)"),
    ],
)  # fmt: skip
def test_tenant_of_a_job_follows_from_its_account_and_the_memberships_of_its_user(
    store: HubStore, uid: int, account: str, answer: str
) -> None:
    assert ask(store, uid, Claim("a", account)) == [answer]


def test_member_whose_uid_belongs_to_another_account_is_no_member(
    store: HubStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(store, "jobs", 0)
    assert ask(store, BOB, Claim("a"))[0].startswith("refuse: jobs: 1 exceeds the quota of tenant vision (0); ")
    monkeypatch.setitem(NAMES, BOB, "another")
    assert ask(store, BOB, Claim("a")) == ["go"]


def test_jobs_wait_for_quota_of_tenant_until_jobs_of_other_members_end(store: HubStore) -> None:
    limit(store, "gpus", 8)
    assert ask(store, ADA, Claim("a", "vis", 6)) == ["go"]
    waits = "wait: waiting for quota of tenant vision: gpus limit 8, in use 6, requested 4"
    assert ask(store, BOB, Claim("b", gpus=4), Claim("c", gpus=2), Claim("d", gpus=9)) == [
        waits,
        "go",
        "refuse: gpus: 9 exceeds the quota of tenant vision (8); request less, or choose another account with "
        "--account",
    ]
    assert store.admission.live(BOB) == ["c"]
    store.admission.end(BOB, ["a"])  # not bob's
    assert ask(store, BOB, Claim("b", gpus=4)) == [
        "wait: waiting for quota of tenant vision: gpus limit 8, in use 8, requested 4"
    ]
    store.admission.end(ADA, ["a"])
    assert ask(store, BOB, Claim("b", gpus=4)) == ["go"]


def test_quotas_of_members_of_types_and_of_jobs_count_separately(store: HubStore) -> None:
    limit(store, "gpus:a100", 2)
    limit(store, "jobs", 2, EACH)
    limit(store, "jobs", 1, "bob")
    assert ask(store, BOB, Claim("a", gpus=2, gpu_type="h100"), Claim("b")) == [
        "go",
        "wait: waiting for quota of bob in tenant vision: jobs limit 1, in use 1, requested 1",
    ]
    assert ask(
        store,
        ADA,
        Claim("c", "vis", 2, "a100"),
        Claim("d", "vis", 1, "a100"),
        Claim("e", "vis", 9),
        Claim("f", "vis"),
    ) == [
        "go",
        "wait: waiting for quota of tenant vision: gpus:a100 limit 2, in use 2, requested 1",
        "go",
        "wait: waiting for quota of ada in tenant vision: jobs limit 2, in use 2, requested 1",
    ]


def test_live_jobs_of_one_user_are_bounded(store: HubStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_LIVE", 2)
    waits = "wait: you have 2 live jobs, which is the most that this site admits"
    assert ask(store, EVE, *map(Claim, "abc")) == ["go", "go", waits]
    assert ask(store, EVE, *map(Claim, "cb")) == [waits, "go"]
    assert ask(store, BOB, Claim("a")) == ["go"]
    store.admission.end(EVE, ["a"])
    assert ask(store, EVE, Claim("c")) == ["go"]


def test_admitted_job_gets_same_answer_again_after_restart_of_hub(empty_url: str) -> None:  # noqa: F811
    with opened(empty_url) as store:
        store.tenants.put("vision", None, None)
        store.tenants.add_member("vision", ADA)
        limit(store, "jobs", 1)
        assert ask(store, ADA, Claim("a"), Claim("b"))[0] == "go"
    with opened(empty_url) as store:
        assert ask(store, ADA, Claim("b"), Claim("a")) == [
            "wait: waiting for quota of tenant vision: jobs limit 1, in use 1, requested 1",
            "go",
        ]


def test_job_that_was_resumed_with_more_gpus_needs_quota_again(store: HubStore) -> None:
    limit(store, "gpus", 8)
    assert ask(store, BOB, Claim("a", gpus=2), Claim("b", gpus=4)) == ["go", "go"]
    assert ask(store, BOB, Claim("a", gpus=2)) == ["go"]
    assert ask(store, BOB, Claim("a", gpus=6)) == [
        "wait: waiting for quota of tenant vision: gpus limit 8, in use 4, requested 6"
    ]
    assert ask(store, BOB, Claim("a", gpus=3)) == ["go"]
    assert store.admission.uses()["vision"].whole["gpus"] == 7


def test_hubs_that_decide_at_once_admit_no_more_than_the_quota(empty_url: str) -> None:  # noqa: F811
    with opened(empty_url) as store:
        store.tenants.put("vision", None, None)
        store.tenants.add_member("vision", ADA)
        limit(store, "gpus", 10)
    go = threading.Barrier(4)
    admitted: list[str] = []

    def decide(number: int) -> None:
        with opened(empty_url) as store:
            go.wait(60)
            for count in range(5):
                answers = store.admission.decide(ADA, [Claim(f"{number}-{count}-{one}", gpus=1) for one in range(3)])
                admitted.extend(job for job, answer in answers.items() if answer.word is Word.GO)

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(admitted) == 10
    with opened(empty_url) as store:
        assert sorted(store.admission.live(ADA)) == sorted(admitted)


@pytest.mark.parametrize(
    ("kind", "subject", "whose", "stops"),
    [
        (LeverKind.SITE, "", "stopped all submissions", (ADA, BOB, EVE)),
        (LeverKind.SERVICE, "", "drained the service", (ADA, BOB, EVE)),
        (LeverKind.TENANT, "vision", "stopped the submissions of the tenant vision", (ADA, BOB)),
        (LeverKind.USER, "bob", "stopped the submissions of the user bob", (BOB,)),
    ],
)
def test_stopped_submissions_wait_with_reason_until_it_is_undone(
    store: HubStore, kind: LeverKind, subject: str, whose: str, stops: tuple[int, ...]
) -> None:
    claims = {ADA: Claim("a", "vis"), BOB: Claim("b"), EVE: Claim("c")}
    assert ask(store, BOB, Claim("earlier")) == ["go"]
    store.tenants.stop(kind, subject, "ops", "power failure")
    (lever,) = store.tenants.levers()
    assert (lever.kind, lever.subject, lever.set_by, lever.why) == (kind, subject, "ops", "power failure")
    said = f"wait: ops has {whose}: power failure"
    assert [ask(store, uid, claim)[0] for uid, claim in claims.items()] == [
        said if uid in stops else "go" for uid in claims
    ]
    assert ask(store, BOB, Claim("earlier")) == ["go"]
    store.tenants.undo(kind, subject)
    assert [ask(store, uid, claim)[0] for uid, claim in claims.items()] == ["go"] * 3
    with pytest.raises(TenantRefused, match="nothing to undo"):
        store.tenants.undo(kind, subject)


def test_tenants_are_described_and_changed_as_a_whole(store: HubStore) -> None:
    limit(store, "jobs", 3, "bob")
    limit(store, "jobs", 5, "bob")
    store.tenants.put("vision", 4.0, ["vis"])
    speech, vision = store.tenants.read()
    assert (vision.weight, vision.accounts, vision.members) == (4.0, ("vis",), {ADA: "ada", BOB: "bob"})
    assert vision.quotas == (Quota("bob", "jobs", 5.0),)
    assert (speech.weight, speech.members) == (2.0, {ADA: "ada"})
    store.tenants.remove_member("vision", "bob")
    store.tenants.remove("speech")
    (vision,) = store.tenants.read()
    assert (vision.members, vision.quotas) == ({ADA: "ada"}, ())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tenants: tenants.put("a b", None, None), "use at most 63 letters, digits"),
        (lambda tenants: tenants.put("vision", 0.0, None), "must be greater than 0"),
        (lambda tenants: tenants.put("other", None, ["vis"]), "the account vis belongs to the tenant vision"),
        (lambda tenants: tenants.put("vision", None, ["a/b"]), "an account"),
        (lambda tenants: tenants.add_member("nowhere", ADA), "there is no tenant 'nowhere'"),
        (lambda tenants: tenants.add_member("vision", 9999), "has no account"),
        (lambda tenants: tenants.remove_member("vision", "eve"), "eve is not a member"),
        (lambda tenants: tenants.put_quota("vision", Quota("", "cpus", 1)), "unknown resource 'cpus'"),
        (lambda tenants: tenants.put_quota("vision", Quota("", "gpus", -1)), "must be between 0 and"),
        (lambda tenants: tenants.put_quota("vision", Quota("eve", "gpus", 1)), "eve is not a member"),
        (lambda tenants: tenants.remove_quota("vision", "", "gpus"), "no such quota"),
        (lambda tenants: tenants.stop(LeverKind.TENANT, "nowhere", "ops", ""), "there is no tenant"),
        (lambda tenants: tenants.remove("vision"), "'vision' has 1 live job"),
    ],
)
def test_impossible_change_of_tenants_is_refused_and_changes_nothing(store: HubStore, change: object, why: str) -> None:
    assert ask(store, BOB, Claim("a")) == ["go"]
    before = store.tenants.read()
    with pytest.raises(TenantRefused, match=why):
        change(store.tenants)  # type: ignore[operator]
    assert (store.tenants.read(), store.tenants.levers()) == (before, [])


def test_account_of_no_tenant_has_no_quota_only_if_scheduler_checks_accounts(store: HubStore) -> None:
    limit(store, "jobs", 0)
    assert ask(store, BOB, Claim("a", "elsewhere")) == ["go"]
    (refused,) = ask(store, BOB, Claim("b", "elsewhere", account_is_checked=False))
    assert refused.startswith("refuse: ")


def test_job_that_a_scaler_has_grown_is_counted_and_neither_waits_nor_is_refused(store: HubStore) -> None:
    limit(store, "gpus", 4)
    assert ask(store, BOB, Claim("a", "vis", gpus=2, hours=1)) == ["go"]
    grown = Claim("a", "vis", gpus=8, hours=1, continues=True)
    assert ask(store, BOB, grown) == ["go"]
    assert store.admission.uses()["vision"].whole["gpus"] == 8
    (waits,) = ask(store, ADA, Claim("b", "vis", gpus=1, hours=1))
    assert waits.startswith("wait: waiting for quota of tenant vision: gpus limit 4, in use 8")
    assert ask(store, BOB, Claim("a", "vis", gpus=0, hours=1, continues=True)) == ["go"]
    assert ask(store, ADA, Claim("b", "vis", gpus=1, hours=1)) == ["go"]
    (refused,) = ask(store, BOB, Claim("a", "vis", gpus=8, hours=1))
    assert refused.startswith("refuse: gpus: 8 exceeds the quota"), "its owner has resumed it"


def test_unknown_job_that_claims_to_continue_is_a_new_one(store: HubStore) -> None:
    limit(store, "gpus", 4)
    (refused,) = ask(store, BOB, Claim("a", "vis", gpus=8, hours=1, continues=True))
    assert refused.startswith("refuse: gpus: 8 exceeds the quota of tenant vision (4)")
    (foreign,) = ask(store, EVE, Claim("b", "sp", hours=1, continues=True))
    assert foreign.startswith("refuse: account 'sp' belongs to tenant 'speech'")
    assert ask(store, BOB, Claim("c", "vis", gpus=4, hours=1, continues=True)) == ["go"]
    assert store.admission.live(BOB) == ["c"]
    store.tenants.stop(LeverKind.SITE, "", "ops", "power failure")
    (waits,) = ask(store, BOB, Claim("d", "vis", continues=True))
    assert waits == "wait: ops has stopped all submissions: power failure"
