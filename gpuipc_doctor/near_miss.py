"""What somebody may have meant by a word that nothing knows."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, else_list: bool = False) -> str:
    """``; did you mean 'ipc-reopen'?`` where a known word is close to ``word``.

    Otherwise nothing, or, with ``else_list``, all of them: ``; there are cuda, hip``.
    """
    from difflib import get_close_matches  # costs milliseconds, and nobody may have mistyped anything

    words = sorted(known)
    if near := get_close_matches(word, words, n=1):
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(words) or 'none'}" if else_list else ""
