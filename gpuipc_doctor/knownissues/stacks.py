"""Stacks as programs print them: which function a frame is in, and which frames belong together.

The forms are those of gdb, rocgdb, eu-stack and sanitizers, LLDB and c10, py-spy, Python's faulthandler and
tracebacks, glibc's backtrace_symbols() as Open MPI, MPICH, Intel MPI and UCX print it, UCX's own, Julia's,
perf's, and the kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Line = TypeVar("Line")

MOST_FRAMES = 512
"""Frames of one stack that are kept."""
APART = 64
"""Lines between two frames after which they are not of one stack."""

_HEX = r"(?:0x[0-9a-f]+|[0-9a-f]{6,})"
_OBJECT = r"[^\s()]*[/.][^\s()]*"
_FORMS = tuple(
    re.compile(form)
    for form in (
        # gdb, pstack, eu-stack, ASan: #3  0x… in f (x=1) at a.c:7, and # 3 in UCX's: 3 0x… f()  /a.c:7
        rf"#\s?(?P<number>\d+):?\s+(?:{_HEX}\s+)?(?:in\s+)?(?P<name>[^\s(][^(]*)",
        rf"frame #(?P<number>\d+): (?:{_HEX} \S+`)?(?P<name>\S[^+(]*)",  # LLDB and c10
        # backtrace_symbols(), with the number that Open MPI and UCX put before it
        rf"(?:\[\s*(?P<number>\d+)\]|(?P<number2>\d+))\s+(?:func:)?{_OBJECT}\((?P<name>[^\s()+]+)\+0x",
        rf"(?P<number>\d+)\s+{_HEX}\s+(?P<name>[\w.$~:]+)\(\)",
        r"(?:^|\s)/[^\s()]*\((?P<name>[^\s()+]+)\+0x[0-9a-f]+\)\s*\[",
        rf"\[<(?:{_HEX}|0)>\]\s+(?:\?\s+)?(?P<name>[\w.]+)\+0x",  # /proc/PID/stack, and an oops before 4.10
        r"(?:^|\]|:)\s+(?:\?\s+)?(?P<name>[A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+",  # an oops
        r'File "[^"]*", line \d+,? in (?P<name>\S+)',  # faulthandler and tracebacks
        r"^\s+(?:[0-9a-f]{6,16} )?(?P<name>[A-Za-z_~][\w.:~<>@$]*(?: \[clone [^\]]*\])*)"
        r"(?:\+0x[0-9a-f]+)? \((?:[^()\s]+(?::\d+)?|\[[\w.]+\])\)$",  # py-spy, perf script
        r"^(?P<name>[A-Za-z_]\w*) at \S+:\d+$|^\s*\[(?P<number>\d+)\] (?P<name2>[\w!.]+)\(",  # Julia
    )
)
_MAY_BE = re.compile(r"#\s?\d|\(\w|[+]0x|, line \d|\(\)|\(\[| at |^\[\d+\] ")
_OUTERMOST_FIRST = re.compile(r'File "[^"]*", line \d+, in ')
"""A traceback; faulthandler has no comma before ``in`` and begins with the innermost."""
BEGIN = (
    r"\b[Tt]hread 0x|\bThread \d+ \(|\b(?:TID|Process) \d+:|most recent call|backtrace \(tid|Backtrace:"
    r"|Call Trace:|\* thread #"
)
"""What stands in the line before a stack, as a regular expression."""
_BEGIN = re.compile(BEGIN)
_TIME = re.compile(r"\[\s*\d+\.\d+\]?|\S*\d\d:\d\d:\d\d\S*")
_SUFFIX = re.compile(r"(?:\.(?:part|constprop|isra|cold|lto_priv|llvm)(?:\.\d+)?)+$|@.*$|\(.*$|\s.*$")


class Frame(NamedTuple):
    function: str
    number: int | None
    """Its place in the stack, where the line has it."""
    prefix: str
    """What stands before it: who wrote the line."""
    outermost_first: bool = False


class Stack(Generic[Line]):
    """Frames, innermost first, each with the line that it is in."""

    def __init__(self, frames: Iterable[tuple[Line, str]]) -> None:
        self.frames = tuple(frames)

    def lines(self, functions: Sequence[str]) -> list[Line]:
        """The lines of these functions, innermost first and in this order; none unless all are there.

        An alternative is written ``a|b``; a name that ends in ``*`` is the beginning of one.
        """
        lines, wanted = [], iter(functions)
        now = next(wanted, None)
        for line, function in self.frames:
            if now is not None and any(_is(function, one) for one in now.split("|")):
                lines.append(line)
                now = next(wanted, None)
        return [] if now is not None else lines


def _is(function: str, name: str) -> bool:
    if name.endswith("*"):
        return function.startswith(name[:-1]) or f"::{name[:-1]}" in function
    return function == name or function.endswith(f"::{name}")


def frame(line: str) -> Frame | None:
    """The frame that a line of a log is; None where it is none."""
    if len(line) > 4096 or not _MAY_BE.search(line):
        return None
    line = line.replace("(anonymous namespace)::", "")
    for form in _FORMS:
        match = form.search(line)
        if match:
            named = match.groupdict()
            function = _plain(named["name"] or named.get("name2") or "")
            number = named.get("number") or named.get("number2")
            if not function or re.fullmatch(_HEX, function):
                return None
            prefix = _TIME.sub("", line[: match.start()]).rstrip(" #[").removesuffix("frame").strip(" *")
            outermost_first = bool(_OUTERMOST_FIRST.search(line))
            return Frame(function, int(number) if number else None, prefix, outermost_first)
    return None


def _plain(name: str) -> str:
    """A function's name without arguments, templates and what compilers add."""
    if name.startswith("_ZN"):
        parts, rest = [], name[3:].lstrip("KVr")
        while size := re.match(r"\d+", rest):
            end = size.end() + int(size[0])
            parts.append(rest[size.end() : end])
            rest = rest[end:]
        name = "::".join(parts)
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    name = name.rpartition("`")[2].replace(" ::", "::").strip().rstrip(":")
    return _SUFFIX.sub("", name).removeprefix("__GI_")


@dataclass(slots=True)
class _Open(Generic[Line]):
    """A stack to which frames may come."""

    at: int
    """The line of its last frame."""
    number: int | None
    outermost_first: bool
    frames: list[tuple[Line, str]]

    def takes(self, found: Frame, at: int) -> bool:
        if at - self.at > APART or self.outermost_first != found.outermost_first:
            return False
        return found.number is None or self.number is None or found.number > self.number

    def ended(self) -> Stack[Line]:
        return Stack(reversed(self.frames) if self.outermost_first else self.frames)


class Stacks(Generic[Line]):
    """Puts frames together that come line by line, from several writers at once."""

    def __init__(self) -> None:
        self._open: dict[str, _Open[Line]] = {}

    def add(self, at: int, text: str, line: Line) -> Iterator[Stack[Line]]:
        """Take a line, the ``at``-th; yield the stacks that ended before it."""
        found = frame(text)
        if found is None:
            if _BEGIN.search(text):
                yield from self.end()
            return
        one = self._open.get(found.prefix)
        if one is None or not one.takes(found, at):
            if one:
                yield one.ended()
            if len(self._open) >= MOST_FRAMES:
                yield from self.end()
            one = self._open[found.prefix] = _Open(at, found.number, found.outermost_first, [])
        one.at, one.number = at, found.number
        if len(one.frames) < MOST_FRAMES:
            one.frames.append((line, found.function))

    def end(self) -> Iterator[Stack[Line]]:
        """The stacks that are open."""
        yield from [one.ended() for one in self._open.values()]
        self._open.clear()


def stacks(text: str) -> Iterator[Stack[str]]:
    """The stacks in a text."""
    reading: Stacks[str] = Stacks()
    for at, line in enumerate(text.splitlines()):
        yield from reading.add(at, line, line)
    yield from reading.end()


def pattern(names: str) -> str:
    """A regular expression that is in each line of a frame of one of these functions: ``a|b*``."""
    spelt = "|".join(
        re.escape(name.rstrip("*")) + r"\b" * (not name.endswith("*")) for name in names.split("|")
    )
    return f"(?:{spelt})"
