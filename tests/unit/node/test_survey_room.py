"""Whose is the memory of a GPU that is full?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor.model import Tier
from gpuipc_doctor.node import survey_room
from gpuipc_doctor.node.memory_usage import Holder, Room
from gpuipc_doctor.report import sentences
from gpuipc_doctor.run import room
from gpuipc_doctor.worker.nvml import GpuMemory

MIB, TOTAL = 1 << 20, 142336 << 20
STAT = "{} (train) S {} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 0 0"
UVM = "7f0000000000-7f{:06x}0000 rw-s 00000000 00:06 500 /dev/nvidia-uvm\n"


def look(
    root: Path,
    held: Mapping[int, int | None] | None,
    *,
    used: int = 142286 * MIB,
    maps: str | None = "",
    drawing: Mapping[int, int] | None = None,
    has_reservation: bool = False,
    sees_all: bool = True,
) -> Room:
    """What the survey tells of a GPU with 50 MiB free; ``held``: its processes → bytes."""
    for pid in [*(held or ()), *(drawing or ())]:
        proc = root / "proc" / str(pid)
        proc.mkdir(parents=True)
        (proc / "stat").write_text(STAT.format(pid, 1))
        if maps is not None:
            (proc / "maps").write_text(maps)
    nvml: Any = SimpleNamespace(
        memory=lambda _: GpuMemory(TOTAL, used, 50 * MIB, has_reservation),
        pci=lambda _: "0000:11:00.0",
        processes=lambda _, kind="Compute": (
            None if held is None else list((held if kind == "Compute" else drawing or {}).items())
        ),
    )
    params = {"root": str(root), "names": False, "sees_all": sees_all}
    w: Any = SimpleNamespace(params={"rooms": params}, armed=lambda _: contextlib.nullcontext())
    (found,) = survey_room._room(w, nvml, None)
    return found


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ({"held": {4711: 16 << 30}}, "memory-lost"),
        ({"held": {4711: 16 << 30}, "maps": UVM.format(0x200000)}, "no-room"),  # 128 GiB of managed memory
        ({"held": {4711: 16 << 30}, "maps": UVM.format(0x2)}, "memory-lost"),  # 128 KiB, as each program has
        ({"held": {4711: 16 << 30}, "maps": None}, "no-room"),  # of another user
        ({"held": {4711: 142200 * MIB}}, "no-room"),
        ({"held": {4711: 142200 * MIB}, "maps": None}, "no-room: process 4711"),
        ({"held": {4711: 16 << 30}, "maps": None}, "no-room: not all processes"),
        ({"held": {4711: 142286 * MIB, 4712: None}}, "no-room"),
        ({"held": {4711: (1 << 64) - 1}}, "no-room: not all processes"),  # garbage
        ({"held": {}}, "memory-lost"),
        ({"held": {}, "drawing": {1200: 142286 * MIB}}, "no-room"),  # an X server
        ({"held": {}, "has_reservation": True}, "no-room"),  # a driver before 510
        ({"held": None}, "no-room"),
        ({"held": {}, "used": 600 * MIB}, "no-room"),  # neither used nor free: it explains nothing
    ],
)
def test_memory_is_lost_only_if_no_living_process_may_have_it(
    tmp_path: Path, told: dict[str, Any], key: str
) -> None:
    finding = room.judge(look(tmp_path, **told))
    assert finding
    key, _, says = key.partition(": ")
    assert finding.key == key
    assert says in sentences.summary(finding)
    before_job = room.judge(look(tmp_path / "2", **told), Tier.PROLOG)
    assert before_job
    assert (before_job.key, before_job.status.value) == (key, "ERROR")


def test_process_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    reaped = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(reaped, 0)
    holder = survey_room.holder_of(tmp_path, reaped, 5, False)
    assert not holder.is_alive
    assert survey_room.holder_of(tmp_path, os.getpid(), 5, False).is_alive


def test_small_gpu_needs_less_room() -> None:
    assert room.judge(Room("", 4 << 30, 300 * MIB)) is None
    assert room.judge(Room("", 4 << 30, 200 * MIB, holders=(Holder(1, 3 << 30),)))


@pytest.mark.parametrize(("hiding", "key"), [("", "memory-lost"), ("a container", "no-room")])
def test_memory_is_not_lost_where_processes_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hiding: str, key: str
) -> None:
    monkeypatch.setattr(survey_room.rights, "hiding", lambda: hiding)
    finding = room.judge(look(tmp_path, {}, sees_all=False))
    assert finding
    assert (finding.key, hiding in sentences.summary(finding)) == (key, True)
