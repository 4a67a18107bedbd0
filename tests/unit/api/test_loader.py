"""Check files are identified by their whole path."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import LoadedCheck

CHECK = """
from gpuipc_doctor.api import Check
class Ours(Check):
    id, title = "{id}", "ours"
    def probes(self, ctx):
        return []
    def judge(self, done):
        return []
CHECK = Ours()
"""


def test_files_whose_names_differ_only_in_punctuation_are_distinct(tmp_path: Path) -> None:
    ids = {
        "my-check.py": "x-one",
        "my_check.py": "x-two",
        "my.check.py": "x-three",
        "my_2d_check.py": "x-four",
    }
    for name, id_ in ids.items():
        (tmp_path / name).write_text(CHECK.format(id=id_))
    loaded = [item for item in loader.load([tmp_path]) if item.file.parent == tmp_path]
    found = {item.file.name: item.check.id for item in loaded if isinstance(item, loader.LoadedCheck)}
    assert found == ids
    assert all(loader.module(file).__name__.isidentifier() for file in tmp_path.iterdir() if file.is_file())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n\nimport json\njson.loads('{')\n", ":4: JSONDecodeError: "),  # our line, not json's
        ("x = 1\ny = (\n", ":2: SyntaxError: '(' was never closed"),
        ("x = 1\nraise SystemExit('no')\n", ":2: SystemExit: no"),
        ("x = '\0'\n", ":1: "),  # Python reports no line for it
        ("x = 1\n", ": defines no CHECK = YourCheck()"),
    ],
)
def test_broken_check_file_is_reported_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "own_check.py"
    file.write_text(text)
    broken = loader.load_file(file)
    assert isinstance(broken, loader.BrokenCheck)
    assert broken.id == "own-check"
    assert broken.reason.startswith(f"{file}{says}")


def test_checks_that_the_package_names_are_built_in() -> None:
    loaded = {item.check.id: item.file for item in loader.load() if isinstance(item, LoadedCheck)}
    assert {(id_, loader.built_in_file(id_)) for id_ in surveys.PROBES} <= set(loaded.items())
    assert loader.VERSIONS in loaded
