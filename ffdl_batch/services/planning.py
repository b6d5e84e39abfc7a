"""What would be sent, exactly, and nothing sent."""

from __future__ import annotations

from ffdl_batch.domain.job import JobId
from ffdl_batch.domain.views import PlannedFileView, PlanView, Submission
from ffdl_batch.ports.scheduler import InvalidRequest, LaunchPlan, SchedulerUnreachable, TrialSubmission
from ffdl_batch.services.intake import plan_or_refuse, read_submission
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.problems import bad_request, try_again

DRY_RUN_ID = JobId("training-dryrun000")


def plan_submission(platform: Platform, caller: Caller, submission: Submission, *, trial: bool) -> PlanView:
    """The plan of a first attempt under a stand-in id; with `trial`, what the scheduler says to it as well."""
    del caller  # every caller may ask what would be sent
    candidate = read_submission(platform, submission)
    plan = plan_or_refuse(platform, candidate, DRY_RUN_ID, submission.environ)
    sentence = _try(platform, plan) if trial else ""
    return PlanView(
        backend=plan.backend,
        script=plan.script,
        submit_argv=plan.submit_argv,
        learner_argv=plan.launch.learner.argv,
        environment=plan.environment,
        files=tuple(PlannedFileView(f.name, f.text, f.mode) for f in plan.files),
        network_requested=candidate.spec.batch.network,
        network=plan.network.level,
        warnings=(*candidate.warnings, *plan.warnings, *candidate.notes),
        trial=sentence,
    )


def _try(platform: Platform, plan: LaunchPlan) -> str:
    adapter = platform.adapters.get(plan.backend)
    if not isinstance(adapter, TrialSubmission):
        return f"the backend {plan.backend} has no trial submission; the request itself is right"
    try:
        return adapter.test_only(plan)
    except InvalidRequest as error:
        raise bad_request("C104", str(error), error.findings) from error
    except SchedulerUnreachable as error:
        raise try_again("S200", str(error)) from error
