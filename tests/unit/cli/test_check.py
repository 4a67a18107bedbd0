"""``gpuipc-doctor check``: output in addition to the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuipc_doctor.cli import check
from gpuipc_doctor.simulator import build, profile
from gpuipc_doctor.vendors import SUPPORTED
from tests.sample_reports import healthy


@pytest.mark.parametrize(
    ("absent", "shown"),
    [((), "healthy-both"), (("hip",), "healthy-cuda"), (("cuda",), "healthy-hip"), (("cuda", "hip"), "")],
)
def test_suggested_simulated_node_can_be_tested_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], absent: tuple[str, ...], shown: str
) -> None:
    for backend, vendor in SUPPORTED.items():
        binding = vendor.binding._replace(modules=("no_such_module" if backend in absent else "json",))
        monkeypatch.setitem(SUPPORTED, backend, replace(vendor, binding=binding))
    monkeypatch.setattr(build, "has_compiler", lambda: True)
    bare = replace(healthy(()), devices=(), probes_run=0)
    check._name_example(bare)
    said = capsys.readouterr().out
    assert said.endswith(f"--simulate {shown}`\n") if shown else not said
    assert not shown or shown in profile.names()
    monkeypatch.setattr(build, "has_compiler", lambda: False)
    check._name_example(bare)
    assert not capsys.readouterr().out
