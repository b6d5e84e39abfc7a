"""Advice over planted jobs with files of metrics and usage, on both databases."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.spec import BatchOptions, Placement, Resources
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.metrics.advice import Advice, Choice, Form, MemoryAdvice
from ffdl_batch.domain.metrics.learner_reports import parse_report
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.metrics.records import MetricRecord, encode_record
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, Use, encode_sample
from ffdl_batch.services.queries import like_jobs
from ffdl_batch.services.submission.advice import _Sizes, advise
from ffdl_batch.store.incidents import add_incidents, incident_row
from tests.planted_jobs import PlantedAttempt, PlantedJob, plant
from tests.unit.services.conftest import MANIFEST, Site

GB, HOUR = 1000**3, 3600.0
ELASTIC = MANIFEST + "batch: {elastic: {max_learners: 4, batch: {min: 8, max: 64, per_gpu_max: 16, start: 16}}}\n"
BOUNDS = Elastic(1, 4, 8, 64, 16, 16)
PREEMPTED = PlantedAttempt("1", interruption="preemption", took_s=30.0)


def past(site: Site, number: int, processing_s: float, gpus: float = 1.0, **values: object) -> PlantedJob:
    """A job that loaded for 100 s, trained, stored for 50 s and completed."""
    began = site.clock.now() - 10 * HOUR + number
    trained = began + 100 + processing_s
    rows = (
        (began, JobState.PENDING, 0), (began, JobState.DEPLOYING, 1), (began, JobState.DOWNLOADING, 1),
        (began + 100, JobState.PROCESSING, 1), (trained, JobState.STORING, 1), (trained + 50, JobState.COMPLETED, 1),
    )  # fmt: skip
    job = PlantedJob(
        rows, (PlantedAttempt("1", trained + 50, "000"),), number, uid=site.caller.uid, framework="custom",
        resources=Resources(cpus=2.0, gpus=gpus),
    )  # fmt: skip
    return replace(job, **values)  # type: ignore[arg-type]


def reports(site: Site, job: PlantedJob, *lines: str, attempt: int = 1) -> None:
    """Write the metrics of learner 1 as its collector does."""
    directory = metrics(site, job, attempt)
    with (directory / "learner-1.jsonl").open("a") as file:
        for index, line in enumerate(lines, 1):
            values = parse_report(line)
            assert values is not None
            file.write(encode_record(MetricRecord(job.id, 1000 * index, index, "", "ffdl", {}, values)))


def samples(site: Site, job: PlantedJob, memory: int, gpu_use: float, cpu_share: float = 0.1) -> None:
    """Write usage of a node over 100 s, with 2 CPUs."""
    with (metrics(site, job, 1) / "usage-0.jsonl").open("w") as file:
        for second in range(0, 101, 10):
            use = Use(cpu_s=2 * cpu_share * second, memory_bytes=memory if second == 50 else 100)
            file.write(encode_sample(UsageSample(1e9 + second, "n1", None, {"1": use}, (GpuUse("0", 1, gpu_use),))))


def metrics(site: Site, job: PlantedJob, attempt: int) -> Path:
    directory = Path(site.platform.storage.root.job(job.id).attempt(attempt).metrics)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def advice(site: Site, manifest: str = MANIFEST) -> Advice:
    platform = site.platform
    return advise(platform.storage, platform.adapters, site.caller, site.submission("k", manifest))


def by_form(found: Advice) -> Mapping[Form, Choice]:
    return {choice.form: choice for choice in found.choices}


def about(number: float, part: float = 1e-9) -> Any:
    return pytest.approx(number, rel=part)


def two_sizes(site: Site) -> None:
    """One GPU at 100 samples a second, two at 180, both with 360,000 samples."""
    one, two = past(site, 1, 3600.0), past(site, 2, 2000.0, gpus=2.0)
    plant(site.platform.storage.store.engine, [one, two])
    reports(site, one, *["ffdl-throughput: samples=1000 seconds=10"] * 3, "ffdl-throughput: samples=1 seconds=9")
    reports(site, two, "ffdl-throughput: samples=1800 seconds=10")
    samples(site, one, 2 * GB, 0.9)
    samples(site, two, 3 * GB, 0.8)


def test_advice_compares_measured_and_other_sizes_and_recommends_fast_one_that_costs_little_more(site: Site) -> None:
    two_sizes(site)
    site.set_settings(rates=Rates("EUR", gpu_hour=2.0, cpu_hour=0.5))
    found = advice(site)
    assert found.jobs == ("training-000000002", "training-000000001")
    choices = by_form(found)
    assert [form.gpus for form in choices] == [1.0, 2.0, 4.0]
    for gpus, speed, run_s in ((1.0, 100.0, 3750.0), (2.0, 180.0, 2150.0)):
        choice = choices[Form(1, gpus)]
        assert (choice.samples_per_s, choice.extrapolates) == (about(speed, 0.05), False)
        assert choice.samples_per_s is not None and choice.time_s is not None
        assert choice.time_s == about(150 + 360_000 / choice.samples_per_s)
        assert choice.gpu_hours == about(gpus * choice.time_s / HOUR)
        assert choice.cpu_hours == about(5 * choice.time_s / HOUR)
        assert choice.cost == about((2.0 * gpus + 0.5 * 5) * choice.time_s / HOUR)
        assert choice.time_limit_s == 300 * math.ceil(run_s * 1.2 / 300)
    four = choices[Form(1, 4.0)]
    assert four.extrapolates and four.relative_std is not None and four.time_s is not None
    assert four.time_limit_s == 300 * math.ceil(four.time_s * (1 + 2 * four.relative_std) * 1.2 / 300)
    assert [form.gpus for form, choice in choices.items() if choice.recommended] == [2.0]
    assert found.memory == MemoryAdvice(36 * GB // 10, 3 * GB, 2)
    assert found.notes == ("the batch of each GPU is assumed to be the same at all sizes",)


def test_advice_counts_mig_device_as_part_of_gpu(site: Site) -> None:
    job = past(site, 1, 3600.0, resources=Resources(cpus=2.0, gpus=1.0, gpu_type="1g.10gb"))
    plant(site.platform.storage.store.engine, [job])
    site.set_settings(rates=Rates("EUR", gpu_hour=70.0, gpu_types={"1g.10gb": 2.0}))
    (choice,) = advice(site, f"{MANIFEST}gpu_type: 1g.10gb\n").choices
    assert choice.time_s is not None
    assert (choice.gpu_hours, choice.cost) == (about(choice.time_s / HOUR / 7), about(2.0 * choice.time_s / HOUR))


def test_advice_names_missing_history_and_sizes_to_measure(site: Site) -> None:
    found = advice(site)
    assert (found.jobs, found.choices, found.memory, found.checkpoint) == ((), (), None, None)
    assert found.notes == (
        "none of your earlier jobs is like it; to print commands that measure it: ffdl advise --profile MANIFEST",
    )
    assert found.profile == (Form(1, 1.0),)
    assert {form.learners for form in advice(site, ELASTIC).profile} == {1, 2, 4}


def test_advice_without_throughput_has_memory_and_time_limit(site: Site) -> None:
    jobs = [past(site, number, 850.0 + number * 1000) for number in range(3)]
    plant(site.platform.storage.store.engine, jobs)
    samples(site, jobs[0], GB, 0.9)
    found = advice(site)
    (choice,) = found.choices
    assert (choice.form, choice.time_s, choice.time_limit_s) == (Form(1, 1.0), 2000.0, 3600)
    assert choice.recommended and choice.samples_per_s is None
    assert found.memory == MemoryAdvice(12 * GB // 10, GB, 1)
    assert "report no throughput" in found.notes[0]


def test_advice_without_extra_keeps_measured_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sizes(site)
    for module in ("ffdl_batch.elastic.advice", "ffdl_batch.elastic.throughput_model"):
        monkeypatch.setitem(sys.modules, module, None)
    found = advice(site)
    times = {choice.form.gpus: (choice.time_s, choice.recommended) for choice in found.choices}
    assert times == {1.0: (3750.0, False), 2.0: (2150.0, True)}
    assert found.notes[0].endswith("pip install 'ffdl-batch[elastic]'") and found.profile == ()


def test_advice_for_elastic_job_recommends_only_batches_of_the_manifest(site: Site) -> None:
    """The first attempt has one learner with a batch of 16, the second two with 8 on each GPU."""
    job = past(site, 1, 1000.0, batch=BatchOptions(elasticity=BOUNDS))
    start = job.history[0][0]
    rows = [*job.history[:4], (start + 1100, JobState.DEPLOYING, 2), (start + 1100, JobState.PROCESSING, 2),
            (start + 2100, JobState.COMPLETED, 2)]  # fmt: skip
    attempts = (
        PlantedAttempt("1", start + 1100, interruption="timeout", learners=1, global_batch=16),
        PlantedAttempt("2", start + 2100, "000", learners=2, global_batch=16),
    )
    planted = replace(job, history=rows, attempts=attempts)
    plant(site.platform.storage.store.engine, [planted])
    reports(site, planted, "ffdl-throughput: samples=160 seconds=1")
    reports(site, planted, "ffdl-throughput: samples=300 seconds=1", attempt=2)
    found = advice(site, ELASTIC)
    choices = by_form(found)
    assert {(form.learners, form.batch) for form in choices} == {(1, 16), (2, 16), (2, 32), (4, 16), (4, 64)}
    work = 160.0 * 1000 + 300 * 1000
    for choice in choices.values():
        assert choice.samples_per_s is not None and choice.time_s == about(100 + work / choice.samples_per_s)
    assert [(form.learners, form.batch) for form, choice in choices.items() if choice.recommended] == [(2, 16)]
    assert "1 attempt reached the time limit" in found.notes


def test_advice_uses_reported_remaining_samples_if_no_job_completed(site: Site) -> None:
    job = past(site, 1, 1000.0)
    plant(site.platform.storage.store.engine, [replace(job, history=job.history[:4], attempts=(PlantedAttempt("1"),))])
    reports(site, job, "ffdl-throughput: samples=100 seconds=1 remaining=5000")
    reports(site, job, "ffdl-throughput: samples=100 seconds=1 remaining=4000")
    (one, _) = advice(site).choices
    assert one.samples_per_s is not None and one.time_s == about(5000 / one.samples_per_s)


def test_advice_predicts_no_time_without_amount_of_work(site: Site) -> None:
    job = past(site, 1, 1000.0)
    plant(site.platform.storage.store.engine, [replace(job, history=job.history[:4], attempts=(PlantedAttempt("1"),))])
    reports(site, job, "ffdl-throughput: samples=100 seconds=1")
    found = advice(site)
    assert {choice.time_s for choice in found.choices} == {None} and found.choices[0].recommended
    assert any(note.startswith("no time is predicted") for note in found.notes)


@pytest.mark.parametrize(
    ("gpu_use", "cpu_share", "shown"),
    [
        (0.9, 0.1, ""),
        (0.3, 0.1, "input-bound: its GPUs were busy 30% of the time"),
        (0.3, 1.0, "its CPUs are busy: request more CPUs"),
    ],
)
def test_advice_warns_of_slow_input_if_one_gpu_idles(site: Site, gpu_use: float, cpu_share: float, shown: str) -> None:
    """The job before the newest one does not count."""
    job, before = past(site, 2, 1000.0), past(site, 1, 1000.0)
    plant(site.platform.storage.store.engine, [job, before])
    samples(site, job, GB, gpu_use, cpu_share)
    samples(site, before, GB, 0.1)
    found = [note for note in advice(site).notes if note.startswith(f"{job.id}: input-bound")]
    assert len(found) == bool(shown) and shown in "".join(found)
    assert before.id not in "".join(advice(site).notes)


def test_advice_warns_of_exchange_that_takes_much_of_a_step(site: Site) -> None:
    one, two = past(site, 1, 1000.0), past(site, 2, 1000.0, gpus=2.0)
    plant(site.platform.storage.store.engine, [one, two])
    reports(site, one, "ffdl-throughput: samples=100 seconds=1")
    reports(site, two, "ffdl-throughput: samples=110 seconds=1")
    found = advice(site)
    assert any(note.startswith(f"{two.id}: sync-bound: on 2 GPUs") for note in found.notes)
    assert [choice.form.gpus for choice in found.choices if choice.recommended] == [1.0]


def test_advice_derives_checkpoint_interval_from_preemptions_in_partition(site: Site) -> None:
    rows = past(site, 1, 7050.0)  # two hours
    jobs = [replace(rows, number=number, attempts=(PREEMPTED,)) for number in range(1, 5)]
    elsewhere = replace(rows, number=5, attempts=(PREEMPTED,), batch=BatchOptions(partition="other"))
    plant(site.platform.storage.store.engine, [*jobs, elsewhere])
    found = advice(site).checkpoint
    assert found is not None
    ran_s = 4 * 7200.0
    assert (found.preemptions, found.checkpoints, found.checkpoint_s, found.ran_s) == (4, 4, 30.0, about(ran_s))
    assert found.interval_s == about(math.sqrt(2 * 30.0 * ran_s / 4))


def test_advice_says_why_preemptible_job_has_no_checkpoint_interval(site: Site) -> None:
    plant(site.platform.storage.store.engine, [past(site, 1, 7050.0)])
    found = advice(site, MANIFEST + "batch: {preemptible: true}\n")
    assert found.checkpoint is None
    assert "no checkpoint interval: your jobs ran in this partition for 2.0 hours without a preemption" in found.notes


def test_advice_ignores_jobs_of_other_name_framework_backend_type_or_user(site: Site) -> None:
    base = past(site, 1, 1000.0)
    others = [
        replace(base, number=2, name="other"), replace(base, number=3, framework="pytorch"),
        replace(base, number=4, backend="local"), replace(base, number=5, uid=base.uid + 1),
        replace(base, number=6, resources=Resources(gpus=1.0, gpu_type="a100")),
    ]  # fmt: skip
    plant(site.platform.storage.store.engine, [base, *others])
    assert advice(site).jobs == (base.id,)


def test_advice_after_memory_kill_exceeds_what_the_job_had(site: Site) -> None:
    job = past(site, 1, 1000.0, resources=Resources(gpus=1.0, memory_bytes=4 * GB))
    store = site.platform.storage.store
    plant(store.engine, [job])
    with store.engine.begin() as connection:
        incidents = [Incident(job.id, 1, kind, kind, 1.0) for kind in ("user.memory", "user.straggler")]
        add_incidents(connection, [incident_row(one, 1.0) for one in incidents])
    found = advice(site)
    assert found.memory == MemoryAdvice(6 * GB, None, 0)
    assert "1 job ran out of memory, with at most 4GB for each learner" in found.notes
    assert any(note.startswith(f"slow learners made the others wait in {job.id}") for note in found.notes)


def test_advice_reports_what_it_had_no_time_to_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sizes(site)
    monkeypatch.setattr("ffdl_batch.services.submission.advice.PATIENCE_S", -1.0)
    found = advice(site)
    assert "the measurements of 2 attempts could not be read within -1 s" in found.notes
    assert {choice.time_s for choice in found.choices} == {3750.0, 2150.0}


def test_advice_reads_only_newest_jobs(site: Site) -> None:
    plant(site.platform.storage.store.engine, [past(site, number, 100.0) for number in range(like_jobs.LAST + 5)])
    assert len(advice(site).jobs) == like_jobs.LAST
    assert statistics.median(int(job[-9:]) for job in advice(site).jobs) > like_jobs.LAST / 2


@pytest.mark.parametrize(
    ("placement", "per_node", "nodes"),
    [(Placement.NODE, 0, 4), (Placement.NODE, 8, 4), (Placement.SPREAD, 8, 4), (Placement.PACK, 8, 1),
     (Placement.PACK, 2, 4), (Placement.PACK, 0, 1)],
)  # fmt: skip
def test_nodes_of_a_size_follow_its_placement(site: Site, placement: Placement, per_node: int, nodes: int) -> None:
    spec = site.accept().spec
    spec = replace(spec, batch=replace(spec.batch, placement=placement))
    assert _Sizes(spec, per_node).key(Form(4, 2.0)) == (nodes, 8, 1)
