"""Where lines are laid out: a width, and colours where the terminal can show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuipc_doctor.report.text import columns, sanitise, wrap

MIN_WIDTH, MAX_WIDTH = 60, 120
"""A narrower terminal gets lines of the least width; longer lines than the most are hard to read."""

_COLOURS = {"PASS": "32", "WARN": "33", "LATENT": "33", "FAIL": "31;1", "ERROR": "35", "SKIP": "2", "-": "2"}
"""SGR parameters, ECMA-48 8.3.117."""


@dataclass(frozen=True)
class Page:
    """Lays out text in at most ``width`` columns. Whatever it fills a line with is sanitised first."""

    width: int
    color: bool = False

    def paint(self, text: str, look: str) -> str:
        """``text`` in the colour of a status; layout never depends on it."""
        code = _COLOURS.get(look)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code else text

    def fill(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        """The words of ``text``, in lines that begin with ``first`` and ``rest`` (see `text.wrap`)."""
        return wrap(sanitise(text), self.width, first, rest)

    def notice(self, text: str, look: str) -> list[str]:
        """Lines of their own that nobody should overlook."""
        return [self.paint(line, look) for line in self.fill(text, rest="  ")]

    def join(self, parts: Iterable[str], mark: str = "·", first: str = "", rest: str = "  ") -> list[str]:
        """The parts with a mark between them; a line ends after a mark rather than inside a part."""
        lines: list[str] = []
        for part in filter(None, map(sanitise, parts)):
            if lines and columns(f"{lines[-1]} {mark} {part} {mark}") <= self.width:
                lines[-1] += f" {mark} {part}"
                continue
            if lines:
                lines[-1] += f" {mark}"
            lines += wrap(part, self.width - 2, rest if lines else first, rest)
        return lines

    def close(self, parts: Iterable[str], ending: str, look: str) -> list[str]:
        """The parts as `join` lays them out, with ``ending`` at the right end of the last line."""
        *lines, last = self.join(parts)
        if columns(last) + 2 + columns(ending) > self.width:
            lines, last = [*lines, last], ""
        return [
            *lines,
            last + " " * (self.width - columns(last) - columns(ending)) + self.paint(ending, look),
        ]
