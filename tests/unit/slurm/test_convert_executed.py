"""What of a script's text runs, what it only prints, and the variables that it expects from the submitting shell."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.conversion import Fate
from ffdl_slurm.convert.shell_tree import parse
from tests.unit.slurm.test_convert_bodies import convert, part


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ('echo "srun a"', False),
        ("echo srun a >&2; python x", False),
        ('echo "srun a" | tee -a log', False),
        ("if true; then printf 'srun a\\n'; fi", False),
        ("A=1 echo srun && python x", False),
        ("python x | cat  # srun a", False),
        ("case x in a) echo srun;; esac", False),
        ("cat <<EOF\nsrun a\nEOF", False),
        ("cat > later.sh <<'EOF'\nsrun a $(srun b)\nEOF", False),
        (": <<'EOF'\nsrun a\nEOF", False),
        ("bash <<EOF\n# srun a\necho srun\nEOF", False),
        ("which srun || exit 1", False),
        ('echo "$(date) \\"srun\\""', False),
        ('echo "srun a" | bash', True),
        ('echo "$(srun a)"', True),
        ("echo `srun a`", True),
        ("cat <<EOF\n$(srun a)\nEOF", True),
        ("bash <<EOF\nsrun a\nEOF", True),
        ("srun bash <<'EOF'\nx\nEOF", True),
        ("cat > run.sh <<EOF\nsrun a\nEOF\nbash run.sh", True),
        ("echo 'srun a' > run.sh\nsh ./run.sh", True),
        ("{ echo 'srun a'\n} > run.sh\nsh run.sh", True),
        ("CMD='srun a'\neval $CMD", True),
        ('bash -c "srun a"', True),
        ("echo a; srun b", True),
        ("echo a\nsrun b", True),
        ("echo $((1 << 2)); srun a", True),
    ],
)
def test_executed_finds_only_commands_that_run_and_not_printed_text(text: str, runs: bool) -> None:
    assert any("srun" in one.replace("which srun", "") for one in parse(text).executed()) is runs


def test_convert_ignores_srun_in_printed_text() -> None:
    printed = ("cat <<EOF", "usage: srun --container-image=a/b python x", "EOF", "echo srun --container-image=c")
    found = convert("#SBATCH -N2", *printed, image="custom")
    assert {one.fate for one in found.judged if one.line} == {Fate.MAPPED}
    roles = part(found, "batch")["roles"]
    assert isinstance(roles, dict) and roles["node"]["command"] == "sleep infinity"
    assert part(found, "framework")["version"] == "custom"


def told(*lines: str) -> dict[int, str]:
    """By line, the variables that are reported as expected from the submitting shell."""
    said = [one for one in convert(*lines).judged if "not set by the script" in one.reason]
    assert all(one.fate is Fate.APPROXIMATED for one in said)
    return {one.line: one.reason.rpartition("; ")[2].partition(" is ")[0].partition(" are ")[0] for one in said}


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("python x --key $WANDB_API_KEY", ["WANDB_API_KEY"]),
        ('python x "${HF_TOKEN}" $HF_TOKEN $WORK/data', ["HF_TOKEN and WORK"]),
        (': "${DATA:?name the data}"', ["DATA"]),
        ("python x ${NAME%.py} | tee log", ["NAME"]),
        ('srun bash -c "python x $SEED \\$LOCAL" | cat', ["SEED"]),
        ("cat <<EOF > conf.yaml\nkey: $KEY\nEOF\npython x conf.yaml", ["KEY"]),
        ("cat <<EOF\nnote: $NOTE\nEOF\npython x $OTHER", ["OTHER"]),
        ("bash <<EOF\npython $SEED\nEOF", ["SEED"]),
        ("python x $SLURM_JOB_ID $HOME $RANDOM $DATA_DIR $MASTER_PORT", []),
        ("A=1; python x $A ${B:-2} ${C+x}", []),
        ("for i in 1 2; do python $i; done", []),
        ("while IFS=, read -r a b; do python $a $b; done < list", []),
        ("f() { local p q=1; python $p $q; }", []),
        ("x=$(awk '{print $FIRST}' f) && python $x", []),
        ('x="$(awk \'{print $FIRST}\' f)"; python "$x"', []),
        ("srun bash -c 'python $INNER' | cat", []),
        ("python x  # of $OLD", []),
        ("names=(a b); python ${names[0]} | cat", []),
        ("mapfile -t hosts < f; python $hosts", []),
        ("#SBATCH --export=ALL,GIVEN\npython x $GIVEN", []),
    ],
)
def test_convert_reports_only_variables_of_submitting_shell_at_first_use(script: str, names: list[str]) -> None:
    assert list(told(script).values()) == names
    assert told("A=$WORK/a", "B=$WORK/b", "python x $A $B") == {2: "WORK"}
