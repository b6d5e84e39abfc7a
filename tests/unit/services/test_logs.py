"""Which lines of which learner."""

from __future__ import annotations

from pathlib import Path

from ffdl_batch.services.logs import LogQuery, read_logs
from tests.unit.services.conftest import MANIFEST, Site


def test_a_tail_is_so_many_lines_of_each_learner_after_since(site: Site) -> None:
    job = site.accept(manifest=MANIFEST + "learners: 2\n")
    attempt = site.attempt(job)
    for learner, at in ((1, 100), (2, 200)):
        log = Path(attempt.training_log(learner))
        log.parent.mkdir(parents=True)
        Path(attempt.events).mkdir(exist_ok=True)
        lines = [f"{n} of {learner}\n" for n in range(1, 5)]
        log.write_text("".join(lines))
        marks = "".join(f"{at + n} {len(''.join(lines[:n]))}\n" for n in range(1, 5))
        Path(attempt.marks(learner)).write_text(marks)

    def shown(query: LogQuery) -> list[str]:
        return [line.line for line in read_logs(site.platform, site.caller, job.id, query) if line is not None]

    assert shown(LogQuery(tail=1)) == ["4 of 1", "4 of 2"]
    assert shown(LogQuery(tail=2, learner=2)) == ["3 of 2", "4 of 2"]
    assert shown(LogQuery(tail=1, since=150)) == ["4 of 2"]
    assert shown(LogQuery(tail=0)) == []
