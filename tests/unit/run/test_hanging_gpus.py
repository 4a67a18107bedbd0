"""GPUs with which initialising CUDA hangs are found, named and left out; the others are tested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Device, ProbeOutcome, loader
from gpuipc_doctor.model import Node
from gpuipc_doctor.probe_types import Ending, RoleOutcome
from gpuipc_doctor.run import conclusions
from gpuipc_doctor.run.conclusions import NotRun, not_started
from gpuipc_doctor.run.hanging_gpus import HangingGpus
from gpuipc_doctor.run.planner import PlannedProbe, Planner
from gpuipc_doctor.run.request import Request
from gpuipc_doctor.site.config import SiteConfig
from gpuipc_doctor.supervise.assignment import device_to_json
from tests.checks.judging import gpu

GPUS = [gpu(number) for number in range(4)]


class Driver:
    """Answers for workers: `hangs` says by visible entries and earlier ones whether initialising hangs, or
    its other ending, or (text) why the driver is unavailable; None if it is not started."""

    def __init__(self, root: Path, gpus: Sequence[Device], hangs: Callable[[list[str], list[str]], Any]):
        self.gpus, self.hangs, self.asked, self.told = gpus, hangs, list[str](), list[tuple[str, Any]]()
        self.kept = list[str]()
        self.pauses = 0
        session = SimpleNamespace(node=Node(root=str(root)))
        self.schedule = SimpleNamespace(session=session, until=time.monotonic() + 600)

    def run(self, probes: Sequence[PlannedProbe], *_: int, **__: float) -> dict[int, ProbeOutcome | NotRun]:
        return {planned.number: self.answer(planned) for planned in probes}

    def answer(self, planned: PlannedProbe) -> ProbeOutcome | NotRun:
        env = {**planned.probe.env, **self.schedule.session.node.env}
        entries = env["CUDA_VISIBLE_DEVICES"].split(",")
        if (hung := self.hangs(entries, self.asked)) is None:
            return not_started(OSError(1, "no"))
        self.asked.append(",".join(entries))
        seen = [one for entry in entries for one in self.gpus if entry in (one.uuid, str(one.index))]
        labels = [f"cuda:{place}" for place in range(len(seen))]
        devices = [
            {**device_to_json(one), "index": place, "peers": [other for other in labels if other != own]}
            for place, (own, one) in enumerate(zip(labels, seen, strict=True))
        ]
        records = {} if hung else {"devices": devices, "traits": {label: {} for label in labels}}
        ending = hung if isinstance(hung, Ending) else Ending.HUNG if hung else Ending.COMPLETED
        if isinstance(hung, str):
            records = {"unavailable": hung, "remedy": "", "broken": True}
            ending = Ending.COMPLETED
        role = RoleOutcome("driver", ending, 7, operation="cuInit" if hung else "", records=records)
        blamed = "driver" if ending not in (Ending.COMPLETED, Ending.STOPPED) else None
        stopped = "interrupted" if ending is Ending.STOPPED else ""
        return ProbeOutcome(
            planned.probe.name, (), planned.probe.params, {"driver": role}, blamed, 1.0, stopped=stopped
        )

    def keep(self, _: Any, probes: Sequence[PlannedProbe], ended: Any) -> None:
        for planned in probes:
            one = ended[planned.number]
            (found,) = [one.finding] if isinstance(one, NotRun) else conclusions.conclude(planned, one)
            self.kept.append(f"{planned.probe.name}: {found.status.name}")

    def tell(self, _: Any, *findings: Any) -> None:
        self.told += [(finding.key, finding.values["gpus"]) for finding in findings]

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pauses += 1
        yield


def ask(
    root: Path, hangs: Any, gpus: Sequence[Device] = GPUS, *, uuids: bool = True
) -> tuple[Driver, Any, list[Any]]:
    """The fake driver, the `HangingGpus` with its result as `ended`, and the devices found without the
    hanging GPUs."""
    for place, one in enumerate(gpus):
        file = root / f"proc/driver/nvidia/gpus/{one.pci}/information"
        file.parent.mkdir(parents=True)
        uuid = one.uuid if uuids or place != 2 else "GPU-????????-????-????-????-????????????"
        file.write_text(f"Model: H100\nGPU UUID: {uuid}\nDevice Minor: {one.index}\n")
    driver = Driver(root, gpus, hangs)
    planner = Planner(Request(), SiteConfig())
    options = {"backends": ("cuda",), "required": False}
    _, (planned,) = planner.survey(loader.built_in_file(surveys.DRIVERS), options)
    found: Any = HangingGpus(planner, driver, driver)  # type: ignore[arg-type]
    found.ended = ended = found.ask_others(planned)
    return driver, found, ended.records["driver"].get("devices", []) if ended else []


@pytest.mark.parametrize("uuids", [True, False], ids=["by uuid", "without the hanging GPU's uuid"])
def test_hanging_gpu_is_left_out_and_others_keep_their_numbers(tmp_path: Path, uuids: bool) -> None:
    bad = {GPUS[2].uuid, "2"}
    driver, found, devices = ask(tmp_path, lambda entries, _: not bad.isdisjoint(entries), uuids=uuids)
    assert [device["index"] for device in devices] == [0, 1, 3]
    assert devices[2]["peers"] == ["cuda:0", "cuda:1"]
    assert driver.kept == [f"cuda, only {GPUS[2].pci}: FAIL"]
    assert driver.told == [("left-out", [f"cuda:2 ({GPUS[2].pci})"])]
    assert driver.pauses == 1
    named = [
        device.label for device in Request(devices=("cuda:2", "3")).select_devices(GPUS[3:], found.left_out)
    ]
    assert named == ["cuda:3"]


@pytest.mark.parametrize("bad", [[0], [0, 1]])
def test_gpu_that_waits_behind_a_hanging_one_is_tested(tmp_path: Path, bad: list[int]) -> None:
    hanging = {GPUS[place].uuid for place in bad}

    def hangs(entries: list[str], asked: list[str]) -> bool:
        return not hanging.isdisjoint([*entries, *asked[-1:]])  # the driver is busy with the one just killed

    driver, _, devices = ask(tmp_path, hangs)
    assert [device["index"] for device in devices] == [place for place in range(4) if place not in bad]
    assert driver.kept == [f"cuda, only {GPUS[place].pci}: FAIL" for place in bad]


def test_hang_that_is_not_repeated_stands(tmp_path: Path) -> None:
    bad = GPUS[1].uuid

    def hangs(entries: list[str], asked: list[str]) -> bool | None:
        return None if len(asked) >= 4 and entries == [bad] else bad in entries

    driver, found, devices = ask(tmp_path, hangs)
    assert [device["index"] for device in devices] == [0, 2, 3]
    assert driver.kept == [f"cuda, only {GPUS[1].pci}: FAIL"]
    assert [device.label for device in found.left_out] == ["cuda:1"]


@pytest.mark.parametrize("is_bad", [lambda entries: True, lambda entries: len(entries) > 1])
def test_driver_that_hangs_with_every_gpu_or_with_none_alone_stays_the_finding(
    tmp_path: Path, is_bad: Callable[[list[str]], bool]
) -> None:
    driver, found, devices = ask(tmp_path, lambda entries, _: is_bad(entries))
    assert (driver.kept, driver.told, found.left_out, devices) == ([], [], [], [])


def test_users_choice_of_gpus_is_asked_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0")
    driver, _, devices = ask(tmp_path, lambda entries, _: "1" in entries)
    assert [(device["index"], device["uuid"]) for device in devices] == [(0, GPUS[3].uuid), (2, GPUS[0].uuid)]
    assert driver.told == [("left-out", ["cuda:1 (CUDA_VISIBLE_DEVICES=1)"])]


@pytest.mark.parametrize(
    ("chosen", "others"),
    [
        ("0,1,-1,2", "0"),
        ("0,1,-2,2", "0"),
        ("0,1,,2", "0"),
        ("0,1,none,2", "0"),
        ("0,1,9,2", "0"),
        ("1,0,3,9,2", "0,3"),
        (" 1, 2 ,0,", "2,0"),
        ("0,0,1", None),
        ("0,00,1", None),
        ("0,1,-1,1", "0"),
        ("-1", None),
        ("", None),
        ("1,-1,0", None),
    ],
)
def test_gpus_that_the_user_hides_stay_hidden(
    tmp_path: Path, chosen: str, others: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    for number in range(4):
        device = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de")
        (device / "class").write_text("0x030200")
    driver, found, _ = ask(tmp_path, lambda entries, _: "1" in entries)
    assert (found.ended is not None) == (others is not None)
    assert driver.asked[-1:] == ([others] if others else [])


@pytest.mark.parametrize("ends", [None, Ending.STOPPED], ids=["not run", "stopped"])
@pytest.mark.parametrize("asked_before", [4, 5, 6], ids=["repetition", "repeated probe", "others"])
def test_seen_hang_is_kept_when_run_ends_before_others_answer(
    tmp_path: Path, ends: Ending | None, asked_before: int
) -> None:
    bad = GPUS[1].uuid

    def hangs(entries: list[str], asked: list[str]) -> Any:
        return bad in entries if len(asked) < asked_before else ends

    driver, found, devices = ask(tmp_path, hangs)
    assert (found.ended, devices) == (None, [])  # the caller keeps the hang
    assert driver.kept == [f"cuda, only {GPUS[1].pci}: FAIL"]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_alone_probe_that_cannot_be_killed_is_kept(tmp_path: Path, place: int) -> None:
    bad = GPUS[place].uuid

    def hangs(entries: list[str], asked: list[str]) -> Any:
        return None if bad in asked else Ending.UNKILLABLE if entries == [bad] else False

    driver, found, devices = ask(tmp_path, hangs)
    assert (found.ended, devices) == (None, [])
    assert driver.kept[0] == f"cuda, only {GPUS[place].pci}: FAIL"


def test_repeated_probe_that_cannot_be_killed_is_kept(tmp_path: Path) -> None:
    bad = GPUS[1].uuid

    def hangs(entries: list[str], asked: list[str]) -> Any:
        if asked.count(bad) > 1:
            return None
        return entries == [bad] and (Ending.UNKILLABLE if bad in asked else Ending.HUNG)

    driver, found, _ = ask(tmp_path, hangs)
    assert found.ended is None
    assert driver.kept == [f"cuda, only {GPUS[1].pci}: FAIL"]


@pytest.mark.parametrize(
    ("ends", "status"),
    [("cuInit returned 999", "ERROR"), (Ending.CRASHED, "FAIL"), (None, "ERROR")],
    ids=["unavailable", "crashed", "not run"],
)
def test_gpu_that_fails_alone_beside_a_hanging_one_is_left_out_with_its_answer(
    tmp_path: Path, ends: Any, status: str
) -> None:
    bad, broken = GPUS[1].uuid, GPUS[2].uuid

    def hangs(entries: list[str], _: list[str]) -> Any:
        return bad in entries or (ends if broken in entries else False)

    driver, found, devices = ask(tmp_path, hangs)
    assert [device["index"] for device in devices] == [0, 3]
    assert [device.label for device in found.left_out] == ["cuda:1", "cuda:2"]
    assert driver.kept == [f"cuda, only {GPUS[1].pci}: FAIL", f"cuda, only {GPUS[2].pci}: {status}"]


def test_gpu_that_is_unavailable_at_first_only_is_tested(tmp_path: Path) -> None:
    bad, slow = GPUS[1].uuid, GPUS[2].uuid

    def hangs(entries: list[str], asked: list[str]) -> Any:
        return bad in entries or ("cuInit returned 999" if slow in entries and slow not in asked else False)

    driver, _, devices = ask(tmp_path, hangs)
    assert [device["index"] for device in devices] == [0, 2, 3]
    assert driver.told == [("left-out", [f"cuda:1 ({GPUS[1].pci})"])]


def test_unavailable_gpu_does_not_explain_a_hang_of_all(tmp_path: Path) -> None:
    def hangs(entries: list[str], _: list[str]) -> Any:
        return len(entries) > 1 or ("cuInit returned 999" if entries == [GPUS[2].uuid] else False)

    driver, found, _ = ask(tmp_path, hangs)
    assert found.ended is None  # the caller keeps the hang
    assert driver.kept == [f"cuda, only {GPUS[2].pci}: ERROR"]
