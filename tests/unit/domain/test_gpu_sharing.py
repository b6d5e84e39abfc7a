"""The comparison of two jobs on shares of a GPU, and the fraction of a GPU that a MIG device is."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.metrics.gpu_sharing import (
    Comparison,
    Held,
    Measured,
    Subject,
    common_start,
    compare,
    is_measured,
    make_run,
    make_subject,
    measure,
)
from ffdl_batch.domain.metrics.rates import Rates

FREE, PRICED = Rates(), Rates("EUR", gpu_hour=3.6)
REPORTS = [(10.0, 1.0), (20.0, 100.0), (25.0, 40.0), (45.0, 70.0)]


@pytest.mark.parametrize(
    ("gpu_type", "part"),
    [
        ("", 1.0), ("a100", 1.0), ("1g.10gb", 1 / 7), ("a100_3g.40gb", 3 / 7), ("MIG-2G.20GB", 2 / 7), ("7g.80gb", 1.0),
        ("1g.6gb", 1 / 4), ("4g.24gb", 1.0), ("rtx_2g.48gb", 0.5), ("Shared", 0.1), ("11g.10gb", 1.0),
    ],
)  # fmt: skip
def test_part_of_gpu_follows_from_mig_profile_or_settings(gpu_type: str, part: float) -> None:
    assert Rates(gpu_parts={"shared": 0.1}).part_of_gpu(gpu_type) == part


def test_listed_price_of_mig_device_is_that_of_the_device() -> None:
    rates = Rates(gpu_hour=7.0, gpu_types={"1g.10gb": 0.5})
    assert rates.cost(3600 / 7, 0.0, "1g.10gb") == pytest.approx(0.5)
    assert rates.cost(3600 * 2 / 7, 0.0, "2g.20gb") == pytest.approx(2.0)


def test_measure_weighs_reports_by_their_time_and_leaves_out_the_first() -> None:
    assert measure(REPORTS, 10.0, 15.0) == Measured((10 * 100 + 5 * 40) / 15, 15.0, 2, 30.0)
    assert measure(REPORTS, 20.0, 15.0) == Measured((5 * 40 + 20 * 70) / 25, 25.0, 2, 15.0)
    assert measure(REPORTS, 25.0, 5.0) == Measured(70.0, 20.0, 1, None)
    assert measure(REPORTS, 40.0, 15.0) is None
    assert measure([(1.0, 5.0), (1.0, 6.0)], 0.0, 9.0) is None


def test_measurement_begins_when_both_have_reported_and_ends_when_both_cover_it() -> None:
    other = [(18.0, 5.0), (30.0, 5.0)]
    assert common_start([REPORTS, []]) is None
    assert common_start([REPORTS, other]) == 18.0
    assert is_measured([REPORTS, other], 18.0, 12.0)
    assert not is_measured([REPORTS, other], 18.0, 13.0)
    assert not is_measured([REPORTS, [(18.0, 5.0)]], 18.0, 0.0)


def subject(
    name: str, together: float, held: Held, rates: Rates, whole: float = 1.0, error: float | None = 0.0
) -> Subject:
    """A job with 100 samples per second alone."""
    alone = Held(whole, 4.0, "n1", ("n1:/dev/nvidia0",)) if whole else Held(0.0, 4.0, "n1")
    runs = [
        make_run(name, what, Measured(speed, 60.0, 6, error), rates, "")
        for what, speed in ((alone, 100.0), (held, together))
    ]
    return make_subject(name, runs[0], runs[1], 36000.0)


def on(device: str = "n1:/dev/nvidia0", gpus: float = 0.5) -> Held:
    return Held(gpus, 4.0, device.partition(":")[0], (device,) if ":" in device else ())


def pair(
    one: float, other: float, held: tuple[Held, Held], rates: Rates = FREE, *, isolated: bool = False
) -> Comparison:
    subjects = subject("a.yml", one, held[0], rates), subject("b.yml", other, held[1], rates)
    return compare(subjects, rates, isolated=isolated)


def test_sharing_pays_if_gpu_does_more_work_and_says_what_it_costs() -> None:
    found = pair(80.0, 45.0, (on(), on()), PRICED)
    assert (found.same_device, found.pays) == (True, True)
    assert found.gain == pytest.approx(1.25)
    assert found.sentences == (
        "Sharing pays: with both jobs at once, a GPU does 1.25 times as much work as with one job after the other.",
        "a.yml costs 38% less per sample than alone, and takes 1.25 times as long.",
        "b.yml costs 11% more per sample than alone, and takes 2.22 times as long.",
    )
    assert [run.cost for run in (found.subjects[0].alone, found.subjects[0].together)] == pytest.approx([0.01, 0.00625])


@pytest.mark.parametrize(("other", "pays"), [(54.0, False), (55.0, True)])
def test_sharing_does_not_pay_below_margin_and_says_how_slow_jobs_are(other: float, pays: bool) -> None:
    found = pair(50.0, other, (on(), on()))
    assert found.pays is pays
    if not pays:
        assert found.sentences[0].endswith("a.yml keeps 50% of its speed, and b.yml keeps 54%.")
        assert found.sentences[1].startswith("a.yml needs 0% less GPU time per sample")


@pytest.mark.parametrize(
    ("error", "spread", "pays", "words"),
    [
        (2.0, 0.066, True, "Sharing pays: with both jobs at once, a GPU does 1.20 ± 0.07 times as much work"),
        (
            8.0,
            0.264,
            None,
            "It is not clear whether sharing pays: with both jobs at once, a GPU does 1.20 ± 0.26 times",
        ),
        (None, None, True, "Sharing pays: with both jobs at once, a GPU does 1.20 times as much work"),
    ],
)
def test_result_is_not_clear_if_the_gain_lies_within_the_spread_of_the_reports(
    error: float | None, spread: float | None, pays: bool | None, words: str
) -> None:
    jobs = subject("a.yml", 60.0, on(), FREE, error=error), subject("b.yml", 60.0, on(), FREE, error=error)
    found = compare(jobs, FREE, isolated=False)
    assert found.gain == pytest.approx(1.2)
    assert found.pays is pays
    assert found.spread == (None if spread is None else pytest.approx(spread, abs=0.001))
    assert found.sentences[0].startswith(words)
    assert any("only one report" in said for said in found.sentences) is (error is None)


def test_jobs_on_different_gpus_or_nodes_give_no_result() -> None:
    for other in ("n1:/dev/nvidia1", "n2:/dev/nvidia0", "n2"):
        found = pair(100.0, 100.0, (on(), on(other)))
        assert (found.same_device, found.gain, found.pays) == (False, None, None)
        (said,) = found.sentences
        assert f"a.yml had n1:/dev/nvidia0, and b.yml had {other}" in said


def test_unknown_gpus_of_one_node_give_a_result_with_a_doubt() -> None:
    found = pair(60.0, 60.0, (on("n1"), on("n1")))
    assert (found.same_device, found.pays) == (None, True)
    assert "The GPU of each job is unknown. Both ran on n1" in found.sentences[1]


def test_mig_devices_count_by_their_part_wherever_they_are() -> None:
    held = on("n1:/dev/nvidia0", 1 / 7), on("n2:/dev/nvidia3", 1 / 7)
    found = pair(20.0, 15.0, held, isolated=True)
    assert found.pays is True
    assert found.gain == pytest.approx(0.35 * 7 / 2)


def test_jobs_without_gpus_share_cpus_of_one_node() -> None:
    half = Held(0.0, 2.0, "n1")
    subjects = subject("a.yml", 60.0, half, FREE, whole=0.0), subject("b.yml", 60.0, half, FREE, whole=0.0)
    found = compare(subjects, FREE, isolated=False)
    assert (found.resource, found.same_device, found.pays) == ("CPU", True, True)
    assert "the same CPUs do 1.20 times" in found.sentences[0]
    assert found.subjects[0].together.device_s == pytest.approx(2 * 1000 / 60)
