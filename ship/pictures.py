"""Draw the terminals of README and the site as SVG, light and dark, from screens of the pages.

    python -m ship.pictures

Tests compare the pages' screens with what the command prints, and the pictures with the screens.
"""

from __future__ import annotations

import html
import io
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "pictures"

CUT = "…\n"
"""A line that stands for omitted lines, as on the pages."""


@dataclass(frozen=True)
class Picture:
    """A screen of a page, drawn with a title that says what was examined."""

    name: str
    page: str
    command: str
    """The command, as the page has it; the screen follows it."""
    title: str
    until: str = ""
    """A part of the line after which all lines but the last are omitted; empty: nothing is."""

    def screen(self) -> str:
        """The lines to draw, the typed command first."""
        typed = f"$ {self.command}\n"
        _, found, rest = (DOCS / self.page).read_text().partition(f"\n{typed}")
        shown, _, _ = rest.partition("```")
        if not found or self.until not in shown:
            raise ValueError(f"{self.page}: no screen of {self.command!r} with {self.until!r}")
        if self.until:
            before, mark, after = shown.partition(self.until)
            line, _, omitted = after.partition("\n")
            shown = f"{before}{mark}{line}\n{CUT}{omitted.splitlines(keepends=True)[-1]}"
        return typed + shown.rstrip("\n") + "\n"

    def file(self, theme: str) -> Path:
        return PICTURES / f"{self.name}-{theme}.svg"


ALL = (
    Picture(
        "rejected",
        "checks.md",
        "gpuipc-doctor check --all --simulate nvidia-460.32.03",
        "a simulated node: its driver has a known bug",
        until="which is known to be good",
    ),
    Picture(
        "accepted",
        "checks.md",
        "gpuipc-doctor check --all --simulate nvidia-450.102.04",
        "a simulated node: the driver before",
    ),
    Picture(
        "job",
        "pytorch-job.md",
        "gpuipc-doctor job --pid 4711 --save stuck.json",
        "a job of PyTorch with a planted fault",
    ),
    Picture("h200", "pictures/h200.txt", "gpuipc-doctor check --all", "two NVIDIA H200, 28 November 2026"),
)

THEMES = {
    "light": ("#ffffff", "#1f2328", "#cf222e", "#1a7f37", "#9a6700", "#8250df", "#6e7781"),
    "dark": ("#0d1117", "#e6edf3", "#ff7b72", "#3fb950", "#d29922", "#d2a8ff", "#8b949e"),
}
"""Colours of background, text, FAIL, PASS, WARN, ERROR and of what is quiet."""

STYLES = {
    "bold color(1)": r"^(REJECT|FAIL)\b|exit 12$",
    "color(2)": r"^(ACCEPT|PASS)\b|exit 0$",
    "color(3)": r"^SIMULATED.*tested$",
    "bold": r"^\$ .*$",
    "color(7)": r"^SKIP\b|^…$",
}

FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace }}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own format names a host that fonts are fetched from."""


def drawn(picture: Picture, theme: str) -> str:
    """The picture as SVG."""
    back, text, red, green, yellow, purple, quiet = (_rgb(colour) for colour in THEMES[theme])
    normal = [back, red, green, yellow, text, purple, text, quiet]
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="256")
    lines = Text(picture.screen().rstrip("\n"))
    for style, pattern in STYLES.items():
        lines.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console.print(lines, highlight=False, soft_wrap=True)
    colours = TerminalTheme(back, text, normal, normal)
    svg = console.export_svg(title=picture.title, theme=colours, code_format=FORMAT, unique_id="t")
    svg = svg.replace("rgba(255,255,255,0.35)", THEMES[theme][-1])  # the frame, invisible on white
    return "\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n"


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


PIECE = re.compile(r'<text class="t-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>')
COLUMN, LINE = 12.2, 24.4
"""Width of a character and distance of two lines in rich's pictures."""


def text_of(svg: str) -> str:
    """The lines that a picture shows."""
    rows = defaultdict[int, str](str)
    for x, y, said in PIECE.findall(svg):
        row = int(float(y) / LINE)
        rows[row] = rows[row].ljust(round(float(x) / COLUMN)) + html.unescape(said).replace("\xa0", " ")
    return "".join(f"{rows[row].rstrip()}\n" for row in range(max(rows) + 1))


if __name__ == "__main__":
    for picture in ALL:
        for theme in THEMES:
            picture.file(theme).write_text(drawn(picture, theme))
