"""What programs call, and whether the checks try it: tables of classes, and the page that is made of them.

``python3 -m tests.recorder.coverage programs DIRECTORY`` makes ``programs.tsv`` of the ``*.classes`` that
``record_programs.sh`` has written there; ``checks FILE`` makes ``checks.tsv`` of the classes of the checks;
without arguments it writes the page ``docs/coverage.md``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuipc_doctor.files import yamlfile

HERE = Path(__file__).parent
PROGRAMS, CHECKS, NOT_TRIED = HERE / "programs.tsv", HERE / "checks.tsv", HERE / "not_tried.yaml"
PAGE = HERE.parents[1] / "docs" / "coverage.md"

Class = tuple[str, str]
"""A call and one of its properties (``stream=default``), or nothing: the call itself."""


def classes(lines: Iterable[str]) -> set[Class]:
    """The classes in recorded lines, each of a call with all its properties."""
    return {(words[0], each) for words in map(str.split, lines) if words for each in ("", *words[1:])}


def of_programs() -> dict[Class, list[str]]:
    """Class → programs that use it."""
    rows = [line.split("\t") for line in PROGRAMS.read_text().splitlines()]
    return {(call, each): users.split() for call, each, users in rows}


def of_checks() -> set[Class]:
    """Classes that checks try."""
    return {(call, each) for call, each in (line.split("\t") for line in CHECKS.read_text().splitlines())}


def page(programs: Mapping[Class, list[str]], tried: set[Class], reasons: Mapping[str, str]) -> str:
    """The page: values of each call's properties, and how many programs use each; untried ones in italics."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (call, each), users in sorted(programs.items()):
        name, _, value = each.partition("=")
        mark = "" if (call, each) in tried else "*"
        rows[call, name if value else ""].append(f"{mark}{value or name or call} {len(users)}{mark}")
    known = {call for call, _ in tried}
    lines = [
        "# What programs call, and what is tried",
        "",
        f"Recorded on one H200 under {len({user for users in programs.values() for user in users})} programs "
        "of PyTorch 2.11 and CuPy 14.2",
        "(`tests/recorder/programs/`), and under `check --all` on a simulated node with two GPUs.",
        "After each value stands the number of programs that use it; *in italics* what no check tries.",
        "Sizes, numbers of blocks and the like are classes: `<=64K` is more than 4 KiB and at most 64.",
        "`vmm+` is inside a mapping, not at its beginning; `legacy` is memory of cuMemAlloc.",
        "",
        "| call | property | values |",
        "|---|---|---|",
        *(
            f"| {call} | {name} | {', '.join(found)} |"
            for (call, name), found in rows.items()
            if call in known and (name or found[0].startswith("*"))
        ),
        "",
        "## Why not",
        "",
        *(f"- `{pattern}`: {reason}" for pattern, reason in reasons.items()),
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Make a table, or the page."""
    match arguments:
        case ["programs", directory]:
            users = defaultdict(list)
            for path in sorted(Path(directory).glob("*.classes")):
                for found in sorted(classes(path.read_text().splitlines())):
                    users[found].append(path.stem)
            rows = (f"{call}\t{each}\t{' '.join(by)}\n" for (call, each), by in sorted(users.items()))
            PROGRAMS.write_text("".join(rows))
        case ["checks", path]:
            found = sorted(classes(Path(path).read_text().splitlines()))
            CHECKS.write_text("".join(f"{call}\t{each}\n" for call, each in found))
        case _:
            reasons = yamlfile.read(NOT_TRIED, None).data
            PAGE.write_text(page(of_programs(), of_checks(), reasons))


if __name__ == "__main__":
    main(sys.argv[1:])
