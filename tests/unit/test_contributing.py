"""The paths that CONTRIBUTING.md and docs/architecture.md name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_named_places_exist_and_every_package_is_named() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where things are")[2]
    rows = re.findall(r"^\| (`.*`.*?) \| (.*) \|$", text, flags=re.MULTILINE)
    listed = {name for places, _ in rows for name in re.findall("`(.*?)`", places)}
    tests = {name for places, what in rows if places == "`tests/`" for name in re.findall("`(.*?/)`", what)}
    guide = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = set(re.findall(r"^([a-z]+(?:/[a-z]+)*/)  +\S", guide, flags=re.MULTILINE))
    named = {*listed, *rooms, *re.findall(r"`([a-z_/-]+(?:/|\.py|\.md|\.log|\.yaml))`", guide)}
    assert [n for n in named if not any((top / n).exists() for top in (ROOT, ROOT / "gpuipc_doctor"))] == []
    assert [name for name in tests if not list((ROOT / "tests" / name).glob("*"))] == []
    modules = [file.relative_to(ROOT / "gpuipc_doctor") for file in (ROOT / "gpuipc_doctor").glob("**/*.py")]
    folders = {f"{file.parent}/" for file in modules if file.parent.name}
    assert folders == rooms
    assert len(folders) <= 23


def test_wheel_has_every_package_and_data_file() -> None:
    tomllib = pytest.importorskip("tomllib")  # missing in Python 3.10
    with (ROOT / "pyproject.toml").open("rb") as file:
        stated = tomllib.load(file)["tool"]["setuptools"]
    here = {".".join(file.relative_to(ROOT).parts[:-1]) for file in ROOT.glob("gpuipc_doctor/**/*.py")}
    assert here - set(stated["packages"]) == set()
    data = [file for file in ROOT.glob("gpuipc_doctor/**/*") if file.suffix not in ("", ".py", ".pyc")]
    shipped = {
        file
        for package, patterns in stated["package-data"].items()
        for pattern in patterns
        for file in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    wanted = [file for file in data if file.is_file() and "__pycache__" not in file.parts]
    assert [file for file in wanted if file not in shipped] == []
