"""Write texts with values that are known only in the job as shell words. Pure.

A plan has the paths and numbers of its job. Here it is made with stand-ins, which become shell variables. Everything
else is quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from ffdl_batch.domain.launch.placeholders import fill

JOB_ID = "training-FFDLID0ID"
"""Stands for the job's id. It is not a valid id, so no manifest has it."""
JOB = "/FFDL-JOB-DIRECTORY"
MODEL = f"{JOB}/attempt-1/model"
PORT = 64_999
"""Stands for the first port of the job, which is chosen when it runs."""
_STANDS_FOR = {
    MODEL: "$MODEL",
    f"{JOB}/attempt-1": "$JOB",
    JOB: "$JOB",
    JOB_ID: "$TRAINING_ID",
    str(PORT): "$MASTER_PORT",
}
PLACES = {
    "learner_id": "$LEARNER_ID", "rank": "$RANK", "node_rank": "$RANK", "machine_rank": "$RANK",
    "local_rank": "$LOCAL_RANK", "local_world_size": "1", "machines": "$LEARNERS", "local_index": "$LOCAL_RANK",
    "gpus": "$CUDA_VISIBLE_DEVICES", "gpu_count": "$GPUS", "master_addr": "$MASTER_ADDR", "hostname": "$HOSTNAME",
    "attempt": "1", "resume": "$RESUME", "restart": "$RESTART", "role": "$ROLE", "role_index": "$ROLE_INDEX",
    "tf_config": "$TF_CONFIG", "command": "$COMMAND", "name": "learner-$TRAINING_ID-$RANK",
}  # fmt: skip
"""Placeholders of a launch file, and the variables of the script with the same values."""
_MARK = "\x01"
_FOUND = re.compile(f"{_MARK}(\\w+){_MARK}")


def word(text: str, *, filled: bool = True) -> str:
    """Return the text as one shell word. `filled`: it has placeholders of a launch file, and doubled braces."""
    if filled:
        text = fill(text, {name: _marked(value) for name, value in PLACES.items()})
    stand_ins = _STANDS_FOR if filled else {name: text for name, text in _STANDS_FOR.items() if name != str(PORT)}
    for stand_in, variable in sorted(stand_ins.items(), key=lambda one: -len(one[0])):
        text = text.replace(stand_in, _marked(variable))
    parts = []
    end = 0
    for match in _FOUND.finditer(text):
        parts.append(_quoted(text[end : match.start()]))
        parts.append(f'"${match[1]}"')
        end = match.end()
    parts.append(_quoted(text[end:]))
    return "".join(parts) or "''"


def exports(variables: Mapping[str, str], *, filled: bool = True) -> list[str]:
    """Return an export line for each variable."""
    return [f"export {name}={word(value, filled=filled)}" for name, value in variables.items()]


def _marked(text: str) -> str:
    return re.sub(r"\$(\w+)", f"{_MARK}\\1{_MARK}", text)


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""
