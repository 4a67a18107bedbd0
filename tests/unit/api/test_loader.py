"""Check files are identified by their whole path."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuipc_doctor.api import loader
from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck

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


@pytest.mark.parametrize("supplies", ["devices", "mpi", "ranks"])
def test_survey_is_the_only_built_in_check_that_supplies_it(supplies: str) -> None:
    loaded = [item for item in loader.load() if isinstance(item, LoadedCheck)]
    found = [(item.check.id, item.file) for item in loaded if item.check.supplies == supplies]
    assert found == [loader.survey(supplies)]


def test_every_survey_is_found_by_what_it_supplies() -> None:
    loaded = [item.check for item in loader.load() if isinstance(item, LoadedCheck)]
    assert {check.supplies for check in loaded} == {"", "devices", "mpi", "ranks"}


def test_check_of_a_site_cannot_be_a_survey(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    text = loader.survey("devices").file.read_text("utf-8")
    file.write_text(text.replace('id = "driver-init"', 'id = "own"'))
    item = loader.load_file(file)
    assert isinstance(item, BrokenCheck)
    assert item.reason == f"{file}: only a built-in check can supply 'devices'"
