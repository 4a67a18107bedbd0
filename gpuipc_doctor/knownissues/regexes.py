"""Whether a regular expression is safe on any log.

An expression is accepted if the time of a backtracking matcher, such as Python's, grows at most with the
fourth power of the text's length. The expression is analysed, not run. A repetition is refused if its body
can match the same text in several ways. Repetitions that may also match the text after them are counted. Some
harmless expressions are refused, and must be rewritten.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as sre
    from re import _parser
else:
    import sre_constants as sre
    import sre_parse as _parser

_MAX_WIDE = 2
"""Maximum number of repetitions that may also match the text after them. The time grows with the text's
length to the power of this number plus two: the search for the match's start and the last repetition also
count."""

_NARROW = 20
"""A repetition that can match at most this many different lengths counts as narrow."""

_MAX_FACTOR = 1000

_BEYOND = frozenset(map(ord, "\u2003\u0660\u4e00\u2014"))
"""A space, a digit, a letter and a sign, which stand for all such characters beyond Latin-1."""

_ALL = _BEYOND | frozenset(range(256))

_Item = tuple[Any, Any]
_Set = frozenset[int]


def objections(pattern: str, *, may_be_empty: bool = False) -> Iterator[str]:
    """Reasons for not using this regular expression; empty if it may be used."""
    try:
        parsed: Any = _parser.parse(pattern)
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        yield f"is not a regular expression: {error}"
        return
    if parsed.getwidth()[0] == 0 and not may_be_empty:
        yield "matches the empty string, so it would match everything"
    if parsed.state.flags & ~re.UNICODE:
        yield "sets flags; write [Ee]rror instead"
        return
    try:
        wide, factor, _ = _cost(list(parsed), frozenset())
    except _Refused as refused:
        yield str(refused)
        return
    if wide > _MAX_WIDE or factor > _MAX_FACTOR:
        yield (
            "can be matched in too many ways (catastrophic backtracking): let each repetition exclude what "
            r"ends it, as [^)]*\) and unlike .*\)"
        )


class _Refused(Exception):
    """The expression uses something that cannot be judged or is forbidden."""


def _cost(items: Sequence[_Item], after: _Set) -> tuple[int, int, _Set]:
    """(number of wide repetitions, factor for narrow ones, possible first characters) of this sequence; see
    `_MAX_WIDE` and `_NARROW`.

    ``after``: characters that may follow the sequence, none at the end of the expression. A sequence that may
    be empty can also begin with them.
    """
    wide, factor = 0, 1
    for op, value in reversed(items):
        more, times, after = _cost_of_item(op, value, after)
        wide, factor = wide + more, factor * times
    return wide, factor, after


def _cost_of_item(op: Any, value: Any, after: _Set) -> tuple[int, int, _Set]:
    if op is sre.AT:  # ^, $ and \b match no character, and can also fail at the end
        return 0, 1, after or _ALL
    if op is sre.SUBPATTERN:
        _, set_flags, unset_flags, body = value
        if set_flags or unset_flags:
            raise _Refused("sets flags; write [Ee]rror instead")
        return _cost(list(body), after)
    if op is sre.BRANCH:
        return _cost_of_branches([_cost(list(branch), after) for branch in value[1]])
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, body = value
        return _cost_of_repetition(low, high, list(body), after)
    return 0, 1, _characters(op, value)


def _cost_of_branches(branches: Sequence[tuple[int, int, _Set]]) -> tuple[int, int, _Set]:
    begins = [begin for _, _, begin in branches]
    told_apart = not any(one & other for one, other in combinations(begins, 2))
    factor = (max if told_apart else sum)(factor for _, factor, _ in branches)
    return max(wide for wide, _, _ in branches), factor, frozenset().union(*begins)


def _cost_of_repetition(low: int, high: int, body: Sequence[_Item], after: _Set) -> tuple[int, int, _Set]:
    if high > 1 and not _is_fixed(body):
        raise _Refused("repeats a part that can itself match in several ways: (a+)*, (a|b)+")
    wide, factor, begin = _cost(body, after)
    lengths = high - low + 1
    if lengths > 1 and begin & after:
        wide, factor = (wide + 1, factor) if lengths > _NARROW else (wide, factor * lengths)
    return wide, factor, begin | after if low == 0 else begin


def _is_fixed(items: Iterable[_Item]) -> bool:
    """Whether this sequence matches only texts of one length, and each of them in only one way."""
    for op, value in items:
        if op is sre.SUBPATTERN:
            if not _is_fixed(value[3]):
                return False
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            if value[0] != value[1] or not _is_fixed(value[2]):
                return False
        elif op is sre.BRANCH:
            return False
    return True


def _characters(op: Any, value: Any) -> _Set:
    if op is sre.LITERAL:
        return frozenset({value}) if value < 256 else _BEYOND
    if op is sre.NOT_LITERAL:
        return _ALL - {value} | _BEYOND
    if op is sre.ANY:
        return _ALL - {ord("\n")}
    if op is sre.RANGE:
        low, high = value
        return frozenset(range(low, min(high, 255) + 1)) | (_BEYOND if high > 255 else frozenset())
    if op is sre.CATEGORY:
        return _of_kind(_CATEGORIES[value])
    if op is sre.IN:
        negated = value[0][0] is sre.NEGATE
        members: _Set = frozenset().union(*(_characters(*item) for item in value[negated:]))
        if not negated:
            return members
        # Excluding a single character does not exclude its kind.
        kinds = [item for item in value[1:] if item[0] is sre.CATEGORY]
        beyond = _BEYOND.difference(*(_characters(*item) for item in kinds))
        return (_ALL - members) | beyond
    raise _Refused("uses look-around, a back-reference or a similar construct, which is not supported")


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


@cache
def _of_kind(category: str) -> _Set:
    return frozenset(code for code in _ALL if re.match(category, chr(code)))
