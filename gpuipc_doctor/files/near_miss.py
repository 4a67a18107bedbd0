"""Suggestions for an unknown word."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, else_list: bool = False) -> str:
    """A suggestion for a message: ``; did you mean 'ipc-reopen'?``. Empty if no known word is similar.

    With ``else_list``, all known words in place of empty text: ``; there are cuda, hip``.
    """
    from difflib import get_close_matches  # takes milliseconds and is rarely needed

    words = sorted(known)
    if near := get_close_matches(word, words, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(words) or 'none'}" if else_list else ""
