"""Find in the files of known issues what their schema cannot see."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from gpuipc_doctor.knownissues.conditions import Need
from gpuipc_doctor.knownissues.database import Placed, files, merge, placed, read_all
from gpuipc_doctor.knownissues.signatures import spaced
from gpuipc_doctor.knownissues.versions import Range
from gpuipc_doctor.yamlfile import Key, Mistake, did_you_mean


def lint(paths: Iterable[Path], check_ids: Collection[str] | None = None) -> tuple[Mistake, ...]:
    """Every mistake in these files; with ``check_ids``, also each check that ``detected_by`` invents."""
    paths = list(paths)
    others, _ = read_all(path for path in files() if path not in paths)
    documents, mistakes = read_all(paths)
    mistakes += merge([*others, *documents])[1]
    for document in documents:
        for one in placed(document):
            mistakes += [*_of_ranges(one), *_of_patterns(one)]
            if check_ids is not None:
                mistakes += _of_checks(one, check_ids)
    return tuple(sorted(mistakes))


def _needs(one: Placed) -> Iterator[tuple[Need, tuple[Key, ...]]]:
    for number, need in enumerate(one.issue.needs):
        yield need, ("needs", number)
    for outer, signature in enumerate(one.issue.signatures):
        for number, need in enumerate(signature.needs):
            yield need, ("signatures", outer, "needs", number)


def _of_ranges(one: Placed) -> Iterator[Mistake]:
    issue = one.issue
    ranges: list[tuple[Range | None, tuple[Key, ...]]] = [
        *((affected, ("affected", n)) for n, affected in enumerate(issue.affected)),
        *((need.range, (*keys, "range")) for need, keys in _needs(one)),
        *((workaround.when, ("workarounds", n, "when")) for n, workaround in enumerate(issue.workarounds)),
    ]
    for range_, keys in ranges:
        if range_ is None:
            continue
        if range_.fixed and range_.last_affected:
            yield one.mistake("give 'fixed' or 'last_affected', not both", *keys)
        for text in range_.contradictions():
            yield one.mistake(text, *keys)
    for number, affected in enumerate(issue.affected):
        if not affected.fixed and not affected.last_affected:
            text = "give 'fixed' or 'last_affected': a version, or unknown when nobody has said"
            yield one.mistake(text, "affected", number)


def _of_patterns(one: Placed) -> Iterator[Mistake]:
    patterns: list[tuple[str, bool, tuple[Key, ...]]] = [
        *(
            (spaced(text), False, ("signatures", n, "match"))
            for n, signature in enumerate(one.issue.signatures)
            for text in signature.match
        ),
        # A variable that is not set is empty text.
        *((need.matches, need.is_env, (*keys, "matches")) for need, keys in _needs(one) if need.matches),
    ]
    for text, may_be_empty, keys in patterns:
        try:
            found = re.search(text, "")
        except (re.error, RecursionError, OverflowError) as error:
            yield one.mistake(f"{text!r} is not a regular expression: {error}", *keys)
        else:
            if found and not may_be_empty:
                yield one.mistake(f"{text!r} matches the empty string, so it would match everything", *keys)


def _of_checks(one: Placed, check_ids: Collection[str]) -> Iterator[Mistake]:
    for number, id_ in enumerate(one.issue.detected_by):
        if id_ not in check_ids:
            near = did_you_mean(id_, check_ids)
            yield one.mistake(f"there is no check {id_!r}{near}", "detected_by", number)
