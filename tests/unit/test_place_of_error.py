"""Where a check's own code failed."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from gpuipc_doctor.log_lines import place_of_error


def printed(source: str, file: Path) -> str:
    try:
        exec(compile(source, str(file), "exec"), {"json": json})
    except Exception:
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize(
    "source", ["x = 1\nnone + x\n", "x = 1\njson.loads('{')\n"]
)  # the second ends in Python's code
def test_the_line_is_the_checks(tmp_path: Path, source: str) -> None:
    assert place_of_error(printed(source, tmp_path / "own.py")) == "own.py:2"


def test_no_frame_of_a_check_is_no_place() -> None:
    assert place_of_error('Traceback:\n  File "<string>", line 3, in f\n') == ""
