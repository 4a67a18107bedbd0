"""A run's parts execute in a fixed order: each runs once, and none changes data that an earlier one used."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuipc_doctor.cli import options
from gpuipc_doctor.cli.progress import Silent
from gpuipc_doctor.run import engine
from gpuipc_doctor.run.discovery import Discovery, Found
from gpuipc_doctor.run.engine import Run
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.run.stack_discovery import StackDiscovery
from gpuipc_doctor.site.config import load
from tests.e2e.test_prolog import AMPLE, FRESH, Site

IN_OPEN, IN_CLOSE = 0x20, 0x18
"""<sys/inotify.h>; close events separate two open events, which inotify would otherwise merge."""


def openings(file: Path, run: Callable[[], object]) -> int:
    """Number of times that any process opens the file while ``run`` runs."""
    libc, event = ctypes.CDLL(None), struct.Struct("iIII")
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(fd, bytes(file), IN_OPEN | IN_CLOSE) >= 0
        run()
        masks = [mask for _, mask, _, _ in event.iter_unpack(os.read(fd, 1 << 16))]
    finally:
        os.close(fd)
    return sum(bool(mask & IN_OPEN) for mask in masks)


@pytest.mark.cuda
def test_site_file_is_opened_once_for_a_prolog(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("healthy-cuda", FRESH)
    assert openings(site.config, lambda: site.prolog(*AMPLE, gpus="0")) == 1
    assert openings(site.config, lambda: site.prolog(gpus="0")) == 1  # answered from the state file


@pytest.mark.cuda
def test_each_part_of_a_run_is_called_once_and_the_config_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("node_types: {pair: {gpus: {count: 2}}, large: {gpus: {count: 8}}}\n")
    config, order = load(file), list[str]()

    def followed(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def call(self: Run | Discovery | StackDiscovery, *args: object, **more: object) -> object:
            order.append(name)
            result = real(self, *args, **more)
            assert self.planner.config is config  # facts on the node are passed on with the result
            if isinstance(result, Found):
                assert config.node_types
                assert not result.site.node_types
            return result

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (Discovery, "drivers"),
        (StackDiscovery, "stacks"),
        (Run, "collect_inventory"),
        (Run, "plan_probes"),
        (Run, "execute"),
    ):
        followed(owner, name)
    with options.node("healthy-cuda") as node:
        report = engine.run(Request(("driver-init",), backend="cuda"), config, node, Silent())
    assert order == ["drivers", "collect_inventory", "stacks", "plan_probes", "execute"]
    assert report.probes_run == 1
