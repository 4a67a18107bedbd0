"""Error counters of a GPU as NVML reports them: types, what is not reported, and garbage."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.worker.nvml import Nvml

REPLAY, RECOVERY, BLACKWELL = 161, 162, 215
UINT, ULL, DOUBLE = 1, 3, 0


def nvml(values: dict[tuple[int, int], tuple[int, int, int]]) -> Nvml:
    """``values``: (field, link) → (return code, type, value); NOT_SUPPORTED for others."""
    made = Nvml.__new__(Nvml)

    def told(_: Any, fields: list[tuple[int, int]]) -> list[Any]:
        found = []
        for field in fields:
            code, kind, number = values.get(field, (3, 0, 0))
            value = SimpleNamespace(uiVal=number & 0xFFFFFFFF, ulVal=number, ullVal=number)
            found.append(SimpleNamespace(nvmlReturn=code, valueType=kind, value=value))
        return found

    names = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_")}
    made._api = SimpleNamespace(**names, NVMLError=pynvml.NVMLError, nvmlDeviceGetFieldValues=told)
    made._arm = lambda _: nullcontext()
    return made


@pytest.mark.parametrize(
    ("values", "counters"),
    [
        ({}, {}),
        ({(REPLAY, 1): (0, ULL, 5)}, {"nvlink-replay": [None, 5]}),
        ({(REPLAY, 0): (0, UINT, 7 | 1 << 40)}, {"nvlink-replay": [7, None]}),  # the union's rest is garbage
        ({(REPLAY, 0): (0, ULL, 2**64 - 1)}, {}),
        ({(REPLAY, 0): (0, DOUBLE, 5)}, {}),
        ({(BLACKWELL, 0): (0, ULL, 2), (BLACKWELL, 1): (0, ULL, 0)}, {"nvlink-recovery": [2, 0]}),
        ({(RECOVERY, 0): (0, ULL, 2), (BLACKWELL, 0): (0, ULL, 9)}, {"nvlink-recovery": [2, None]}),
    ],
)
def test_counters_are_read_and_garbage_is_unknown(
    values: dict[tuple[int, int], tuple[int, int, int]], counters: dict[str, list[int | None]]
) -> None:
    assert nvml(values)._counters(object(), 2) == counters


def test_bindings_that_lack_the_fields_or_the_call_report_nothing() -> None:
    old = nvml({(REPLAY, 0): (0, ULL, 5)})
    del old._api.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
    assert old._counters(object(), 2) == {}
    del old._api.nvmlDeviceGetFieldValues
    with pytest.raises(DriverError) as raised:
        old._counters(object(), 2)
    assert raised.value.fault == DriverFault("nvmlDeviceGetFieldValues", 13, "not in this nvidia-ml-py")


@pytest.mark.parametrize("structures", [[], ["c_nvmlGpuFabricInfo_t"], ["c_nvmlGpuFabricInfo_v3_t"]])
def test_binding_or_driver_without_the_fabric_call_reports_no_fabric(structures: list[str]) -> None:
    old = nvml({})
    for name in structures:
        setattr(old._api, name, getattr(pynvml, name))  # the function is missing: nvidia-ml-py 13 without 535
    assert old._fabric(object()) == {}


def identified(serial: Any, peer: Any) -> Nvml:
    """``serial`` and ``peer``: results of NVML's functions; a code is an error, None a missing function."""
    made = nvml({})

    def give(found: Any) -> Any:
        def function(*_: Any) -> Any:
            if isinstance(found, int):
                raise pynvml.NVMLError(found)
            return found

        return function

    for name, found in (("nvmlDeviceGetSerial", serial), ("nvmlDeviceGetNvLinkRemotePciInfo", peer)):
        if found is not None:
            setattr(made._api, name, give(found))
    return made


@pytest.mark.parametrize(
    ("told", "serial"),
    [(b"1650123456789", "1650123456789"), (b"\xff1", "\ufffd1"), (3, ""), (13, ""), (None, "")],
)
def test_serial_is_empty_where_nvml_does_not_report_it(told: Any, serial: str) -> None:
    assert identified(told, 3).serial(None) == serial


@pytest.mark.parametrize(
    ("peer", "links"), [(3, 0), (2, 0), (13, 0), (15, 0), (None, 0), ("there", pynvml.NVML_NVLINK_MAX_LINKS)]
)
def test_peers_of_links_are_those_that_nvml_reports(peer: Any, links: int) -> None:
    there = SimpleNamespace(domain=0, bus=0x3B, device=0)
    found = identified(3, there if peer == "there" else peer).link_peers(None)
    assert found == dict.fromkeys(range(links), "0000:3b:00.0")
