"""The steps at which the fuzzed daemons have to die exist in the product."""

from __future__ import annotations

import pytest

from tests.crash.fuzz.plans import PREFER
from tests.crash.fuzz.steps import COMMITS
from tests.preloaded import ROOT


@pytest.mark.parametrize("step", [step for step in COMMITS if " by " in step])
def test_step_of_shared_transaction_names_module_that_commits_it(step: str) -> None:
    function, _, module = step.partition(" by ")
    (path,) = (ROOT / "ffdl_batch" / "services").glob(f"*/{module}.py")
    one = function.removesuffix("_many")  # the repository commits the change of one job by the same transaction
    assert any(f".{name}(" in path.read_text() for name in (function, one))


def test_stimuli_of_shared_transactions_belong_to_existing_steps() -> None:
    assert {key.removeprefix("commit ") for key in PREFER if " by " in key} <= set(COMMITS)
