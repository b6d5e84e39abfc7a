"""Write manifests: from plain values, and the commented one of ``ffdl init``, which runs on every backend."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import yaml


class _Dumper(yaml.SafeDumper):
    """Keeps the order of keys, and indents the items of lists as the documentation does."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Write a text of several lines as a block."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def write_manifest(values: Mapping[str, object], remarks: Sequence[str] = ()) -> str:
    """The YAML text of `values`, which are plain mappings, lists, texts, numbers and flags, below `remarks`."""
    head = "".join(f"# {line}\n" if line else "#\n" for remark in remarks for line in remark.splitlines() or [""])
    return head + yaml.dump(
        _plain(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118, default_flow_style=False
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})

_TEMPLATE = """\
# A training job. Check it with `ffdl validate`, run it with `ffdl-submit MANIFEST MODEL_DIRECTORY`.
name: {name}
description: What this job is for

# Each learner gets this much.
learners: 1
cpus: 1
gpus: 0
memory: 1GB
# gpu_type: v100        # the site's name of a GPU type; left out, any type will do

framework:
  # `ffdl-submit` lists the frameworks and versions of this site when it does not know one.
  # With `custom`, version is the whole image: a SIF, docker://… or oras://…
  name: {framework}
  version: {version}
  # Shell text; it runs in the directory of your model ($MODEL_DIR). What it leaves in $RESULT_DIR is kept.
  command: >
    echo "learner $LEARNER_ID of $NUM_LEARNERS on $(uname -n)" &&
    echo "it works" > "$RESULT_DIR/answer.txt"

# Where data come from and results go to; without it, results stay in the job's directory.
# data_stores:
#   - id: mine
#     type: directory
#     training_data: {{container: input}}       # DATA_DIR is <path>/input
#     training_results: {{container: results}}
#     connection: {{path: /a/directory/of/mine}}

# How the job is scheduled and run.
batch:
  time: 10              # minutes; also 2h30m or 1-12:00:00
  # partition: gpu
  # network: none       # or job, host, {{level: egress, allow: ["HOST:PORT"]}}; default (auto): the tightest that works
  # env: {{LEARNING_RATE: 0.1}}
"""


def starter_manifest(name: str, framework: str = "custom", version: str = "python-numpy") -> str:
    """The text of a first manifest. Raises ValueError for a name that no manifest may have."""
    for what, text in (("name", name), ("framework", framework), ("version", version)):
        if not text.strip() or not text.isprintable():
            raise ValueError(f"{text[:60]!r} cannot be a {what}: write one line of plain text")
    return _TEMPLATE.format(name=_scalar(name), framework=_scalar(framework), version=_scalar(version))


def _scalar(text: str) -> str:
    """`text` as YAML reads it back: plain where that is safe, else in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
