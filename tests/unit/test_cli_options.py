"""Where a simulated node's memory goes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from gpuipc_doctor.cli import options


@pytest.mark.parametrize(("free_bytes", "in_shared_memory"), [(64 << 20, False), (2 << 30, True)])
def test_a_simulated_node_is_in_shared_memory_where_that_is_roomy(
    free_bytes: int, in_shared_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, temporary = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(options, "SHARED_MEMORY", shared)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    usage = shutil.disk_usage(shared)._replace(free=free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with options.node("healthy-single") as (_, [state]):
        assert state.parent == (shared if in_shared_memory else temporary)
    assert not state.exists()
