"""The job with very many small files, whose store is quick: what must have come of it, and how long that took."""

from __future__ import annotations

from collections.abc import Mapping

from tests.proof.data import comparing
from tests.proof.data.values import EACH, MANY
from tests.proof.data.verdict import Many, Moved


def results(job_id: str, files: Mapping[str, bytes], log: bytes, stored: dict[str, bytes], code: bytes) -> Moved:
    """The quick store's bucket of results: FfDL's layout, and each byte. `code` is the learner's program."""
    archive = stored.pop(f"{job_id}/_submitted_code/model.zip", None)
    wanted = {f"{job_id}/{name}": data for name, data in comparing.copies(files, 1, EACH).items()}
    wanted[f"{job_id}/learner-1/training-log.txt"] = log
    seen = comparing.compare(f"results of {MANY}", wanted, stored)
    return seen + comparing.compare_model(MANY, comparing.model_of(code, files), archive)


def figures(files: int, timestamps: Mapping[str, float]) -> Many:
    """By the times at which the job reached its states, epoch seconds."""
    began, learned, stored, over = (
        timestamps.get(name, 0.0) for name in ("DOWNLOADING", "PROCESSING", "STORING", "COMPLETED")
    )
    return Many(files, learned - began, -(-files // EACH), over - stored)
