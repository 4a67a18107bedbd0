"""The screens of README.md and docs/ equal the commands' output; GPUIPC_UPDATE_GOLDEN=1 redraws them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gpuipc_doctor.model import Exit
from gpuipc_doctor.report import comparison, exits
from ship import pictures
from tests.e2e.conftest import full
from tests.e2e.test_acceptance import matches
from tests.waiting import LIMIT_S

REPOSITORY = Path(__file__).parent.parent.parent
TYPED_ELSEWHERE = {"acceptance.md", "logs.md", "pytorch-job.md", "stuck-job.md"}  # each has its own test
PAGES = [
    REPOSITORY / "README.md",
    *(page for page in sorted((REPOSITORY / "docs").glob("*.md")) if page.name not in TYPED_ELSEWHERE),
]

BLOCK = re.compile(r"```console\n\$ gpuipc-doctor (?P<arguments>.*)\n(?P<screen>(?:.*\n)*?)```")

PASSING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "2026-11-20 12:00:00"),
    (re.compile(r"\b\d+\.\d s ·"), "3.2 s ·"),
    (re.compile(r"\bof uid \d+\b"), "of uid 0"),
    (re.compile(r"((?:caught|invented).* {2,})\d+\.\d$", re.MULTILINE), r"\g<1>2.0"),
    (re.compile(r"drills in \d+ s"), "drills in 30 s"),
    (re.compile(r"(3\.2 s · 2026-11-20 12:00:00) ·\n  (gpuipc-doctor \S+)$", re.MULTILINE), r"\1 · \2"),
)
"""Text that differs between runs, and its replacement in the pages. A run of 100 s wraps its head."""


CUT = "…\n"
"""A line that stands for omitted lines."""


def screens() -> list[tuple[Path, str]]:
    return [(page, match["arguments"]) for page in PAGES for match in BLOCK.finditer(page.read_text())]


REPORTS = {"before.json": "nvidia-450.102.04", "after.json": "nvidia-460.32.03"}
"""The reports that the pages' commands read, and their profiles."""


def takes_long(arguments: str) -> bool:
    if arguments in {picture.command.removeprefix("gpuipc-doctor ") for picture in pictures.ALL}:
        return False
    is_long = arguments.startswith("drill") or "check --all" in arguments
    return is_long or any(name in arguments for name in REPORTS)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """``commands(arguments)`` → the command's output, run in a directory that has the reports it needs."""
    directory = tmp_path_factory.mktemp("readme")

    @cache
    def while_reporting(name: str) -> str:
        if name == "after.json":
            while_reporting("before.json")  # made later, `compare` would say so
        return printed(f"check --all --simulate {REPORTS[name]} --output {name}", directory)

    def run(arguments: str) -> str:
        for name, profile in REPORTS.items():
            if arguments == f"check --all --simulate {profile}":
                return while_reporting(name)
            if name in arguments:
                while_reporting(name)
        return printed(arguments, directory)

    return run


def printed(arguments: str, directory: Path) -> str:
    command = [sys.executable, "-m", "gpuipc_doctor.cli.main", *shlex.split(arguments)]
    if arguments.startswith("check "):
        command += ["--budget", "3600"]  # on a busy machine, reruns do not fit into the usual one
    environment = {**os.environ, "COLUMNS": "80"}
    ended = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, env=environment
    )
    assert ended.stderr == ""
    text = ended.stdout
    for pattern, instead in PASSING:
        text = pattern.sub(instead, text)
    return text if text.endswith("\n") else text + "\n"


@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize(
    ("page", "arguments"),
    [
        pytest.param(
            *found,
            id=f"{found[0].name}: {found[1]}",
            # Up to a minute of processor time; tests/golden has these screens of few checks.
            marks=[pytest.mark.full] if takes_long(found[1]) else [],
        )
        for found in screens()
    ],
)
def test_screen_equals_the_output(page: Path, arguments: str, commands: Callable[[str], str]) -> None:
    """A line ``…`` stands for omitted lines; a screen without it is compared as a whole."""
    text = page.read_text()
    [shown] = [match["screen"] for match in BLOCK.finditer(text) if match["arguments"] == arguments]
    now = commands(arguments)
    same = matches(shown.splitlines(), now) if CUT in shown else now == shown
    if not same and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        typed = f"$ gpuipc-doctor {arguments}\n"
        page.write_text(text.replace(f"{typed}{shown}```", f"{typed}{redrawn(shown, now)}```"))
        pytest.fail(f"{page.name} was updated; look at it with git diff", pytrace=False)
    assert same, now


def redrawn(shown: str, now: str) -> str:
    """The new screen; of one with omitted lines only the end, because the author chooses the rest."""
    before, cut, end = shown.rpartition(CUT)
    return before + cut + "".join(now.splitlines(keepends=True)[-len(end.splitlines()) :]) if cut else now


@pytest.mark.parametrize("theme", pictures.THEMES)
@pytest.mark.parametrize("picture", pictures.ALL, ids=lambda picture: picture.name)
def test_picture_shows_the_screen_of_its_page(picture: pictures.Picture, theme: str) -> None:
    """`make pictures` redraws it, too."""
    svg = picture.file(theme).read_text()
    if pictures.text_of(svg) != picture.screen() and os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        picture.file(theme).write_text(pictures.drawn(picture, theme))
        pytest.fail(f"{picture.file(theme).name} was updated; look at it", pytrace=False)
    assert pictures.text_of(svg) == picture.screen()
    assert len(svg.encode()) <= 60_000
    assert re.findall(r"https?:[^\"]*", svg) == ["http://www.w3.org/2000/svg"]  # nothing is fetched


def test_every_picture_has_both_colours_and_says_what_it_shows() -> None:
    blocks = [
        (page, block)
        for page in PAGES
        for block in re.findall(r"<picture>.*?</picture>", page.read_text(), re.DOTALL)
    ]
    assert len(blocks) >= 4
    for page, block in blocks:
        named = re.search(r'srcset="(\S+)-dark.svg">\n.* src="(\S+)-light.svg" .*alt="([^"]{40,})"', block)
        assert named, block
        assert named[1] == named[2]
        assert all((page.parent / f"{named[1]}-{theme}.svg").exists() for theme in pictures.THEMES)


@pytest.mark.parametrize(
    ("page", "meanings"),
    [
        ("README.md", exits.MEANINGS),
        ("docs/commands.md", exits.MEANINGS),
        ("docs/skill/SKILL.md", exits.MEANINGS),
        ("docs/upgrade.md", comparison.MEANINGS),
    ],
)
def test_exit_codes_of_a_page_are_those_of_the_program(page: str, meanings: dict[Exit, str]) -> None:
    rows = [f"| {code:d} | {meaning} |" for code, meaning in meanings.items()]
    table = "\n".join(["| code | meaning |", "|---|---|", *rows, ""])
    assert f"\n{table}\n" in (REPOSITORY / page).read_text()


LINK = re.compile(r"\]\((?P<file>[^)#:]*)(?:#(?P<anchor>[^)]*))?\)")


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates for a page's headings, and those that the page sets itself."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(REPOSITORY / name for name in ("docs/acceptance.md", "benchmarks/README.md", "SECURITY.md"))],
    ids=lambda page: page.name,
)
def test_every_link_to_a_file_and_heading_is_valid(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = page.parent / link["file"] if link["file"] else page
        assert target.exists(), link[0]
        if link["anchor"] and target.suffix == ".md":
            assert link["anchor"] in anchors(target), link[0]


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_front_page_has_at_most_200_lines(page: str) -> None:
    assert len((REPOSITORY / page).read_text().splitlines()) <= 200


LOOKED_AT = "ipc-reopen --device cuda:0"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the script's checks before the upgrade."""
    directory = tmp_path_factory.mktemp("before")
    report = directory / "before.json"
    printed(f"check {LOOKED_AT} --simulate nvidia-450.102.04 --output {report}", directory)
    return report


@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize(
    ("profile", "code", "says"),
    [
        full("nvidia-450.102.04", 0, "accepted"),
        ("nvidia-460.32.03", 12, "not accepted"),
        full("no-devices", 3, "not accepted"),
    ],
)
def test_acceptance_script(tmp_path: Path, before: Path, profile: str, code: int, says: str) -> None:
    """Runs the script with a wrapper that makes `check` run few checks once, on a simulated node, and has the
    report say that these are all: a report of few checks is not accepted."""
    [script] = re.findall(r"```bash\n(.*?)```", (REPOSITORY / "docs/upgrade.md").read_text(), flags=re.DOTALL)
    assert "required=memory,collectives" in script
    script = script.replace("required=memory,collectives", "required=memory")  # there is no NCCL
    doctor = f"{sys.executable} -m gpuipc_doctor.cli.main"
    (tmp_path / "gpuipc-doctor").write_text(
        "#!/bin/bash\n"
        f'[ "$1" = compare ] && exec {doctor} "$@"\n'
        f'{doctor} check {LOOKED_AT} --simulate {profile} "${{@:5}}"\n'
        """code=$?; sed -i -E 's/"whole": ?false/"whole": true/' "${@: -1}"; exit $code\n"""
    )
    (tmp_path / "gpuipc-doctor").chmod(0o755)
    (tmp_path / "accept-node").write_text(script)
    command = ["bash", "accept-node", str(before), "after.json"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, env=environment
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.splitlines()[-1] == says
    assert ("**REJECT:**" in ended.stdout) == (code == 12)
