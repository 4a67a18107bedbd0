"""Each command on the pages exists, with the options that it is shown with; most pages' tests also run it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import click
import pytest

from gpuipc_doctor import knownissues
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.cli.seconds import CHECK_ALL_S
from gpuipc_doctor.knownissues.parse import components
from gpuipc_doctor.model import Tier
from gpuipc_doctor.run import check_files
from gpuipc_doctor.run.check_files import LoadedCheck

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs/skill/SKILL.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> Iterator[str]:
    """The lines of blocks that call the tool, without comments, redirections and what follows a pipe."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if found := re.match(r"(?:    |\$ )(?:\S*/)?gpuipc-doctor( .+)", line):
            yield re.split(r"   +|  +#| \(| [|>&;]|\)\s*$", found[1].strip())[0]


def parse(words: list[str]) -> None:
    """Parse a command line without running it. Raises `click.UsageError`."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        name, words = words[0], words[1:]
        if name in ("--version", "-h", "--help"):
            return
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"no command {name!r}"
        command = found
    command.make_parser(click.Context(command)).parse_args(list(words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_parse(page: Path) -> None:
    for line in commands(page.read_text()):
        try:
            parse(shlex.split(line, comments=True))
        except (click.UsageError, ValueError) as error:
            pytest.fail(f"{page.name}: gpuipc-doctor {line}: {error}")


def test_most_pages_have_commands_and_a_misspelt_option_fails() -> None:
    assert sum(bool(list(commands(page.read_text()))) for page in PAGES) >= 15
    with pytest.raises(click.UsageError):
        parse(["check", "--al"])


def test_entries_on_the_page_of_known_issues_are_without_mistakes(tmp_path: Path) -> None:
    page = (ROOT / "docs/known-issues-format.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    entries = [block for block in blocks if block.startswith("issues:") and "overrides" not in block]
    (needs,) = (block for block in blocks if block.startswith("needs:"))
    small = min(entries, key=len)
    assert len(entries) == 2
    with_needs = re.sub(r"    needs: .*\n", lambda _: indent(needs, "    "), small)
    for number, text in enumerate((*entries, with_needs)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        assert knownissues.lint([path], {"ipc-stale"}) == ()
    (listed,) = re.findall(r"^Components are (.*?)\.", page, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", listed)) == components()


def test_check_on_the_page_of_site_configs_loads(tmp_path: Path) -> None:
    (tmp_path / "copy_back.py").write_text(own_check())
    found = {item.file.name: item for item in check_files.load([tmp_path])}
    loaded = found["copy_back.py"]
    assert isinstance(loaded, LoadedCheck), loaded
    assert (loaded.check.id, loaded.check.tier) == ("copy-back", Tier.PROLOG)


def own_check() -> str:
    """The check on the page of site configs."""
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/site-config.md").read_text(), re.DOTALL)
    return str(text)


def test_seconds_of_check_all_are_those_of_the_measured_table() -> None:
    """`--help` has them from `CHECK_ALL_S`; the measured table, README and docs repeat them."""
    one, *_, eight = CHECK_ALL_S.values()
    said = ", ".join(f"{n} GPU{'s' * (n > 1)} {seconds}" for n, seconds in CHECK_ALL_S.items())
    assert f"README and docs say {said}:" in (ROOT / "benchmarks/README.md").read_text()
    assert f"{one} s with one H200, {eight} s with eight" in (ROOT / "README.md").read_text()
    assert f"(on H200s: {one} s for one, {eight} s for eight)" in (ROOT / "docs/commands.md").read_text()
