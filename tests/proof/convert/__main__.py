"""`make proof-convert`: a corpus of batch scripts, converted and written again, run against commands that only record.

    python -m tests.proof.convert [--only NAME]... [--break WHAT] [--verbose] [--corpus DIRECTORY]

Prints how many scripts were understood and run whole, how many are wrong (the original and the one made of the manifest
differ in argv, environment, tasks of a node or GPUs), and how many lose something that no line of the report names.
Exit status 1 if any is wrong or loses something.
"""

from __future__ import annotations

import argparse
import getopt
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ffdl_batch.domain.conversion import CannotConvert, Conversion, Fate, Origin, Source
from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.manifest.writer import write_manifest
from ffdl_batch.plugins import create_converter
from ffdl_batch.ports.conversion import ReadsScripts, WritesScripts
from tests.proof.convert.breaks import BREAKS, Manifest
from tests.proof.convert.cases import Case, cases_in, read_cases
from tests.proof.convert.lost import silently_lost
from tests.proof.convert.running import TOOLS, options_of, run_script, slurm_environment
from tests.proof.convert.verdict import compare, resources_differ


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, run and compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.convert", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="of this script of the corpus")
    parser.add_argument("--break", dest="broken", choices=[*BREAKS], help="make the conversions wrong: must end with 1")
    parser.add_argument("--verbose", action="store_true", help="name each script")
    parser.add_argument("--corpus", type=Path, metavar="DIRECTORY", help="other scripts; they run here, with stubs")
    options = parser.parse_args(arguments)
    if options.corpus is not None and not options.corpus.is_dir():
        print(f"{parser.prog}: {options.corpus} is not a directory: give one with batch scripts", file=sys.stderr)
        return 2
    everything = read_cases() if options.corpus is None else cases_in(options.corpus)
    cases = [case for case in everything if not options.only or case.name in options.only]
    if not cases:
        where = options.corpus or "the corpus"
        lacks = (
            f"no script {', '.join(options.only)}" if options.only else "no file that begins with #! and has #SBATCH"
        )
        print(f"{parser.prog}: {where} has {lacks}", file=sys.stderr)
        return 2
    wrong, losing, counts, wrapped, refused, not_run = 0, 0, Counter[Fate](), 0, 0, 0
    for case in cases:
        try:
            conversion, differing, lost = try_case(case, BREAKS.get(options.broken or ""))
        except CannotConvert as error:
            if options.corpus is None:
                raise
            refused += 1
            print(f"{case.name}:{error.line}: refused: {error}", file=sys.stderr)
            continue
        except (getopt.GetoptError, OSError, subprocess.TimeoutExpired, UnicodeError) as error:
            if options.corpus is None:
                raise
            not_run += 1
            print(f"{case.name}: converted, but not compared: {error}", file=sys.stderr)
            continue
        wrapped += bool(conversion.wrapped)
        counts.update(one.fate for one in conversion.judged if one.origin is not Origin.BODY)
        wrong += bool(differing)
        if options.verbose:
            print(f"{case.name}: {conversion.wrapped or 'understood'}", file=sys.stderr)
        losing += bool(lost)
        for line in [*differing, *(f"lost: {line}" for line in lost)]:
            print(f"{case.name}: {line}", file=sys.stderr)
    understood = len(cases) - wrapped - refused - not_run
    others = (f", {refused} refused" if refused else "") + (f", {not_run} not compared" if not_run else "")
    print(f"{len(cases)} scripts, {understood} understood, {wrapped} run whole{others}")
    print(", ".join(f"{counts[fate]} directives {fate}" for fate in Fate))
    print(f"{wrong} wrong, {losing} silently lost")
    return 1 if wrong or losing else 0


def try_case(
    case: Case, breaking: Callable[[Manifest], Manifest] | None = None
) -> tuple[Conversion, list[str], list[str]]:
    """Return the conversion of a script, what its other self does otherwise, and what the report does not name."""
    converter = create_converter("sbatch")
    assert isinstance(converter, ReadsScripts) and isinstance(converter, WritesScripts)
    name = f"{Path(case.name).stem}.sbatch"
    source = Source(case.text, name, case.options, case.arguments, case.environ, "custom")
    conversion = converter.convert(source)
    manifest = dict(conversion.manifest) if breaking is None else breaking(dict(conversion.manifest))
    again = converter.write(spec_of(write_manifest(manifest)), contained=conversion.contained)
    with tempfile.TemporaryDirectory(prefix="ffdl-convert-") as place:
        before, after, once_more = (Path(place, part) for part in ("before", "after", "again"))
        for directory in (before, after, once_more):
            (directory / "work").mkdir(parents=True)
            (directory / "work" / name).write_text(case.text)
        first = run_script(before, case.text, name, case.options, case.environ, case.arguments)
        second = run_script(after, again, name)
        beside = bool(_BESIDE.search(case.text))
        wrong = compare(first, second, conversion, beside=beside)
        if wrong:
            third = run_script(once_more, case.text, name, case.options, case.environ, case.arguments)
            wrong = compare(first, second, conversion, third, beside=beside)
    old, new = options_of(case.text, case.options, case.environ), options_of(again, (), {})
    if breaking is None:
        environ = slurm_environment(old, name, Path("/"))
        wrong += resources_differ(manifest, environ, exclusive="exclusive" in old)
    return conversion, wrong, silently_lost(case.text, conversion, old, new, arguments=bool(case.arguments))


_BESIDE = re.compile(
    r"(?<![&<>|\\])&(?=\s|[;#)}]|$)"  # in the background, also within a line: & done
    r"|\bcoproc\b|[<>]\(|\bxargs\b.*\s(?:-P|--max-procs)"
    rf"|(?<!\|)\|&?[ \t]*(?!(?:{'|'.join(TOOLS)})\b)\w"  # a pipe to what is a stub here
)
"""What runs at the same time as others begins in any order."""


def spec_of(text: str) -> JobSpec:
    """The checked manifest; one that was made has no errors."""
    parsed = parse_manifest(ManifestSource(text, "<manifest>", "/"))
    errors = [str(finding) for finding in parsed.findings if finding.severity is Severity.ERROR]
    assert parsed.spec is not None, errors
    return parsed.spec


if __name__ == "__main__":
    sys.exit(main())
