"""NVML, NVIDIA's management library, which creates no context and so uses no device memory.

Every NVML call can hang, so only workers use NVML. Functions: https://docs.nvidia.com/deploy/nvml-api/;
structures: nvml.h.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpuipc_doctor.api.equal_gpus import LINKS
from gpuipc_doctor.api.gpu import Arm, DriverError
from gpuipc_doctor.model import DriverFault

LIBRARY = "libnvidia-ml.so.1"

DRIVER_NOT_LOADED = 9
"""``NVML_ERROR_DRIVER_NOT_LOADED``: the library is installed, but there is no NVIDIA GPU."""

NOT_SUPPORTED = 3
"""``NVML_ERROR_NOT_SUPPORTED``: this GPU has no such figure; of GB10, for example, the memory's."""

_INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND = 7, 13
_NOT_AVAILABLE = 2**64 - 1
"""``NVML_VALUE_NOT_AVAILABLE``: the driver does not count a process's bytes, for example in MIG mode."""

_MEMORY = struct.Struct("=5Q")  # of nvmlMemory_v2_t the version (and a gap), total, reserved, free, used
_MEMORY_VERSION = 40 | 2 << 24
_PLAIN_MEMORY = struct.Struct("=3Q")  # of nvmlMemory_t: total, free, used
_PROCESS = struct.Struct("=I4xQII")  # of nvmlProcessInfo_t, version 2 and 3: pid, bytes, MIG instances
_PCI_BYTES, _PCI_TEXT = 68, 36  # of nvmlPciInfo_t, version 3: its size, and where its busId is
_TEXT_BYTES = 96

_MOST_LINKS = 36
"""More than ``NVML_NVLINK_MAX_LINKS`` (18)."""

_P2P_NVLINK = 2
"""``NVML_P2P_CAPS_INDEX_NVLINK``."""

_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80
"""``nvmlClocksThrottleReason…``: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown."""

_FABRIC = struct.Struct("=16sIIB3x")  # of nvmlGpuFabricInfo_t: clusterUuid, status, cliqueId, state
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_FIELD = struct.Struct(
    "=IIqqIIQ"
)  # of nvmlFieldValue_t: fieldId, scopeId, two times, valueType, nvmlReturn, value
_LINK_SPEED = 90
"""``NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON``: of the active links."""

_ON_OFF = {0: "off", 1: "on"}
_PROCESSES = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")


class Nvml:
    """NVML, initialised. Raises `OSError` if it is not found, and `DriverError` if a call fails."""

    def __init__(self, arm: Arm) -> None:
        import ctypes

        self._arm = arm
        with arm(f"load {LIBRARY}"):
            self._library = ctypes.CDLL(LIBRARY)
        self._call("nvmlInit_v2")

    def driver_version(self) -> str:
        """The version of the driver package, which the CUDA driver API does not report."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        return self.numbers("nvmlDeviceGetCount_v2")[0]

    def by_index(self, index: int) -> Any:
        return self._handle("nvmlDeviceGetHandleByIndex_v2", index)

    def by_uuid(self, uuid: str) -> Any:
        return self._handle("nvmlDeviceGetHandleByUUID", uuid.encode())

    def name(self, device: Any) -> str:
        return self._text("nvmlDeviceGetName", device)

    def pci(self, device: Any) -> str:
        """A GPU's PCI address, as ``0000:01:00.0``."""
        import ctypes

        pci = ctypes.create_string_buffer(_PCI_BYTES)
        self._call("nvmlDeviceGetPciInfo_v3", device, pci)
        return pci.raw[_PCI_TEXT:].partition(b"\0")[0].decode("ascii", "replace").lower()[-12:]

    def memory(self, device: Any) -> tuple[int, int]:
        """Total and used bytes, without the driver's own reservation if NVML reports that. Raises
        `DriverError`."""
        import ctypes

        if self._has("nvmlDeviceGetMemoryInfo_v2"):
            memory = ctypes.create_string_buffer(_MEMORY.size)
            struct.pack_into("=I", memory, 0, _MEMORY_VERSION)
            self._call("nvmlDeviceGetMemoryInfo_v2", device, memory)
            _, total, _, _, used = _MEMORY.unpack(memory)
        else:
            memory = ctypes.create_string_buffer(_PLAIN_MEMORY.size)
            self._call("nvmlDeviceGetMemoryInfo", device, memory)
            total, _, used = _PLAIN_MEMORY.unpack(memory)
        return total, used

    def processes(self, device: Any) -> list[tuple[int, int | None]] | None:
        """Processes with a context on the GPU → their bytes; None if this driver does not list them."""
        import ctypes

        function = next(filter(self._has, _PROCESSES), "")
        room = 32
        while function:
            count, found = ctypes.c_uint(room), ctypes.create_string_buffer(room * _PROCESS.size)
            try:
                self._call(function, device, ctypes.byref(count), found)
            except DriverError as error:
                if error.fault.code != _INSUFFICIENT_SIZE or count.value <= room:
                    return None
                room = 2 * count.value
            else:
                rows = _PROCESS.iter_unpack(found.raw[: count.value * _PROCESS.size])
                return [(pid, None if used == _NOT_AVAILABLE else used) for pid, used, _, _ in rows]
        return None

    def load(self, device: Any) -> tuple[int | None, float | None]:
        """Utilisation in percent and power in watts; None for what the GPU does not report."""
        busy: int | None = None
        watts: float | None = None
        with suppress(DriverError):  # not of a MIG instance
            busy = self._utilisation(device)
        with suppress(DriverError):
            watts = self.numbers("nvmlDeviceGetPowerUsage", device)[0] / 1000
        return busy, watts

    def traits(self, device: Any) -> dict[str, str]:
        """What equal GPUs should have in common, by the names of `equal_gpus`; without what the GPU does not
        report."""
        found: dict[str, str] = {}
        for trait, read in (
            (LINKS, self._active_links),
            ("NVLink speed", self._link_speed),
            ("PCIe link", self._pcie_link),
            ("ECC", lambda gpu: _named(_ON_OFF, self.numbers("nvmlDeviceGetEccMode", gpu, give=2)[0])),
            ("row remapping", self._row_remapping),
            ("VBIOS", lambda gpu: self._text("nvmlDeviceGetVbiosVersion", gpu)),
            ("clocks", self._clocks),
            ("NVLink fabric", self._fabric),
        ):
            with suppress(DriverError):
                found[trait] = read(device)
        return {trait: value for trait, value in found.items() if value}

    def way(self, device: Any, other: Any) -> str:
        """How one GPU reaches another, in the words of ``nvidia-smi topo -m``; ``P2P`` if unknown."""
        with suppress(DriverError):
            if self.numbers("nvmlDeviceGetP2PStatus", device, other, _P2P_NVLINK)[0] == 0:
                links = min(int(self._active_links(each) or 0) for each in (device, other))
                return f"NV{links}" if links else "NV"
        with suppress(DriverError):
            level = self.numbers("nvmlDeviceGetTopologyCommonAncestor", device, other)[0]
            return _named(_ANCESTORS, level)
        return "P2P"

    def _active_links(self, device: Any) -> str:
        states = []
        for link in range(_MOST_LINKS):
            try:
                states += self.numbers("nvmlDeviceGetNvLinkState", device, link)
            except DriverError:
                break  # the GPU has no more links
        return str(states.count(1)) if states else ""

    def _link_speed(self, device: Any) -> str:
        import ctypes

        field = ctypes.create_string_buffer(_FIELD.pack(_LINK_SPEED, 0, 0, 0, 0, 0, 0), _FIELD.size)
        self._call("nvmlDeviceGetFieldValues", device, 1, field)
        *_, code, value = _FIELD.unpack(field)
        speed = value & 0xFFFFFFFF  # an unsigned int
        return f"{speed} MB/s" if not code and speed else ""

    def _pcie_link(self, device: Any) -> str:
        """Width now, and the highest generation: the current one falls when the GPU is idle."""
        width = self.numbers("nvmlDeviceGetCurrPcieLinkWidth", device)[0]
        return f"generation {self.numbers('nvmlDeviceGetMaxPcieLinkGeneration', device)[0]} x{width}"

    def _row_remapping(self, device: Any) -> str:
        _, _, pending, failed = self.numbers("nvmlDeviceGetRemappedRows", device, give=4)
        return "failed" if failed else "pending" if pending else "none pending"

    def _clocks(self, device: Any) -> str:
        import ctypes

        reasons = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", device, ctypes.byref(reasons))
        return "limited by heat or power" if reasons.value & _SLOWDOWN else "not limited"

    def _fabric(self, device: Any) -> str:
        import ctypes

        info = ctypes.create_string_buffer(_FABRIC.size)
        self._call("nvmlDeviceGetGpuFabricInfo", device, info)
        _, status, _, state = _FABRIC.unpack(info)
        return f"{_named(_FABRIC_STATES, state)}{f', error {status}' if status else ''}" if state else ""

    def is_confidential(self) -> bool:
        """Whether confidential computing is on; False also if the driver does not know it."""
        import ctypes

        state = (ctypes.c_uint * 3)()  # nvmlConfComputeSystemState_t: environment, ccFeature, devToolsMode
        try:
            self._call("nvmlSystemGetConfComputeState", state)
        except DriverError:
            return False
        return bool(state[1])

    def numbers(self, function: str, *arguments: Any, give: int = 1) -> list[int]:
        """Result of a function that returns this many unsigned numbers."""
        import ctypes

        given = [ctypes.c_uint() for _ in range(give)]
        self._call(function, *arguments, *map(ctypes.byref, given))
        return [number.value for number in given]

    def _utilisation(self, device: Any) -> int:
        """Percent of the last sample period in which a kernel ran (nvmlUtilization_t: GPU, memory)."""
        import ctypes

        rates = (ctypes.c_uint * 2)()
        self._call("nvmlDeviceGetUtilizationRates", device, rates)
        return int(rates[0])

    def _handle(self, function: str, name: int | bytes) -> Any:
        import ctypes

        device = ctypes.c_void_p()
        self._call(function, name, ctypes.byref(device))
        return device

    def _text(self, function: str, *arguments: Any) -> str:
        import ctypes

        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *arguments, text, _TEXT_BYTES)
        return text.value.decode(errors="replace")

    def _has(self, function: str) -> bool:
        return hasattr(self._library, function)

    def _call(self, function: str, *arguments: Any) -> None:
        if not self._has(function):
            raise DriverError(DriverFault(function, _FUNCTION_NOT_FOUND, f"not in {LIBRARY}"))
        with self._arm(function):
            code = getattr(self._library, function)(*arguments)
        if code:
            import ctypes

            self._library.nvmlErrorString.restype = ctypes.c_char_p
            name = self._library.nvmlErrorString(code).decode(errors="replace")
            raise DriverError(DriverFault(function, code, name))


def _named(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))
