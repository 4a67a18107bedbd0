"""Parse stacks printed by programs: functions of frames, and frames that belong together.

Formats: gdb, rocgdb, eu-stack and sanitizers, LLDB and c10, py-spy, Python's faulthandler and tracebacks,
glibc's backtrace_symbols() as printed by Open MPI, MPICH, Intel MPI and UCX, UCX's own, Julia's, perf's, and
the kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Line = TypeVar("Line")

MOST_FRAMES = 512
"""Maximum frames kept for a stack."""
APART = 64
"""Two frames with more lines between them than this belong to different stacks."""

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
        r"^(?P<name>[A-Za-z_]\w*) at \S+(?::\d+| \(unknown line\))$"  # Julia, after a signal
        r"|^\s*\[(?P<number>\d+)\] (?P<name2>[\w!.]+)\(",  # Julia, after an exception
    )
)
_MAY_BE = re.compile(r"#\s?\d|\(\w|[+]0x|, line \d|\(\)|\(\[| at |^\[\d+\] ")
_OUTERMOST_FIRST = re.compile(r'File "[^"]*", line \d+, in ')
"""Line of a Python traceback, which starts with the outermost frame. faulthandler's lines have no comma."""
BEGIN = (
    r"\b[Tt]hread 0x|\bThread \d+ \(|\b(?:TID|Process) \d+:|most recent call|backtrace \(tid|Backtrace:"
    r"|Call Trace:|\* thread #"
)
"""Regular expression for the line before a stack."""
_BEGIN = re.compile(BEGIN)
_TIME = re.compile(r"\[\s*\d+\.\d+\]?|\S*\d\d:\d\d:\d\d\S*")
_SUFFIX = re.compile(r"(?:\.(?:part|constprop|isra|cold|lto_priv|llvm)(?:\.\d+)?)+$|@.*$|\(.*$|\s.*$")


class Frame(NamedTuple):
    function: str
    number: int | None
    """Number of the frame in the stack, if the line has one."""
    prefix: str
    """The line's prefix, which identifies the writer."""
    outermost_first: bool = False


class Stack(Generic[Line]):
    """Frames, innermost first, each with its line."""

    def __init__(self, frames: Iterable[tuple[Line, str]]) -> None:
        self.frames = tuple(frames)

    def lines(self, functions: Sequence[str]) -> list[Line]:
        """The lines of these functions, in order, innermost first; empty if a function is missing.

        ``a|b`` are alternatives; a name that ends in ``*`` is a prefix.
        """
        lines, wanted = [], iter(functions)
        now = next(wanted, None)
        for line, function in self.frames:
            if now is not None and any(_is(function, part) for part in now.split("|")):
                lines.append(line)
                now = next(wanted, None)
        return [] if now is not None else lines


def _is(function: str, name: str) -> bool:
    if name.endswith("*"):
        return function.startswith(name[:-1]) or f"::{name[:-1]}" in function
    return function == name or function.endswith(f"::{name}")


def frame(line: str) -> Frame | None:
    """The frame that a log's line shows; None if it shows none."""
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
    """A function's name without arguments, templates and compilers' additions."""
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
    """A stack that may still get frames."""

    at: int
    """Line number of the last frame."""
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
    """Assembles stacks line by line, from several interleaved writers."""

    def __init__(self) -> None:
        self._open: dict[str, _Open[Line]] = {}

    def add(self, at: int, text: str, line: Line) -> Iterator[Stack[Line]]:
        """Add line number ``at``; yields the stacks that ended before it."""
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
        """End the open stacks; yields them."""
        yield from [stack.ended() for stack in self._open.values()]
        self._open.clear()


def stacks(text: str) -> Iterator[Stack[str]]:
    """The stacks in a text."""
    reading: Stacks[str] = Stacks()
    for at, line in enumerate(text.splitlines()):
        yield from reading.add(at, line, line)
    yield from reading.end()


def pattern(names: str) -> str:
    """A regular expression for lines that may be frames, also mangled, of one entry of `Searched.stack`."""
    return f"(?:{'|'.join(re.escape(name.rstrip('*')) for name in names.split('|'))})"
