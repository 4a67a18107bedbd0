"""Read one text and find the signatures that it shows. Its memory does not grow with the text's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from operator import itemgetter

from gpuipc_doctor.knownissues.index import Index, Part, Searched
from gpuipc_doctor.knownissues.scanner import Hit, Scanner
from gpuipc_doctor.knownissues.stacks import Stack, Stacks

MANY = 1000
"""After this many lines with one part of a signature, the search for the part pauses until the other parts
are found. For example, libfabric's function names are in stacks and in every line of its debug log."""

ENOUGH = 100
"""After this many lines outside stacks, the search for a stack's function pauses."""

StackLine = tuple[int, str, tuple[int, ...]]
"""A line that is a frame: (line number, text, parts of signatures in it)."""


class Reading:
    """Reading of one text, which must contain all parts of a signature. Subclasses learn what is found."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._scanner = Scanner(index.patterns)
        self._seen: Counter[int] = Counter()
        self._stacks: Stacks[StackLine] = Stacks()
        self._framed: Counter[int] = Counter()
        """Signature part → number of stacks in which it was found."""
        self.complete: set[int] = set()
        """The signatures that the text shows."""

    @property
    def lines(self) -> int:
        return self._scanner.lines

    def feed(self, block: bytes) -> None:
        self._add(self._scanner.feed(block))

    def flush(self) -> None:
        """Examine the lines that are held back until following lines arrive."""
        self._add(self._scanner.flush(), ended=True)

    def saw(self, hit: Hit, numbers: Sequence[int], parts: Sequence[int]) -> None:
        """Called for lines with the patterns ``numbers``, of which ``parts`` are news of signatures."""

    def saw_frame(self, at: int, text: str, part: int) -> None:
        """Called for each line of a stack that shows a signature."""

    def completed(self, signature: int) -> None:
        """Called when the text shows a signature, perhaps several times."""
        self.complete.add(signature)

    def lost_count(self, part: int) -> None:
        """Called when further lines with this part are not counted."""

    def _add(self, hits: Iterable[Hit], *, ended: bool = False) -> None:
        frames: list[tuple[int, bytes | str, tuple[int, ...]]] = []
        for hit in hits:
            numbers = tuple(number for number, _ in hit.matches)
            of_stack = tuple(filter(self._index.is_of_stack, numbers))
            if awake := tuple(n for n in of_stack if self._framed[n] or self._seen[n] < ENOUGH):
                frames.append((hit.number, hit.text, awake))
                frames += [(n, text, awake) for n, text in zip(hit.numbers, hit.again, strict=True)]
            if of_stack == numbers:
                continue
            parts = [number for number in numbers if number not in of_stack and self._is_news(number)]
            self.saw(hit, numbers, parts)
            for number in parts:
                self._count(number, 1 + len(hit.again))
        self._add_frames(sorted(frames, key=itemgetter(0)), ended)

    def _add_frames(self, frames: Iterable[tuple[int, bytes | str, tuple[int, ...]]], ended: bool) -> None:
        """Add lines that may be frames, in order, and examine the stacks that they complete."""
        for at, line, numbers in frames:
            text = line if isinstance(line, str) else line.decode("utf-8", "replace")
            for stack in self._stacks.add(at, text, (at, text, numbers)):
                self._look_at(stack)
            for number in numbers:
                self._seen[number] += 1
                if self._seen[number] == ENOUGH and not self._framed[number]:
                    self._scanner.pause(number)  # in lines of a debug log, not in stacks
        for stack in self._stacks.end() if ended else ():
            self._look_at(stack)

    def _look_at(self, stack: Stack[StackLine]) -> None:
        numbers = {number for (_, _, some), _ in stack.frames for number in some}
        self._framed.update(numbers)
        named = sorted(number for number in numbers if self._index.is_part(number))
        signatures = {self._index.parts[n].numbers: self._index.parts[n] for n in named}
        for parts, one in signatures.items():
            for number, (at, text, _) in zip(parts, stack.lines(one.stack), strict=False):
                self.saw_frame(at, text, number)
                self.completed(one.signature)

    def _is_news(self, number: int) -> bool:
        """Whether a line with this part must be examined: the part's first line, and later ones if they are
        counted."""
        return self._index.is_part(number) and (self._index.parts[number].counts or not self._seen[number])

    def _most(self, part: Part, complete: bool) -> float:
        """Number of lines after which the search for a part pauses: few for a general signature, whose part
        is in most errors."""
        if part.signature in self._index.general:
            return ENOUGH
        return inf if complete else MANY

    def _count(self, number: int, lines: int) -> None:
        part = self._index.parts[number]
        begins = not self._seen[number]
        self._seen[number] += lines
        complete = all(self._seen[part_number] for part_number in part.numbers)
        if complete and begins:
            self.completed(part.signature)
            self._scanner.resume(
                [part_number for part_number in part.numbers if self._index.parts[part_number].counts]
            )
        if not part.counts and begins:
            self._scanner.pause(number)
        elif part.counts and self._seen[number] >= self._most(part, complete) > self._seen[number] - lines:
            self._scanner.pause(number)
            self.lost_count(number)


class Search:
    """Says of short texts which of these signatures they show, as `Reading` does of logs."""

    def __init__(self, signatures: Sequence[Searched]) -> None:
        self._index = Index(signatures)

    def shown(self, text: str) -> set[int]:
        """Numbers of the signatures that the text shows."""
        reading = Reading(self._index)
        reading.feed(text.encode("utf-8", "replace"))
        reading.flush()
        return reading.complete
