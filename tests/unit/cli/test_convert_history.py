"""``ffdl convert --history`` against a sacct and a sinfo that print what real ones print."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from ffdl_batch.cli.options.output import FORMATS
from tests.unit.cli.programs import FFDL, run

PARTED = "\x1f"
HEAD = [
    "JobID", "User", "Account", "Partition", "State", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES",
    "Start", "SubmitLine", "JobName",
]  # fmt: skip
ROWS = [
    ["11", "ann", "vision", "gpu", "COMPLETED", "7200", "120", "1", "8", "cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64000M",
     "2026-11-01T10:00:00", "sbatch a.sh", "=train"],
    ["12_3", "ann", "vision", "gpu", "FAILED", "360000", "UNLIMITED", "1", "8",
     "cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=1G", "2026-11-02T10:00:00", "sbatch b.sh", "sweep"],
    ["13", "ann", "vision", "gpu", "COMPLETED", "3600", "120", "8", "64", "cpu=64,gres/gpu:h100=64,gres/gpu=64,mem=1T",
     "2026-11-03T10:00:00", "sbatch c.sh", "big"],
    ["14", "ann", "vision", "cpu", "COMPLETED", "60", "30", "1", "1", "cpu=1,mem=1G", "2026-11-03T10:00:00",
     "srun --pty bash", "bash"],
    ["15", "ann", "vision", "gpu", "CANCELLED by 1000", "0", "120", "1", "0", "", "Unknown", "sbatch d.sh", "never"],
]  # fmt: skip
SINFO = """\
PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST
gpu*|1-00:00:00|64|512000|gpu:a100:8(S:0-1)|(null)|g[1-4]
cpu|infinite|128|256000|(null)|(null)|c[1-16]
"""
RATES = '[rates]\ncurrency = "EUR"\ngpu_hour = 2.0\ncpu_hour = 0.5\ngpu_types = { a100 = 3.0 }\n'


def invoke(*arguments: str, **env: str) -> tuple[int, str, str]:
    """The command as a process: exit code, output, complaints."""
    done = run(FFDL, "convert", *arguments, env={"PATH": "/usr/bin:/bin", **env})
    return done.returncode, done.stdout, done.stderr


class Site:
    """A Slurm that remembers, in a directory; `env` is for the command."""

    def __init__(self, base: Path) -> None:
        self.base, self.bin = base, base / "bin"
        self.bin.mkdir()
        self.answer = "\n".join(PARTED.join(row) for row in [HEAD, *ROWS]) + "\n"
        (base / "config.toml").write_text(RATES)
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(base), "FFDL_CONFIG": str(base / "config.toml"),
            "TZ": "UTC",
        }  # fmt: skip
        self.write()

    def write(self, sacct_code: int = 0) -> None:
        (self.base / "sacct.txt").write_text(self.answer)
        (self.base / "sinfo.txt").write_text(SINFO)
        self._command("sinfo", f"cat {self.base}/sinfo.txt")
        self._command(
            "sacct",
            f'echo "$@" >>{self.base}/calls; case $* in *helpformat*) echo "JobID SubmitLine"; exit 0;; esac\n'
            f"cat {self.base}/sacct.txt; [ {sacct_code} = 0 ] || echo 'slurmdbd: no' >&2; exit {sacct_code}",
        )

    def _command(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_history_report_prints_placement_and_cost(site: Site) -> None:
    code, out, err = invoke("--history", "--since", "2026-11-01", **site.env)
    assert (code, err) == (0, "")
    assert "4 jobs, 168.0 GPU-hours" in out
    assert "1 would run as they are, 1 with a loss, 2 not." in out
    # 2 h of 2 A100 and 8 CPUs, 100 h of 1 A100 and 8 CPUs
    assert f"Those that would run come to {2 * (6 + 4) + 100 * (3 + 4):.2f} EUR" in out
    assert "gpu: 5 attempts of 1-00:00:00: the training has to write checkpoints" in out
    assert "it has no GPUs of type h100 (it has a100)" in out
    assert "it was interactive" in out


def test_history_passes_filters_to_sacct(site: Site) -> None:
    assert invoke("--history", "--account", "vision", "--since", "2026-11-01", **site.env)[0] == 0
    asked = (site.base / "calls").read_text().splitlines()[-1]
    assert "--allusers --accounts=vision" in asked and "--starttime=2026-11-01" in asked and "SubmitLine" in asked
    assert invoke("--history", "--user", "bob", **site.env)[0] == 0
    assert "--user=bob" in (site.base / "calls").read_text().splitlines()[-1]


def test_history_writes_csv_and_json_row_per_job(site: Site) -> None:
    code, out, _ = invoke("--history", "--since", "2026-11-01", "--format", "csv", **site.env)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and [row["job"] for row in rows] == ["11", "12_3", "13", "14"]
    first = {"name": "'=train", "verdict": "runs", "place": "gpu", "cost": "20.0"}
    assert rows[0] | first == rows[0]
    code, out, _ = invoke("--history", "--since", "2026-11-01", "--format", "json", **site.env)
    document = json.loads(out)
    assert document["counts"] == {"runs": 1, "with loss": 1, "does not run": 2}
    assert document["jobs"][0]["memory_mib"] == 64000 and document["jobs"][2]["memory_mib"] == 1024**2


@pytest.mark.parametrize(("form", "begins"), [("markdown", "# Moving past jobs"), ("html", "<!doctype html>")])
def test_history_writes_markdown_and_html_report(site: Site, form: str, begins: str) -> None:
    out = site.base / "report"
    code, said, _ = invoke("--history", "--since", "2026-11-01", "--format", form, "-o", str(out), **site.env)
    assert (code, said) == (0, "") and out.read_text().startswith(begins)


def test_history_considers_configured_kubernetes_cluster(site: Site) -> None:
    (site.base / "config.toml").write_text(RATES + '[backend.kubernetes]\ngpu_types = { h100 = "NVIDIA-H100" }\n')
    code, out, _ = invoke("--history", "--since", "2026-11-01", "--format", "json", **site.env)
    jobs = {job["job"]: job for job in json.loads(out)["jobs"]}
    assert code == 0
    assert (jobs["13"]["place"], jobs["13"]["verdict"]) == ("kubernetes", "with loss")
    assert jobs["11"]["place"] == "gpu"
    options = ("--backend", "kubernetes", "--since", "2026-11-01", "--format", "json")
    code, out, _ = invoke("--history", *options, **site.env)
    assert {place["backend"] for place in json.loads(out)["places"]} == {"kubernetes"}


def test_history_exits_75_when_sacct_fails_or_output_is_unparsable(site: Site) -> None:
    site.write(sacct_code=1)
    code, out, err = invoke("--history", **site.env)
    assert (code, out) == (75, "") and "sacct exited with status 1" in err
    site.answer = "Slurm accounting storage is disabled\n"
    site.write()
    code, _, err = invoke("--history", **site.env)
    assert code == 75 and "sacct printed no table but 'Slurm accounting storage is disabled" in err


@pytest.mark.parametrize("program", ["sacct", "sinfo"])
def test_history_exits_69_without_slurm_commands_or_for_backend_without_history(site: Site, program: str) -> None:
    (site.bin / program).unlink()
    code, out, err = invoke("--history", **site.env)
    assert (code, out) == (69, "") and f"{program} cannot be run" in err
    code, out, err = invoke("--history", "--backend", "local", **site.env)
    assert (code, out) == (69, "") and "the backend 'local' keeps no history; known: kubernetes, slurm" in err


def test_history_warns_of_unparsable_sinfo_row_and_keeps_others(site: Site) -> None:
    (site.base / "sinfo.txt").write_text(f"{SINFO}gpu*|1-00:00:00|64\n")
    code, out, err = invoke("--history", "--since", "2026-11-01", **site.env)
    assert (code, "4 jobs, 168.0 GPU-hours" in out) == (0, True)
    assert "ffdl: warning: nodes with an unreadable row are left out: sinfo printed 'gpu*|1-00" in err


def test_history_counts_and_reports_unparsable_sacct_rows(site: Site) -> None:
    odd = [[f"2{number}", *ROWS[0][1:5], "-1\x1b[2J", *ROWS[0][6:]] for number in range(7)]
    rows = "\n".join(PARTED.join(row) for row in [HEAD, ROWS[0], *odd, *ROWS[1:]])
    site.answer = rows.replace("sweep", "s\nw") + "\n"
    site.write()
    code, out, err = invoke("--history", "--since", "2026-11-01", **site.env)
    assert code == 0
    assert "4 jobs, 168.0 GPU-hours" in out
    assert "7 rows of the accounting could not be read and are not included" in out
    assert "Rows that could not be read" in out
    assert "ffdl: warning: 7 rows of the accounting could not be read" in err
    assert "ffdl: warning: 20: sacct says" in err
    assert "ffdl: warning: and 2 more; --format json lists all" in err
    assert "\x1b" not in out + err
    code, out, err = invoke("--history", "--since", "2026-11-01", "--format", "json", **site.env)
    document = json.loads(out)
    assert [one["row"] for one in document["unread"]] == [f"2{number}" for number in range(7)]
    assert len(document["jobs"]) == 4
    code, out, err = invoke("--history", "--since", "2026-11-01", "--format", "csv", **site.env)
    assert (code, len(list(csv.DictReader(io.StringIO(out))))) == (0, 4)
    assert "7 rows" in err


def test_history_accepts_job_names_that_are_not_utf8(site: Site) -> None:
    (site.base / "sacct.txt").write_bytes(site.answer.encode().replace(b"sweep", b"sw\xff\xfe"))
    code, out, err = invoke("--history", "--since", "2026-11-01", "--format", "csv", **site.env)
    assert (code, err) == (0, "")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 4


def test_convert_rejects_conflicting_history_options_and_missing_file(site: Site) -> None:
    assert invoke("--history", "--user", "a", "--account", "b", **site.env)[0] == 2
    assert invoke("--history", "x.sbatch", **site.env)[0] == 2
    code, _, err = invoke(**site.env)
    assert code == 2 and "name the FILE to convert" in err
    assert set(FORMATS) == {"text", "json", "csv", "markdown", "html"}
