"""Elements of arrays: taken together, listed and counted by their array, their leases renewed in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ffdl_batch.domain.job.array import ArrayId, expand
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import Store
from tests.unit.store.jobs import SUBMITTED_AT, add_job, applied, new_job, steps

ARRAY, OTHER = ArrayId("array-000000001"), ArrayId("array-000000002")


def add_array(
    store: Store, array: ArrayId = ARRAY, indexes: str = "0-3", *, name: str = "sweep", at: float = SUBMITTED_AT
) -> Sequence[Job]:
    """Its elements, added together."""
    whole = new_job(name=name)
    specs = expand(replace(whole.spec, batch=BatchOptions(array=indexes)), array)
    return store.add_jobs([replace(new_job(at=at + n / 1e6), spec=spec) for n, spec in enumerate(specs)])


def test_store_finds_array_elements_by_array_and_index(store: Store) -> None:
    elements = add_array(store, indexes="4,2,10")
    add_array(store, OTHER)
    add_job(store)
    assert store.elements_of(ARRAY) == elements
    assert [job.spec.element.index for job in elements if job.spec.element] == [2, 4, 10]
    assert store.elements_of(ARRAY, 4) == [elements[1]]
    assert store.elements_of(ARRAY, 3) == store.elements_of("array-000000009") == []
    assert store.elements_of("") == [], "jobs of no array are not the elements of one"


def test_store_lists_array_elements_by_array_id_or_name(store: Store) -> None:
    add_job(store, name="sweep[1]")
    assert store.list_jobs(uid=1000, name="sweep") == [], "it is only named like an element"
    elements = add_array(store, name="rate")
    add_array(store, OTHER, name="rate_")
    single = add_job(store, name="rate", at=SUBMITTED_AT - 1)
    assert store.list_jobs(uid=1000, array=ARRAY) == list(reversed(elements))
    assert store.list_jobs(uid=1000, name="rate") == [*reversed(elements), single]
    assert store.list_jobs(uid=1000, name="rate[2]") == [elements[2]]
    assert store.list_jobs(uid=1000, name="rat_") == []
    assert store.list_jobs(uid=1000, text="RATE_") == list(reversed(store.elements_of(OTHER))), "_ is no wildcard"
    assert store.list_jobs(uid=1000, text=single.id[:13]) == [single], "the beginning of an id"
    first = store.list_jobs(uid=1000, array=ARRAY, limit=3)
    assert store.list_jobs(uid=1000, array=ARRAY, limit=3, after=first[-1].id) == [elements[0]]


def test_store_lists_first_matching_element_of_each_array(store: Store) -> None:
    elements, single = add_array(store), add_job(store)
    other = add_array(store, OTHER, indexes="7")
    listed = store.list_jobs(uid=1000, is_collapsed=True)
    assert {job.id for job in listed} == {elements[0].id, other[0].id, single.id}
    pages = [store.list_jobs(uid=1000, is_collapsed=True, limit=1)]
    while pages[-1]:
        pages.append(store.list_jobs(uid=1000, is_collapsed=True, limit=1, after=pages[-1][0].id))
    assert [job for page in pages for job in page] == listed
    applied(store, elements[0], steps(JobState.CANCELLED))
    live = store.list_jobs(uid=1000, is_collapsed=True, states=[JobState.PENDING])
    assert {job.id for job in live} == {elements[1].id, other[0].id, single.id}


def test_store_counts_array_elements_by_state(store: Store) -> None:
    elements = add_array(store)
    add_array(store, OTHER, indexes="7")
    applied(store, elements[0], steps(JobState.CANCELLED))
    add_job(store)
    assert store.count_elements([ARRAY, OTHER, "array-000000009", ""]) == {
        ARRAY: {JobState.PENDING: 3, JobState.CANCELLED: 1},
        OTHER: {JobState.PENDING: 1},
    }


def test_store_counts_array_elements_that_scheduler_may_hold(store: Store) -> None:
    elements = add_array(store, indexes="0-4")
    add_array(store, OTHER)
    leased = {taken.job.id: taken for taken in store.claim_deployable("one", limit=99, lease_s=60)}
    begun = []
    for job in elements[:4]:
        attempt = store.begin_attempt(job, leased[job.id].lease_token, SUBMITTED_AT + 1)
        assert attempt is not None
        begun.append(attempt)
    token = leased[begun[0].id].lease_token
    applied(store, begun[0], steps(JobState.QUEUED, native_id="9_0"), lease_token=token)
    applied(store, begun[1], Change((), columns={"uncertain_since": SUBMITTED_AT + 2}), lease_token=token)
    ended = applied(store, begun[2], steps(JobState.QUEUED, native_id="9_2"), lease_token=token)
    applied(store, ended, steps(JobState.PROCESSING, JobState.COMPLETED))
    assert store.count_handed_over([ARRAY, OTHER, ""]) == {ARRAY: 3}, "the fourth is being submitted"
    assert store.count_handed_over([ARRAY, OTHER, ""], besides=token) == {ARRAY: 2}
    store.release([begun[3].id], token)
    assert store.count_handed_over([ARRAY, OTHER, ""]) == {ARRAY: 2}, "the fourth waits for its next submission"


def test_store_claims_whole_array_beyond_job_limit(store: Store) -> None:
    """Beyond the limit, so that its elements are submitted together."""
    single = add_job(store, at=SUBMITTED_AT - 1)
    elements = add_array(store, indexes="0-9")
    add_array(store, OTHER, at=SUBMITTED_AT + 1)
    taken = store.claim_deployable("one", limit=3, lease_s=60, elements=100)
    assert [leased.job for leased in taken] == [single, *elements]
    assert len({leased.lease_token for leased in taken}) == 1
    rest = store.claim_deployable("two", limit=1, lease_s=60, elements=2)
    assert {leased.job.spec.name for leased in rest} == {f"sweep[{n}]" for n in range(3)}


def test_store_claims_no_more_array_elements_than_requested(store: Store) -> None:
    elements = add_array(store, indexes="0-9")
    taken = store.claim_deployable("one", limit=1, lease_s=60, elements=4)
    assert [leased.job for leased in taken] == elements[:5]
    rest = store.claim_deployable("two", limit=99, lease_s=60, elements=4)
    assert [leased.job for leased in rest] == elements[5:]


def test_store_makes_postponed_array_elements_due_together(store: Store) -> None:
    elements = add_array(store, indexes="0-1")
    single = add_job(store)
    taken = store.claim_deployable("one", limit=9, lease_s=60)
    store.release([leased.job.id for leased in taken], taken[0].lease_token, store.now() + 3600)
    store.make_elements_due()
    assert [leased.job for leased in store.claim_deployable("one", limit=9, lease_s=60)] == elements
    assert store.get(single.id) == single


def test_store_renews_only_held_leases_in_one_call(store: Store) -> None:
    elements = add_array(store)
    taken = store.claim_deployable("one", limit=3, lease_s=60)
    token = taken[0].lease_token
    store.release([elements[1].id], token)
    assert store.renew_many([job.id for job in elements], token, 600) == {elements[0].id, elements[2].id}
    assert store.renew_many([job.id for job in elements], "", 600) == frozenset()
    assert store.renew_many([], token, 600) == frozenset()
