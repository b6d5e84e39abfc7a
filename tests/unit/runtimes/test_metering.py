"""What collects metrics on the nodes, by how the controller gets there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.spec import BatchOptions, EvaluationMetrics, Framework, JobSpec, MetricGroup, MetricValue
from ffdl_batch.domain.metrics.records import Collecting, ExtractionGroup, Measure
from ffdl_batch.runtimes.launch_plan import MetricPlan, plan_metrics
from ffdl_batch.runtimes.learner_start import controller_arguments

GROUP = MetricGroup(
    "%{INT:n} at %{FLOAT:x}", "$when", {"n": MetricValue("int", "$n"), "x": MetricValue("REAL", "$x")}
)  # fmt: skip
INSTALLED = controller_arguments("/opt/site-packages")


def spec(metrics: EvaluationMetrics) -> JobSpec:
    return JobSpec("a", Framework("custom", "1", "true"), metrics=metrics)


def test_plan_metrics_starts_installed_collectors_from_their_path() -> None:
    found = plan_metrics(spec(EvaluationMetrics("tensorboard_extractor")), "/opt/python", INSTALLED)
    assert found.collectors[:3] == ("/opt/python", "-I", "-c") and found.collectors[-1] == "/opt/site-packages"
    assert found.metrics is not None and found.metrics.kind == "tensorboard" and found.warnings == ()


def test_plan_metrics_collects_reports_without_groups() -> None:
    found = plan_metrics(spec(EvaluationMetrics("regex_extractor")), "/opt/python", INSTALLED)
    assert found.metrics is not None and (found.metrics.kind, found.metrics.groups) == ("regex_extractor", ())
    assert found.collectors and found.warnings == ()


def test_plan_metrics_needs_named_interpreter_for_archive_controller() -> None:
    metrics, archive = spec(EvaluationMetrics("file")), controller_arguments("/jobs/controller.pyz")
    found = plan_metrics(metrics, "/opt/python", archive)
    assert found.collectors == ("/opt/python", "-I", "-m", "ffdl_batch.collectors")
    staging = ("/opt/ffdl/python", "-I", "-m", "ffdl_batch.staging")
    found = plan_metrics(metrics, "/usr/bin/python3", archive, staging)
    assert found.collectors == ("/opt/ffdl/python", "-I", "-m", "ffdl_batch.collectors")
    without = plan_metrics(metrics, "python3", archive)
    assert (without.collectors, without.metrics) == ((), None) and "do not see this installation" in without.warnings[0]


@pytest.mark.parametrize(
    "metrics",
    [
        EvaluationMetrics(),
        EvaluationMetrics("logger"),
        EvaluationMetrics("some/image"),
        EvaluationMetrics("regex_extractor", groups={"g": MetricGroup("(", scalars={"n": MetricValue("INT", "1")})}),
    ],
)
def test_plan_metrics_returns_empty_plan_if_nothing_can_be_collected(metrics: EvaluationMetrics) -> None:
    assert plan_metrics(spec(metrics), "python3", ("x.pyz",)) == MetricPlan()


@pytest.mark.parametrize(
    ("kind", "collected"), [("", "regex_extractor"), ("none", "regex_extractor"), ("file", "emetrics_file")]
)
def test_plan_metrics_collects_reports_of_elastic_job_without_own_metrics(kind: str, collected: str) -> None:
    elastic = replace(spec(EvaluationMetrics(kind)), batch=BatchOptions(elasticity=Elastic(1, 2, 1, 2, 2, 1)))
    found = plan_metrics(elastic, "/opt/python", INSTALLED).metrics
    assert found == Collecting(collected) and not found.groups


def test_plan_metrics_ignores_unknown_meta_group_and_metric_type() -> None:
    found = plan_metrics(spec(EvaluationMetrics("regex_extractor", groups={"g": GROUP})), "/opt/python", INSTALLED)
    measures = {"n": Measure("INT", "$n"), "x": Measure("", "$x")}
    assert found.metrics is not None
    assert found.metrics.groups == (ExtractionGroup("g", GROUP.regex, "", "", measures),)
