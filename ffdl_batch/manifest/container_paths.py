"""Literal container paths in a job: they exist only where the learner runs in a container."""

from __future__ import annotations

import re

from ffdl_batch.domain.job.spec import JobSpec

_LITERAL = re.compile(r"(?<![\w./$}-])(/job|/mnt/data|/mnt/results)(?=$|[^\w.-])")


def literal_paths(spec: JobSpec) -> tuple[str, ...]:
    """Which of ``/job``, ``/mnt/data``, ``/mnt/results`` the commands or the environment use literally, sorted.

    A backend without containers warns about them: there the directories have other names, which DATA_DIR,
    RESULT_DIR and JOB_STATE_DIR give everywhere.
    """
    commands = (spec.framework.command, *(role.command for role in spec.batch.roles.values()))
    texts = (*commands, *spec.batch.env.values())
    return tuple(sorted({match[1] for text in texts for match in _LITERAL.finditer(text)}))
