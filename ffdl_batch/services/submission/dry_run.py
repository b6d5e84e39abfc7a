"""Plans a submission and shows exactly what would be sent to the scheduler. Submits nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.array import ArrayId, chunk_name, expand, is_array
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job.submission import Caller, Submission
from ffdl_batch.domain.job.views import PlannedFileView, PlanView
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.ports.capabilities import SubmitsArrays, TrialSubmission
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion, exclusion_warnings, without
from ffdl_batch.services.data.staging_attempt import for_staging, has_to_stage, only_staging, stages_ahead
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import bad_request, try_again, unavailable
from ffdl_batch.services.submission.launch_planning import launch_request, plan_or_refuse
from ffdl_batch.services.submission.validation import Candidate, all_warnings, name_elements, read_submission

if TYPE_CHECKING:
    import yaml

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Texts that parsers of YAML 1.1 do not read as strings, in upper or lower case."""
_WIDTH = 10**9
"""Lines are not folded, because a folded command cannot be searched."""


def yaml_documents(objects: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Return the text of one YAML document per object, without ``---``."""
    import yaml

    dumper = _dumper()
    return tuple(
        yaml.dump(one, Dumper=dumper, sort_keys=False, width=_WIDTH, allow_unicode=True, default_flow_style=False)
        for one in objects
    )


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as blocks, quotes what a parser might not read as a string, and writes no
        anchors."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of any value
            """Write a value that occurs twice two times."""
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        style = "|" if "\n" in value else None if is_plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper


DRY_RUN_ID = JobId("training-dryrun000")
DRY_RUN_ARRAY = ArrayId("array-dryrun000")


def plan_submission(
    storage: JobStorage,
    adapters: Adapters,
    node_exclusion: NodeExclusion,
    caller: Caller,
    submission: Submission,
    *,
    trial: bool,
) -> PlanView:
    """Return the plan of a first attempt under a placeholder id. With `trial`, the scheduler checks the request too."""
    del caller  # every caller may plan a submission
    candidate = read_submission(storage, adapters, submission)
    if is_array(candidate.spec):
        return _plan_array(storage, adapters, node_exclusion, submission, candidate, trial=trial)
    (candidate,) = name_elements(storage, candidate, [candidate.spec])
    candidate = _keep_off(node_exclusion, candidate)
    plan = _with_staging(storage, adapters, candidate, DRY_RUN_ID, submission.environ)
    return _view(candidate, plan, _try(adapters, plan) if trial else "")


def _with_staging(
    storage: JobStorage, adapters: Adapters, candidate: Candidate, job_id: JobId, environ: Mapping[str, str]
) -> LaunchPlan:
    """Return the plan of the job. Objects of an attempt that stages the data before it come first."""
    plan = plan_or_refuse(storage, adapters, candidate, job_id, environ)
    if not plan.objects or not (has_to_stage(plan, ()) or stages_ahead(candidate.spec, ())):
        return plan
    request = launch_request(storage, adapters, for_staging(candidate.spec), candidate.backend, job_id, environ=environ)
    first = adapters.get(candidate.backend).plan(replace(request, only_stages=True))
    training = plan_or_refuse(storage, adapters, candidate, job_id, environ, attempt=2)
    return replace(training, objects=(*only_staging(first).objects, *training.objects), warnings=plan.warnings)


def _keep_off(node_exclusion: NodeExclusion, candidate: Candidate) -> Candidate:
    """Exclude unreliable nodes, as the deployer does, if the site has configured that."""
    nodes = node_exclusion.for_job(candidate.backend, candidate.spec)
    if not nodes:
        return candidate
    return replace(candidate, spec=without(candidate.spec, nodes), notes=(*candidate.notes, *exclusion_warnings(nodes)))


def _plan_array(
    storage: JobStorage,
    adapters: Adapters,
    node_exclusion: NodeExclusion,
    submission: Submission,
    candidate: Candidate,
    *,
    trial: bool,
) -> PlanView:
    """Return the plan of the first element, with the script of its native array if the backend has native arrays."""
    candidate = _keep_off(node_exclusion, candidate)
    elements = name_elements(storage, candidate, expand(candidate.spec, DRY_RUN_ARRAY))
    ids = [JobId(f"training-dry{number:06d}") for number in range(len(elements))]
    plan = _with_staging(storage, adapters, elements[0], ids[0], submission.environ)
    view = _view(elements[0], plan, _try(adapters, plan) if trial else "")
    native = _plan_native(storage.root, adapters, candidate.backend, plan, ids, [element.spec for element in elements])
    element = elements[0].spec.element
    assert element is not None  # expand has set it
    way = f"{len(native.tasks)} in one native array" if native is not None else "each by itself"
    note = f"an array of {counted(element.count, 'job')}, {way}; shown is element {element.index}"
    if native is None:
        return replace(view, warnings=(*view.warnings, note))
    files = [PlannedFileView(file.name, file.text, file.mode) for file in native.files]
    files += [file for file in view.files if file.name not in {one.name for one in files}]
    return replace(
        view, script=native.script, submit_argv=native.submit_argv, files=tuple(files), warnings=(*view.warnings, note)
    )


def _plan_native(
    root: Root, adapters: Adapters, backend: str, plan: LaunchPlan, ids: Sequence[JobId], specs: Sequence[JobSpec]
) -> ArrayPlan | None:
    """Return the plan of the first native array of these elements; None if they are submitted one by one."""
    adapter, size = adapters.get(backend), adapters.facts(backend).max_array_size
    if not isinstance(adapter, SubmitsArrays) or not plan.array_script or min(size, len(ids)) < 2:
        return None
    members = [
        replace(
            plan,
            token=attempt_token(job_id, 1),
            attempt_dir=root.job(job_id).attempt(1),
            array_index=spec.element.index,
        )
        for job_id, spec in zip(ids[:size], specs, strict=False)
        if spec.element is not None
    ]
    limit = specs[0].element.limit if specs[0].element is not None else None
    chunk = Chunk(chunk_name(DRY_RUN_ARRAY, 1), root.array(DRY_RUN_ARRAY).chunk(1), size, limit)
    return adapter.plan_array(chunk, members)


def _view(candidate: Candidate, plan: LaunchPlan, sentence: str) -> PlanView:
    return PlanView(
        backend=plan.backend,
        script=plan.script,
        submit_argv=plan.submit_argv,
        learner_argv=plan.launch.learner.argv,
        environment={**plan.environment, **_secrets_of(candidate, plan)},
        files=tuple(PlannedFileView(f.name, f.text, f.mode) for f in plan.files),
        network_requested=candidate.spec.batch.network,
        network=plan.network.level,
        warnings=(*all_warnings(candidate, plan), *candidate.notes),
        trial=sentence,
        objects=yaml_documents(plan.objects) if plan.objects else (),
    )


def _secrets_of(candidate: Candidate, plan: LaunchPlan) -> dict[str, str]:
    """Return the variables that will hold secrets, without their values."""
    counted = candidate.spec.batch.secrets.items()
    return {name: value for name, value in counted if name not in plan.launch.learner.protected}


def _try(adapters: Adapters, plan: LaunchPlan) -> str:
    adapter = adapters.get(plan.backend)
    if not isinstance(adapter, TrialSubmission):
        return f"the backend {plan.backend} has no trial submission; the request itself is right"
    try:
        with adapters.asking(plan.backend):
            return adapter.test_only(plan)
    except InvalidRequest as error:
        raise bad_request("C104", str(error), error.findings) from error
    except SchedulerMissing as error:
        raise unavailable(str(error)) from error
    except SchedulerUnreachable as error:
        raise try_again("S200", str(error)) from error
