"""Shrink a failing history by omitting parts while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from gpuipc_doctor.histories.memory_state import FIRST_CONTEXT
from gpuipc_doctor.histories.operations import History, Operation

SMALLEST = 4096
"""Bytes to which allocations are reduced if the history then still fails."""

AT_ONCE = 12
"""Most histories of a round: those of one launch of MPI ranks."""

Operations = list[Operation]

Rounds = Generator[list[Operations], tuple[int, Operations] | None, None]
"""Yields histories to try in turn, and takes the index of the first that fails, with its valid operations up
to the failing one; None if none fails."""

Pass = Generator[list[Operations], tuple[int, Operations] | None, int | None]

Fails = Callable[[Operations], Sequence[Operation] | None]
"""Runs the valid operations of a history; returns those up to the failing one, or None if none failed."""


def shrink(
    failing: Sequence[Operation], fails: Fails, more: Callable[[], bool], simpler: Mapping[str, str]
) -> Operations:
    """The shortest failing history found; the search goes on while ``more()`` is true."""
    shrinker = Shrinker(failing, simpler)
    rounds, answer = shrinker.rounds(), None
    try:
        while more():
            tried = rounds.send(answer)
            found = ((number, fails(each)) for number, each in enumerate(tried) if more())
            answer = next(((number, list(kept)) for number, kept in found if kept is not None), None)
    except StopIteration:
        pass
    return shrinker.shortest


class Shrinker:
    """Finds shorter histories that fail; ``shortest`` is the best one so far."""

    def __init__(
        self, failing: Sequence[Operation], simpler: Mapping[str, str], *, keep_last: bool = True
    ) -> None:
        """``simpler``: operation → a simpler one with the same effect. ``keep_last``: only try histories that
        end with the last operation. It is ignored if processes act at the same time, because another
        operation may then be the failing one."""
        self.shortest = list(failing)
        self._simpler = simpler
        self._kept_at_end = int(keep_last and not any(operation.beside for operation in failing))

    def rounds(self, likely: Sequence[Operations] = ()) -> Rounds:
        """``likely``: parts to try first, each alone."""
        yield from self._first([*enumerate(likely)])
        if any(operation.beside for operation in self.shortest):
            yield from self._first([(0, [replace(operation, beside=False) for operation in self.shortest])])
        yield from self._all_smaller()  # first: replays of large allocations take longest
        yield from self._without_objects()
        yield from self._without_parts(*_halves(len(self.shortest)))
        yield from self._without_parts_again()
        yield from self._one_by_one(self._made_simpler)
        yield from self._with_fewer_objects()
        yield from self._without_parts(1)
        yield from self._all_smaller()
        yield from self._one_by_one(_made_smaller)

    def _first(self, candidates: Iterable[tuple[int, Operations]]) -> Pass:
        """The number of the first of these that fails, which is then the shortest; None if none does."""
        left = iter(candidates)
        while tried := [*islice(left, AT_ONCE)]:
            if answer := (yield [operations for _, operations in tried]):
                self.shortest = answer[1]
                return tried[answer[0]][0]
        return None

    def _without_objects(self) -> Rounds:
        """Omit half of the objects, then a quarter, and so on, together with the operations on them."""
        objects = [operation.makes for operation in self.shortest if operation.makes]
        parts = [
            {*objects[begin : begin + size]}
            for size in _halves(len(objects))
            for begin in reversed(range(0, len(objects), size))
        ]
        begin: int | None = 0
        while begin is not None:
            made = {operation.makes for operation in self.shortest}
            last = yield from self._first(
                (number, [one for one in self.shortest if one.makes not in part])
                for number, part in enumerate(parts)
                if number >= (begin or 0) and part & made
            )
            begin = None if last is None else last + 1

    def _without_parts(self, *sizes: int) -> Rounds:
        """Omit successive operations, of each of these sizes in turn, last ones first."""
        end: int | None = None
        while True:
            most = len(self.shortest) - self._kept_at_end
            places = [
                (size, at)
                for turn, size in enumerate(sizes)
                for at in range(end if end is not None and not turn else most, 0, -size)
            ]
            found = yield from self._first(
                (number, self.shortest[: max(at - size, 0)] + self.shortest[at:])
                for number, (size, at) in enumerate(places)
            )
            if found is None:
                return
            size, at = places[found]
            sizes = sizes[sizes.index(size) :]
            end = min(max(at - size, 0), len(self.shortest) - 1)

    def _without_parts_again(self) -> Rounds:
        """Omit single operations until none can be omitted."""
        before = 0
        while len(self.shortest) != before:
            before = len(self.shortest)
            yield from self._without_parts(1)

    def _with_fewer_objects(self) -> Rounds:
        """Replace later objects by earlier ones of the same kind, and other contexts by the first."""
        makers = [operation for operation in self.shortest if operation.makes and operation.do != "open"]
        pairs = [
            (later.makes, number)
            for place, later in reversed([*enumerate(makers)])
            for number in (
                [FIRST_CONTEXT]
                if later.do == "create-context"
                else [maker.makes for maker in makers[:place] if maker.do == later.do]
            )
        ]
        while pairs:
            found = yield from self._first(
                (number, [_with(one, *pair) for one in self.shortest if one.makes != pair[0]])
                for number, pair in enumerate(pairs)
            )
            pairs = [] if found is None else [one for one in pairs[found + 1 :] if one[0] != pairs[found][0]]

    def _made_simpler(self, operation: Operation) -> Operation:
        """In the same thread, in one stream, without a request."""
        return replace(operation, do=self._simpler.get(operation.do, operation.do))

    def _one_by_one(self, change: Callable[[Operation], Operation]) -> Rounds:
        """Change one operation at a time."""
        left = [one for one in self.shortest if change(one) != one]
        while left:
            places = [
                (number, self.shortest.index(one)) for number, one in enumerate(left) if one in self.shortest
            ]
            found = yield from self._first(
                (number, [*self.shortest[:at], change(left[number]), *self.shortest[at + 1 :]])
                for number, at in places
            )
            left = [] if found is None else left[found + 1 :]

    def _all_smaller(self) -> Rounds:
        """Reduce all allocations at once, without operations on parts beyond them."""
        smaller = list(map(_made_smaller, self.shortest))
        if smaller != self.shortest:
            yield from self._first([(0, smaller)])


def _halves(number: int) -> list[int]:
    """Half of a number, a quarter of it, and so on."""
    return [number >> times for times in range(1, number.bit_length())]


def _made_smaller(operation: Operation) -> Operation:
    is_large = operation.nbytes > SMALLEST and operation.do != "create"
    return replace(operation, nbytes=SMALLEST) if is_large else operation


def _with(operation: Operation, old: int, new: int) -> Operation:
    on, of = (new if number == old else number for number in (operation.on, operation.of))
    return replace(operation, on=on, of=of)


def renumber(history: History, *, processes: bool = True) -> History:
    """Renumber objects and writes from 1; with ``processes``, also the processes."""
    numbers = {} if processes else {number: number for number in history.processes}
    objects: dict[int, int] = {0: 0}
    stamps: dict[int, int] = {0: 0}
    operations = []
    for operation in history.operations:
        numbers.setdefault(operation.by, len(numbers) + 1)
        if operation.makes:
            objects.setdefault(operation.makes, len(objects))
        stamps.setdefault(operation.stamp, len(stamps))
        operations.append(
            replace(
                operation,
                by=numbers[operation.by],
                on=objects.get(operation.on, 0),
                of=objects.get(operation.of, 0),
                makes=objects[operation.makes],
                stamp=stamps[operation.stamp],
                within=objects.get(operation.within, 0),
            )
        )
    plans = {new: history.processes[old] for old, new in numbers.items()}
    return replace(history, processes=plans, operations=tuple(operations))
