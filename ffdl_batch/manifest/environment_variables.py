"""Check the variables of a manifest whose names mean something to the platform, and find literal container paths."""

from __future__ import annotations

import re

from ffdl_batch.domain.job.array import element_environment, is_array
from ffdl_batch.domain.job.elastic import VARIABLES
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.domain.job.spec import Element, JobSpec
from ffdl_batch.manifest.document.tree import Place
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.runtimes.learner_contract import PROTECTED

_OF_ELEMENTS = frozenset(element_environment(Element(array="", name="", index=0, count=1, first=0, last=0, step=1)))
_PLATFORMS = "the platform sets {name} itself in every learner, so this value would reach none"
_LOADER = "every program of the learner is loaded with it, its shell too: with a wrong value none of them starts"
_CONSEQUENCES = {
    "PATH": "the learner's shell and programs are looked for there alone: without their directories none starts",
    "HOME": "the learner's programs look for settings and caches there; it becomes /tmp where it cannot be written",
    "LD_LIBRARY_PATH": _LOADER,
    "LD_PRELOAD": _LOADER,
    "PYTHONHOME": "Python looks for its standard library there: with a wrong value it does not start",
}
_CURES = {"PATH": "end it with the system's own directories, as /opt/tool/bin:/usr/bin:/bin"}


def check_swept_name(name: str, place: Place, log: FindingLog) -> None:
    """Report a variable of a sweep that no learner can be given, or that the platform sets in its place; warn of one
    that learners may not start with."""
    refused = why_refused(name)
    if refused:
        what, _, cure = refused.partition("; ")
        log.error(place, what, cure)
    elif name in PROTECTED or name in _OF_ELEMENTS:
        log.error(place, _PLATFORMS.format(name=name), "sweep over a variable of another name")
    else:
        _warn_of_consequence(name, place, log)


def note_variables(job: JobSpec, log: FindingLog) -> None:
    """Report variables that the platform sets. Warn of variables that have no effect or that may stop learners from
    starting."""
    for block, name in (*(("env", name) for name in job.batch.env), *(("secrets", name) for name in job.batch.secrets)):
        place = ("batch", block, name)
        if block == "env" and name in job.batch.secrets:
            log.warning(place, "the secret of this variable counts, and this value reaches no learner", "leave one out")
        elif (
            name in PROTECTED
            or (name in _OF_ELEMENTS and is_array(job))
            or (name in VARIABLES and job.batch.elasticity is not None)
        ):
            log.error(place, _PLATFORMS.format(name=name), "give the variable another name, or leave it out")
        else:
            _warn_of_consequence(name, place, log)


def _warn_of_consequence(name: str, place: Place, log: FindingLog) -> None:
    if name in _CONSEQUENCES:
        log.warning(place, _CONSEQUENCES[name], _CURES.get(name, ""))


_LITERAL = re.compile(r"(?<![\w./$}-])(/job|/mnt/data|/mnt/results)(?=$|[^\w.-])")


def literal_paths(spec: JobSpec) -> tuple[str, ...]:
    """Which of ``/job``, ``/mnt/data``, ``/mnt/results`` the commands or the environment use literally, sorted.

    A backend without containers warns about them: there the directories have other names, which DATA_DIR,
    RESULT_DIR and JOB_STATE_DIR give everywhere.
    """
    commands = (spec.framework.command, *(role.command for role in spec.batch.roles.values()))
    texts = (*commands, *spec.batch.env.values())
    return tuple(sorted({match[1] for text in texts for match in _LITERAL.finditer(text)}))
