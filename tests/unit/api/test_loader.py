"""Check files are told apart by their whole path."""

from __future__ import annotations

from pathlib import Path

from gpuipc_doctor.api import loader

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


def test_files_whose_names_differ_in_punctuation_alone_are_two(tmp_path: Path) -> None:
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
