"""Golden files: output that a person has approved; a change must be approved again.

``check("matrix/one-device.txt", text)`` compares with ``tests/golden/matrix/one-device.txt``. With
``GPUIPC_UPDATE_GOLDEN=1`` the file is written instead, and the test still fails if that changed anything, so
that a forgotten variable cannot make a run pass: read ``git diff``, then run without it.
"""

import difflib
import os
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).with_suffix("")


def check(name: str, text: str) -> None:
    """Fail, showing the difference, unless the golden file ``name`` contains ``text``."""
    assert "/pytest-of-" not in text, f"a path of this run is in what {name} would hold:\n{text}"
    path = DIRECTORY / name
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    if text == golden:
        return
    if os.environ.get("GPUIPC_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was updated; look at it with git diff", pytrace=False)
    lines = difflib.unified_diff(
        golden.splitlines(), text.splitlines(), f"golden/{name}", "this run", lineterm=""
    )
    pytest.fail("\n".join([*lines, "update with GPUIPC_UPDATE_GOLDEN=1"]), pytrace=False)
