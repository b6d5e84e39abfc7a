"""Real outputs of Slurm's commands, by release, as the adapter asks for them; and what they must be read as."""

import pytest

pytest.register_assert_rewrite("tests.captured.answers", "tests.captured.expected")
