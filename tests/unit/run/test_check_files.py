"""A site's own check files: one that hangs or ends its process loses only its own row."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuipc_doctor.api.loader import BrokenCheck, LoadedCheck
from gpuipc_doctor.run import check_files

GOOD = """
from gpuipc_doctor.api import Check
class Ours(Check):
    id, title = "{id}", "ours"
    def probes(self, ctx):
        return []
    def judge(self, done):
        return []
CHECK = Ours()
"""

HOSTILE = {
    "import time; time.sleep(600)": "did not import within 5 s",
    "import os; os._exit(0)": "ended the process that imported the file",
    "import os; os.abort()": "ended the process that imported the file",
    "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)": "did not import within 5 s",
}


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_files, "DEADLINE_S", 5.0)


@pytest.mark.parametrize(("program", "reason"), HOSTILE.items(), ids=map(str, range(len(HOSTILE))))
def test_file_that_hangs_or_exits_is_reported_and_others_are_loaded(
    tmp_path: Path, program: str, reason: str
) -> None:
    (tmp_path / "a_first.py").write_text(GOOD.format(id="a-first"))
    (tmp_path / "b_hostile.py").write_text(program)
    (tmp_path / "c_last.py").write_text(GOOD.format(id="c-last"))
    started = time.monotonic()
    loaded = {item.file.name: item for item in check_files.load([tmp_path]) if item.file.parent == tmp_path}
    assert time.monotonic() - started < 60
    broken = loaded["b_hostile.py"]
    assert isinstance(broken, BrokenCheck)
    assert (broken.id, broken.reason) == ("b-hostile", f"{tmp_path / 'b_hostile.py'}: {reason}")
    assert all(isinstance(loaded[name], LoadedCheck) for name in ("a_first.py", "c_last.py"))


def test_file_that_raises_is_reported_by_the_loader(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("import nothing_of_that_name\n")
    (broken,) = (item for item in check_files.load([tmp_path]) if item.file.parent == tmp_path)
    assert isinstance(broken, BrokenCheck)
    assert "ModuleNotFoundError" in broken.reason


def test_no_process_is_started_without_site_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_files.subprocess, "Popen", None)
    assert all(isinstance(item, LoadedCheck) for item in check_files.load())
