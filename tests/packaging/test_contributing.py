"""The steps of CONTRIBUTING.md's "A check, in ten minutes", executed in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

SECTION = re.search(
    r"^## A check, in ten minutes\n(.*?)^## ", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.DOTALL | re.M
)

pytestmark = [pytest.mark.cuda, pytest.mark.hip, pytest.mark.xdist_group("contributing")]


class Tree:
    """A copy of the files that git would commit, with the section's files written into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.check_output(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=REPOSITORY, text=True
        )
        for name in filter(None, listed.split("\0")):
            if (REPOSITORY / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, root / name)
        # As mapped in pyproject.toml; an editable installation of the original must not be found first.
        (root / "gpuipc_doctor/checks").symlink_to(root / "checks")
        (root / "gpuipc_doctor/site_configs").symlink_to(root / "site-configs")
        self.new = re.findall(r"`([a-z_/]+\.py)`:\n\n```python\n(.*?)```", section(), re.DOTALL)
        for name, code in self.new:
            (root / name).write_text(code)

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "COLUMNS": "80"},
            capture_output=True,
            text=True,
        )

    def doctor(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("gpuipc_doctor.cli.main", *arguments)


def section() -> str:
    assert SECTION
    return SECTION[1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("copy"))


def commands() -> list[str]:
    """The section's commands, in order, without comments."""
    blocks = re.findall(r"```console\n(.*?)```", section(), re.DOTALL)
    return [line[2:].partition(" #")[0].rstrip() for block in blocks for line in block.splitlines()]


def test_every_command_of_the_section_is_tested() -> None:
    assert commands() == [
        "gpuipc-doctor list",
        "gpuipc-doctor check ipc-write-back --simulate healthy-both",
        "gpuipc-doctor check ipc-write-back --simulate hang-ipc-open",
        "gpuipc-doctor check ipc-write-back",
        "gpuipc-doctor drill mapping-loses-writes --check ipc-write-back --update",
        "gpuipc-doctor drill --check ipc-write-back --update",
        "git diff gpuipc_doctor/simulator/profiles",
        "GPUIPC_UPDATE_GOLDEN=1 pytest tests/e2e/test_readme.py -m ''",
        "make test",
    ]


@pytest.mark.full
def test_the_new_check_is_found_and_works_as_described(tree: Tree) -> None:
    assert [name for name, _ in tree.new] == [
        "checks/ipc_write_back.py",
        "tests/checks/test_ipc_write_back.py",
    ]
    assert "ipc-write-back" in tree.doctor("list").stdout
    healthy = tree.doctor("check", "ipc-write-back", "--simulate", "healthy-both")
    assert re.search(r"ipc-write-back +PASS +PASS +PASS +PASS", healthy.stdout), healthy
    assert healthy.returncode == 0
    hung = tree.doctor("check", "ipc-write-back", "--simulate", "hang-ipc-open", "--deadline", "2")
    assert re.search(r"cuIpcOpenMemHandle #2 hung .*\n +this call: round 1\n", hung.stdout), hung
    assert hung.returncode == 12


@pytest.mark.full
def test_drill_passes_with_the_checks_expected_findings_added(tree: Tree) -> None:
    """On three nodes; on all of them the drill takes six minutes."""
    profile = tree.root / "gpuipc_doctor/simulator/profiles/mapping-loses-writes.yaml"
    nodes = (profile.stem, "hang-ipc-open", "healthy-both")
    stated = profile.read_text()
    try:
        update = tree.doctor("drill", *nodes, "--check", "ipc-write-back", "--update")
        assert "INVENTED  mapping-loses-writes on cuda: ipc-write-back FAIL" in update.stdout
        assert update.returncode == 0, update.stdout + update.stderr
        assert "{check: ipc-write-back, status: FAIL, key: lost}" in profile.read_text()
        after = tree.doctor("drill", *nodes, "--check", "ipc-write-back")
        assert after.returncode == 0, after.stdout
    finally:
        profile.write_text(stated)


@pytest.mark.full
def test_the_tests_still_pass(tree: Tree) -> None:
    tests = ("tests/checks/test_ipc_write_back.py", "tests/unit/run", "tests/unit/cli")
    ran = tree.run("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.full
def test_the_screens_are_drawn_with_the_new_row(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    screens = ("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/e2e/test_readme.py")
    monkeypatch.setenv("GPUIPC_UPDATE_GOLDEN", "1")
    tree.run(*screens)
    monkeypatch.delenv("GPUIPC_UPDATE_GOLDEN")
    assert "ipc-write-back" in (tree.root / "docs/checks.md").read_text()
    ran = tree.run(*screens)
    assert ran.returncode == 0, ran.stdout
