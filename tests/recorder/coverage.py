"""What programs call, and whether the checks try it: tables of classes, and the page that is made of them.

``python3 -m tests.recorder.coverage programs DIRECTORY`` puts the ``*.classes`` that ``record_programs.sh``
or ``record_mpi_programs.sh`` has written there into ``programs.tsv``; ``checks FILE [FILE]`` puts the classes
of the checks into ``checks.tsv``, those of the second file as the soak tier's; without arguments it writes
the page ``docs/coverage.md``. Only rows of the libraries whose calls are in the files are replaced.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuipc_doctor.files import yamlfile

HERE = Path(__file__).parent
PROGRAMS, CHECKS, NOT_TRIED = HERE / "programs.tsv", HERE / "checks.tsv", HERE / "not_tried.yaml"
MPI = "MPI_"
"""What calls of MPI begin with."""

EXHAUSTIVE, VARIED = "mpi4py-tests", ("type", "bytes", "count", "operation", "from", "to", "memory")
"""A program that calls each function with each type and size: these count where another program has them."""

PAGE = HERE.parents[1] / "docs" / "coverage.md"
DRAWN = HERE.parent / "fixtures" / "drawn.yaml"
"""Faults of thirty classes that were drawn, and whether a check finds them."""

Class = tuple[str, str]
"""A call and one of its properties (``stream=default``), or nothing: the call itself."""


def classes(lines: Iterable[str]) -> set[Class]:
    """The classes in recorded lines, each of a call with all its properties; MPI_Send_c is MPI_Send."""
    calls = ((words[0].removesuffix("_c"), words[1:]) for words in map(str.split, lines) if words)
    return {(call, each) for call, properties in calls for each in ("", *properties)}


def of_programs() -> dict[Class, list[str]]:
    """Class → programs that use it."""
    rows = [line.split("\t") for line in PROGRAMS.read_text().splitlines()]
    return {(call, each): users.split() for call, each, users in rows}


def of_checks() -> dict[Class, str]:
    """Class that checks try → "soak" if only the soak tier does, else nothing."""
    rows = (line.split("\t") for line in CHECKS.read_text().splitlines())
    return {(call, each): tier for call, each, tier in rows}


def untried(programs: Mapping[Class, list[str]], tried: Mapping[Class, str]) -> list[str]:
    """Classes that two programs use and acceptance does not try, or one MPI program and soak does not."""
    missing = (
        (call, each)
        for (call, each), users in programs.items()
        if (
            tried.get((call, each)) != ""
            if len(users) > 1
            else call.startswith(MPI) and (call, each) not in tried
        )
    )
    return [f"{call} {each}" for call, each in missing]


def page(programs: Mapping[Class, list[str]], tried: Mapping[Class, str], reasons: Mapping[str, str]) -> str:
    """The page: values of each call's properties, and how many programs use each; untried ones in italics."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (call, each), users in sorted(programs.items()):
        name, _, value = each.partition("=")
        mark = "" if (call, each) in tried else "*"
        soak = " soak" if tried.get((call, each)) else ""
        rows[call, name if value else ""].append(f"{mark}{value or name or call} {len(users)}{soak}{mark}")
    known = {call for call, _ in tried}
    shown = {
        (call, name): f"| {call} | {name} | {', '.join(found)} |"
        for (call, name), found in rows.items()
        if call in known and (name or found[0].startswith("*"))
    }
    head = ("", "| call | property | values |", "|---|---|---|")
    lines = [
        "# What programs call, and what is tried",
        "",
        f"Recorded on one H200 and on two under {len(names(programs, of_mpi=False))} programs "
        "of PyTorch 2.11 and CuPy 14.2",
        "(`tests/recorder/programs/`), and under `check --all` there and on a simulated node with two GPUs.",
        "After each value stands the number of programs that use it; *in italics* what no check tries.",
        "Sizes, numbers of blocks and the like are classes: `<=64K` is more than 4 KiB and at most 64.",
        "`vmm+` is inside a mapping, not at its beginning; `legacy` is memory of cuMemAlloc.",
        *head,
        *(row for (call, _), row in shown.items() if not call.startswith(MPI)),
        "",
        "## MPI",
        "",
        f"Recorded on CPUs under {', '.join(names(programs, of_mpi=True))},",
        "with MPICH 5.0.2 and 4.3.2 and Open MPI 5.0.11 (`tests/recorder/record_mpi_programs.sh`), and under",
        "the MPI checks with MPICH 5.0.2. `soak`: only the soak tier tries it. mpi4py's tests call each",
        "function with each type, operation and size: these count only where another program has them.",
        *head,
        *(row for (call, _), row in shown.items() if call.startswith(MPI)),
        "",
        *of_drawn(yamlfile.read(DRAWN, None).data),
        "",
        "## Why not",
        "",
        *(f"- `{pattern}`: {reason}" for pattern, reason in reasons.items()),
        "",
    ]
    return "\n".join(lines)


def of_drawn(drawn: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What became of the faults of drawn classes."""
    missed = {name: stated["why"] for name, stated in drawn.items() if "why" in stated}
    mended = [name for name, stated in drawn.items() if "before" in stated]
    found = len(drawn) - len(missed)
    return [
        "## Faults of drawn classes",
        "",
        f"{len(drawn)} of these classes were drawn, and a fault of each written before any was run",
        f"(`tests/fixtures/drawn.yaml`): {found - len(mended)} were found, {found} are found now.",
        "",
        f"- found since a row was added: {', '.join(f'`{name}`' for name in mended)}",
        *(f"- not found: `{name}`: {why}" for name, why in missed.items()),
    ]


def names(programs: Mapping[Class, list[str]], *, of_mpi: bool) -> list[str]:
    """The programs that call MPI, or those that call the other libraries."""
    return sorted(
        {user for (call, _), by in programs.items() if call.startswith(MPI) is of_mpi for user in by}
    )


def replace(table: Path, new: Mapping[Class, str]) -> None:
    """Put rows into a table in place of those of the same libraries."""
    of_mpi = {call.startswith(MPI) for call, _ in new}
    kept = [line for line in table.read_text().splitlines() if line.startswith(MPI) not in of_mpi]
    rows = [f"{call}\t{each}\t{value}" for (call, each), value in new.items()]
    table.write_text("".join(f"{line}\n" for line in sorted([*kept, *rows])))


def main(arguments: list[str]) -> None:
    """Make a table, or the page."""
    match arguments:
        case ["programs", directory]:
            users = defaultdict(list)
            for path in sorted(Path(directory).glob("*.classes")):
                for found in sorted(classes(path.read_text().splitlines())):
                    users[found].append(path.stem)
            rows = {
                found: " ".join(by)
                for found, by in users.items()
                if by != [EXHAUSTIVE] or found[1].partition("=")[0] not in VARIED
            }
            replace(PROGRAMS, rows)
        case ["checks", *paths]:
            tiers = [classes(Path(path).read_text().splitlines()) for path in paths]
            replace(CHECKS, {**dict.fromkeys(tiers[-1], "soak"), **dict.fromkeys(tiers[0], "")})
        case _:
            reasons = yamlfile.read(NOT_TRIED, None).data
            PAGE.write_text(page(of_programs(), of_checks(), reasons))


if __name__ == "__main__":
    main(sys.argv[1:])
