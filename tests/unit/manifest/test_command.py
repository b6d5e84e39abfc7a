"""Tests which line breaks of a command bash sees, and what it then runs."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.manifest.command import read_command
from tests.unit.manifest.samples import errors, notes, parse, read, warnings

ARGUMENTS = 'show() { printf "<%s>" "$@"; echo; }\n'


def manifest(command: str, indent: str = "    ") -> str:
    """Return a manifest with `command` as a literal block."""
    block = "".join(f"{indent}{line}\n" for line in command.split("\n"))
    return f"name: x\nmemory: 1GB\nframework:\n  name: n\n  version: v\n  command: |\n{block}"


def run(text: str) -> str:
    """Return the output of bash for the text, errors included."""
    return subprocess.run(
        ["bash", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    ).stdout


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("show a\n  --x 1\n\t-y\n", "<a><--x><1><-y>\n"),
        ("show a   \n\n  \n  --x", "<a><--x>\n"),
        ("show a \\\n  b\n  --x", "<a><b><--x>\n"),
        ("show 'a\n  - b' c\n  -d", "<a\n  - b><c><-d>\n"),
        ('show "a $(echo \'"\') b"\n  -c', '<a " b><-c>\n'),
        ("show a#b ${HOME#\"$HOME\"} $# \\# 'x'#y\n  -d", "<a#b><0><#><x#y><-d>\n"),
        ("show $(echo a\n  -b)\n  -c", "<a><-b><-c>\n"),
        ("show `echo a # it's\n`\n  -b", "<a><-b>\n"),
        ("show $((1 << 2))\n  -b", "<4><-b>\n"),
        ("show a 2>&1\n  -b", "<a><-b>\n"),
        ("show \\;\n  -b", "<;><-b>\n"),
        ("show $'it\\'s'\n  -b", "<it's><-b>\n"),
        ("show - <<< EOF\n  -b\nEOF() { :; }", "<-><-b>\n"),
        ('x=(a\n  -b)\nshow "${x[@]}"\n  -c', "<a><-b><-c>\n"),
        ("show a\n  -b # why\nshow c\n  -d", "<a><-b>\n<c><-d>\n"),
        ("case a in\n  a) show b\n    -c ;;\nesac", "<b><-c>\n"),
        ("(show a\n  -b; show c) | cat\n  -n", "     1\t<a><-b>\n     2\t<c>\n"),
    ],
)
def test_indented_line_with_dash_continues_line_before(written: str, printed: str) -> None:
    assert run(ARGUMENTS + read_command(written).text) == printed


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("# comment\necho a\necho b", "a\nb\n"),
        ("cat <<EOF\nx\n  - $((1 + 1))\nEOF\necho b", "x\n  - 2\nb\n"),
        ("cat <<'EOF'; cat <<\"E 2\"\n  - $x\nEOF\n  - $y\nE 2\n", "  - $x\n  - $y\n"),
        ("cat <<-EOF\n\t  - a\n\tEOF\necho b", "  - a\nb\n"),
        ("cat <<EOF\na\\\nEOF\n  - b\nEOF\n", "aEOF\n  - b\n"),
        ("x=$(cat <<\\E\n  - '\nE\n)\necho $x", "- '\n"),
        ('echo "a\n  - b"', "a\n  - b\n"),
        ('echo "${x:-a\n  - b}"', "a\n  - b\n"),
        ("awk 'BEGIN { print 3\n  - 1 }'", None),
        ("echo $((3\n  - 1))", "2\n"),
        ("((x = 3\n  - 1)); echo $x", "2\n"),
        ("x=(\n  -a # first\n  # more\n  -b\n)\necho ${x[@]}", "-a -b\n"),
        ("case -a in\n  # help\n  -h|--help) echo h ;;\n  -a) echo a ;;\nesac", "a\n"),
        ("if [[ -n a &&\n      -n b ]]; then echo a; fi", "a\n"),
        ("echo a \\\n  -b", "a -b\n"),
        ("f() {\n  echo $1\n}\nf a; f b", "a\nb\n"),
        ("for i in 1 2; do\n  echo $i\ndone", "1\n2\n"),
        ("if [[ -n a && # why\n      -n b ]]; then echo a; fi", "a\n"),
        ("x=$(case -b in (-a) echo a ;;\n  -b) echo b ;;\nesac); echo $x", "b\n"),
        ("case -a in\n  -a) echo a ;&\n  -b) echo b ;;&\n  -c) echo c ;;\nesac", "a\nb\n"),
    ],
)
def test_script_without_continuation_is_unchanged(written: str, printed: str | None) -> None:
    command = read_command(written)
    assert (command.text, command.continued, command.stray) == (written, [], [])
    assert printed is None or run(command.text) == printed


LINES = ["\n", "\n  ", "\n  -x", "\n-y", "\nE\n", "\n\tE\n"]
OPEN_AND_CLOSE = [
    "'",
    '"',
    "$'",
    "`",
    "$(",
    "(",
    "$((",
    "x=(",
    "${",
    ")",
    "}",
    "<<E",
    "<<-'E'",
    "<<<",
    "case a in",
    "esac",
]
SCRAPS = st.lists(
    st.sampled_from([*LINES, *OPEN_AND_CLOSE, "a", "b c", " ", "\\", "#", " # c", ";", "&&", "|", " -z) ", ";;"]),
    max_size=30,
).map("".join)


@given(SCRAPS)
def test_read_command_changes_text_only_before_continuation_lines(written: str) -> None:
    command = read_command(written)
    before, after = written.rstrip("\n").split("\n"), command.text.rstrip("\n").split("\n")
    changed = [number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
    assert all(after[number - 1] == f"{before[number - 1]} \\" for number in changed)
    assert command.continued == [number + 1 for number in changed]
    assert all(before[number - 1].lstrip().startswith("-") for number in command.stray)
    assert read_command(command.text).text == command.text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("command: >\n    a\n    b", "a b\n"),
        ("command: >\n    a\n      --x\n  # comment\n", "a \\\n  --x\n"),
        ("command: >\r\n    a\r\n      --x\r\n", "a \\\n  --x\n"),
        ("command: |\n    # why\n    a\n\n    b", "# why\na\n\nb\n"),
        ("command: |\r\n    a\r\n    b\r\n", "a\nb\n"),
        ("command: |-\n    a\n    b", "a\nb"),
        ("command: |+\n    a\n    b\n", "a\nb\n\n"),
        ('command: "a\\r\\nb\\n  -c"', "a\nb \\\n  -c"),
        ("command: a\n    b", "a b"),
        ("command: a \\", "a \\\n"),
    ],
)
def test_manifest_command_keeps_line_breaks_of_every_yaml_form(written: str, text: str) -> None:
    assert read(f"name: x\nframework:\n  name: n\n  version: v\n  {written}\n").framework.command == text


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("a", None),
        ("# why\na\nb", "these 3 lines run as a script; FfDL replaced the line breaks with blanks"),
        ("a \\\n  -b", "these 2 lines run as a script; FfDL replaced the line breaks with blanks"),
        (
            "a\n  -b\n  -c",
            "this is one command: lines 2-3 continue line 1 (counted from the first line of the command)",
        ),
        (
            "a\nb\n  -c\nd\n\n  -e",
            "these 6 lines run as a script; FfDL replaced the line breaks with blanks; "
            "line 3 continues line 2, lines 5-6 continue line 4 (counted from the first line of the command)",
        ),
    ],
)
def test_validation_notes_form_of_command(command: str, note: str | None) -> None:
    found = [line for line in notes(parse(manifest(command))) if "command" in line]
    assert found == ([f"m.yml:6:12: note: framework.command: {note}"] if note else [])


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("a\n-b", "line 2 starts with a dash and continues"),
        ("a\n  -b # why\n  -c\n  -d", "line 3 starts with a dash and continues"),
        ("# why\n  -c\n-d", "lines 2-3 start with a dash and continue"),
        ("cat <<E\nE\n  -c", "line 3 starts with a dash and continues"),
        ("a;\n  -b", "line 2 starts with a dash and continues"),
        ("a &\n  -b\n  -c", "line 2 starts with a dash and continues"),
        ("a && \n\n  -b", "line 3 starts with a dash and continues"),
        ("a ||\n-b", "line 2 starts with a dash and continues"),
        ("[[ -n a ]] |\n  -c 2>/dev/null", "line 2 starts with a dash and continues"),
        ("(\n  -b)", "line 2 starts with a dash and continues"),
    ],
)
def test_dash_that_continues_no_line_is_warning(command: str, lines: str) -> None:
    assert warnings(parse(manifest(command))) == [
        f"m.yml:6:12: warning: framework.command: {lines} no line, so bash runs it as a command of "
        "its own (end the line before with a backslash, or indent the dash; the line before may not end in a comment "
        "or an operator such as ; or &)"
    ]


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        (">\n    a \\\n    --x", True),
        ("a \\\n    --x", True),
        ("|\n    a \\\n    --x", False),
        ("|\n    a \\ \n      --x", True),
        ("|\n    a \\\t\n      --x", True),
        ("a b\\ -\\ c '\\ '", False),
    ],
)
def test_blank_after_backslash_is_warning(command: str, warned: bool) -> None:
    text = f"name: x\nframework:\n  name: n\n  version: v\n  command: {command}\n"
    message = "a blank follows a backslash, so bash passes that blank to the program"
    cure = "(delete blanks at the ends of lines; if YAML joined the lines, write `command: |`)"
    assert warnings(parse(text)) == ([f"m.yml:5:12: warning: framework.command: {message} {cure}"] if warned else [])


ROLES = (
    "name: x\nmemory: 1GB\nframework: {{name: n, version: v, command: c}}\nbatch: {{roles: {{w: {{command: {}}}}}}}\n"
)


@pytest.mark.parametrize("command", ['"# only"', '"#!/bin/bash\\n\\n  # why\\n"'])
def test_command_of_comments_alone_is_rejected(command: str) -> None:
    message = "it has only comments, so nothing would run (write the command on a line without #)"
    text = f"name: x\nframework: {{name: n, version: v, command: {command}}}\n"
    assert errors(parse(text)) == [f"m.yml:2:43: error: framework.command: {message}"]
    assert errors(parse(ROLES.format(command))) == [f"m.yml:4:30: error: batch.roles.w.command: {message}"]


def test_command_longer_than_a_process_can_get_is_rejected() -> None:
    text = "name: x\nframework: {{name: n, version: v, command: {}}}\n"
    assert read(text.format("é" * 32 * 1024)).framework.command
    (line,) = errors(parse(text.format("é" * 32 * 1024 + "aa")))
    assert line == (
        "m.yml:2:43: error: framework.command: the command has 65538 bytes; the maximum is 65536 "
        "(put it into a file of the model, and write `bash FILE`)"
    )


def test_blank_command_of_role_falls_back_to_that_of_framework() -> None:
    assert read(ROLES.format('" "')).batch.roles["w"].command == ""
