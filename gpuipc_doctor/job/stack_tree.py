"""Ranks by stack: a tree, so that any number of ranks fits one screen; and C++ names as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuipc_doctor.grouping import by_key


@dataclass(slots=True)
class Branch:
    """Ranks with common frames: ``frames`` are those between the parent branch and the next fork."""

    frames: tuple[str, ...]
    ranks: tuple[int, ...]
    branches: list[Branch] = field(default_factory=list)


def fold(paths: Mapping[int, Sequence[str]]) -> list[Branch]:
    """The prefix tree of the ranks' stacks, outermost frames first, largest branch first."""
    return _branches(sorted(paths), {rank: tuple(path) for rank, path in paths.items()}, 0)


def _branches(ranks: Iterable[int], paths: Mapping[int, tuple[str, ...]], depth: int) -> list[Branch]:
    groups = by_key((paths[rank][depth], rank) for rank in ranks if len(paths[rank]) > depth)
    branches = [_branch(group, paths, depth) for group in groups.values()]
    return sorted(branches, key=lambda branch: (-len(branch.ranks), branch.ranks))


def _branch(ranks: Sequence[int], paths: Mapping[int, tuple[str, ...]], depth: int) -> Branch:
    """The branch of ranks that share the frame at ``depth`` and all frames up to their next fork."""
    first, end = paths[ranks[0]], depth + 1
    while end < len(first) and all(paths[rank][end : end + 1] == first[end : end + 1] for rank in ranks):
        end += 1
    return Branch(first[depth:end], tuple(ranks), _branches(ranks, paths, end))


# -- C++ names as people read them -------------------------------------------------------------------------


_NESTED = re.compile(r"_?_Z(?:N[VKrRO]*)?(?=St\d|S[absiod]|\d)(?:St|S[absiod])?")
_PART = re.compile(r"(\d+)")
_SHOWN = 2


def readable(frame: str) -> str:
    """A frame with the last two names of a mangled function (Itanium C++ ABI, "External Names"); only the
    file in brackets if no name is left.

    Arguments and templates are left out: ``Work::wait (libtorch_cpu.so)``.
    """
    function, _, file = frame.partition(" (")
    start = _NESTED.match(function)
    if start is None:
        is_mangled = function.startswith(("_Z", "__Z"))
        return f"[{file.rstrip(')')}]" if is_mangled and file else frame
    names, at = [], start.end()
    while (length := _PART.match(function, at)) and int(length[1]) <= len(function):
        begin = length.end()
        at = begin + int(length[1])
        name = function[begin:at]
        if not name.startswith("_GLOBAL__N"):
            names.append(name)
        if function[at : at + 1] == "I":  # a template's arguments begin
            break
    shown = "::".join(names[-_SHOWN:])
    if not shown or shown.startswith("_"):  # a function of the C++ library for itself
        return f"[{file.rstrip(')')}]" if file else frame
    return f"{shown} ({file}" if file else shown
