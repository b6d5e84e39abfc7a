"""What of a script's text runs, and what it only says."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.conversion import Conversion, Fate, Source
from ffdl_slurm.convert.converter import create
from ffdl_slurm.convert.executed import executed
from ffdl_slurm.convert.shell import lines_of


def convert(*lines: str) -> Conversion:
    return create().convert(Source("\n".join(("#!/bin/bash", "#SBATCH -N2", *lines, "")), "job.sh"))


@pytest.mark.parametrize(
    "text",
    [
        'echo "srun a"',
        "echo srun a >&2; python x",
        'echo "srun a" | tee -a log',
        "if true; then printf 'srun a\\n'; fi",
        "A=1 echo srun && python x",
        "python x | cat  # srun a",
        "case x in a) echo srun;; esac",
        "cat <<EOF\nsrun a\nEOF",
        "cat > later.sh <<'EOF'\nsrun a $(srun b)\nEOF",
        ": <<'EOF'\nsrun a\nEOF",
        "bash <<EOF\n# srun a\necho srun\nEOF",
        "which srun || exit 1",
        'echo "$(date) \\"srun\\""',
    ],
)
def test_executed_ignores_text_of_echo_comments_and_here_documents(text: str) -> None:
    assert not any("srun" in one.replace("which srun", "") for one in executed(list(lines_of(text))))


@pytest.mark.parametrize(
    "text",
    [
        'echo "srun a" | bash',
        'echo "$(srun a)"',
        "echo `srun a`",
        "cat <<EOF\n$(srun a)\nEOF",
        "bash <<EOF\nsrun a\nEOF",
        "srun bash <<'EOF'\nx\nEOF",
        "cat > run.sh <<EOF\nsrun a\nEOF\nbash run.sh",
        "echo 'srun a' > run.sh\nsh ./run.sh",
        "{ echo 'srun a'\n} > run.sh\nsh run.sh",
        "CMD='srun a'\neval $CMD",
        'bash -c "srun a"',
        "echo a; srun b",
        "echo a\nsrun b",
        "echo $((1 << 2)); srun a",
    ],
)
def test_executed_finds_commands_in_substitutions_pipes_and_generated_scripts(text: str) -> None:
    assert any("srun" in one for one in executed(list(lines_of(text))))


def test_convert_ignores_srun_in_printed_text() -> None:
    found = convert("cat <<EOF", "usage: srun --container-image=a/b python x", "EOF", "echo srun --container-image=c")
    assert {one.fate for one in found.judged} == {Fate.MAPPED}
    batch, framework = found.manifest["batch"], found.manifest["framework"]
    assert isinstance(batch, dict) and isinstance(framework, dict)
    assert (batch["roles"]["node"]["command"], framework["version"]) == ("sleep infinity", "custom")
