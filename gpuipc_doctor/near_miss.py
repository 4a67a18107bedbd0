"""Suggestions for an unknown word."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, else_list: bool = False) -> str:
    """Return ``; did you mean 'ipc-reopen'?`` if a known word is similar to ``word``.

    Otherwise empty, or with ``else_list`` all known words: ``; there are cuda, hip``.
    """
    from difflib import get_close_matches  # takes milliseconds and is rarely needed

    words = sorted(known)
    if near := get_close_matches(word, words, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(words) or 'none'}" if else_list else ""
