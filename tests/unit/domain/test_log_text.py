"""Lines in bulk are the lines."""

from __future__ import annotations

import json
import random

import pytest

from ffdl_batch.domain.job.log_text import LogText, decode_text, encode_text


def some_text(dice: random.Random, *, with_ends: bool) -> LogText:
    lines = ["".join(dice.choice("aä𝄞 ") for _ in range(dice.randrange(5))) for _ in range(dice.randrange(1, 9))]
    sizes = [len(line.encode()) + 1 + (dice.randrange(3) if with_ends else 0) for line in lines]
    ends = tuple(100 + sum(sizes[: place + 1]) for place in range(len(lines)))
    has_ends = with_ends and len(lines) > 1
    return LogText(2, 7, "\n".join(lines), 5.0, 3, 100, ends[-1], ends=ends if has_ends else ())


@pytest.mark.parametrize("with_ends", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_log_text_parts_preserve_lines(seed: int, with_ends: bool) -> None:
    dice = random.Random(seed)
    text = some_text(dice, with_ends=with_ends)
    assert decode_text(json.loads(encode_text(text))) == text
    lines = list(text.lines())
    assert [line.line for line in lines] == text.text.split("\n") and len(lines) == text.count
    assert [line.offset for line in lines] == [100, *(line.end for line in lines[:-1])] and lines[-1].end == text.end
    assert [line.index for line in lines] == list(range(7, 7 + len(lines)))
    assert {(line.learner, line.attempt, line.at, line.partial) for line in lines} == {(2, 3, 5.0, False)}
    start = dice.randrange(len(lines))
    stop = dice.randrange(start, len(lines)) + 1
    cuts = text.cuts([(0, start), (start, start), (start, stop), (stop, len(lines))])
    assert [line for cut in cuts for line in cut.lines()] == lines
    for count in range(1, len(lines) + 2):
        assert list(text.last(count).lines()) == lines[-count:]
    assert text.place() == (lines[-1].index, lines[-1].offset)
    for number, line in enumerate(lines):
        behind = text.after((line.index, line.offset))
        assert (list(behind.lines()) if behind else []) == lines[number + 1 :]
    assert text.after((6, 90)) is text


def test_partial_log_text_is_one_line_at_any_position() -> None:
    piece = LogText(1, 4, "half", None, 1, 30, 34, partial=True)
    (line,) = piece.lines()
    assert (line.line, line.offset, line.end, line.partial) == ("half", 30, 34, True)
    assert decode_text(json.loads(encode_text(piece))) == piece
    assert piece.after((4, 20)) is piece and piece.after((4, 30)) is None
