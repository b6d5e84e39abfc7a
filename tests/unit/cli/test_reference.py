"""docs/reference/cli.md names every verb, option and refused option."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ffdl_batch.cli.environment import TAKEN
from ffdl_batch.cli.main import ALIASES, VERBS
from ffdl_batch.cli.sbatch_refused import IN_THE_MANIFEST, REFUSED
from ffdl_batch.cli.submit import submit

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*VERBS, *ALIASES, *TAKEN}))
def test_cli_reference_describes_every_verb_and_variable(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_cli_reference_describes_every_submit_option() -> None:
    names = {name for p in submit.params if isinstance(p, click.Option) for name in p.opts} - {"--dryrun"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_cli_reference_quotes_each_refusal_of_submit(name: str) -> None:
    said = "*manifest*" if REFUSED[name] is IN_THE_MANIFEST else REFUSED[name]
    assert f"`--{name}` | {said} |" in PAGE
