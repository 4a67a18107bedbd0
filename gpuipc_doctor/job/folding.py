"""Fold ranks into a tree by stack, so that any number of ranks fits one screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


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
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        if len(paths[rank]) > depth:
            groups.setdefault(paths[rank][depth], []).append(rank)
    branches = [_branch(group, paths, depth) for group in groups.values()]
    return sorted(branches, key=lambda branch: (-len(branch.ranks), branch.ranks))


def _branch(ranks: Sequence[int], paths: Mapping[int, tuple[str, ...]], depth: int) -> Branch:
    """The branch of ranks that share the frame at ``depth`` and all frames up to their next fork."""
    first, end = paths[ranks[0]], depth + 1
    while end < len(first) and all(paths[rank][end : end + 1] == first[end : end + 1] for rank in ranks):
        end += 1
    return Branch(first[depth:end], tuple(ranks), _branches(ranks, paths, end))
