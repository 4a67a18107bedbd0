"""NVML, NVIDIA's management library, which creates no context and so uses no device memory.

Every NVML call can hang, so only workers use NVML, through nvidia-ml-py (module ``pynvml``, imported with the
first `Nvml`). Functions: https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gpuipc_doctor.api.driver_errors import DriverError
from gpuipc_doctor.api.equal_gpus import LINKS
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.model import DriverFault

LIBRARY = "libnvidia-ml.so.1"

DRIVER_NOT_LOADED = 9
"""``NVML_ERROR_DRIVER_NOT_LOADED``: the library is installed, but there is no NVIDIA GPU."""

NOT_SUPPORTED = 3
"""``NVML_ERROR_NOT_SUPPORTED``: this GPU has no such figure; of GB10, for example, the memory's."""

_FUNCTION_NOT_FOUND = 13

_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80
"""``nvmlClocksThrottleReason…``: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown."""

_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_ON_OFF = {0: "off", 1: "on"}

_INSTANCE = ("gpuInstanceId", "computeInstanceId")
"""Fields of ``nvmlProcessInfo_t`` that name the MIG instance, since version 2."""


class GpuMemory(NamedTuple):
    """Bytes of a GPU. ``used`` is without the driver's own reservation, unless ``has_reservation``."""

    total: int
    used: int
    free: int
    has_reservation: bool = False


class Nvml:
    """NVML, initialised.

    Raises `OSError` if the library or nvidia-ml-py is not found, and `DriverError` if a call fails.
    """

    def __init__(self, arm: Arm) -> None:
        import ctypes

        self._arm = arm
        with arm(f"load {LIBRARY}"):
            ctypes.CDLL(LIBRARY)  # says why it cannot be loaded; pynvml does not
        try:
            import pynvml
        except ImportError as error:
            raise OSError(f"NVML needs the Python package nvidia-ml-py ({error})") from None
        self._api: Any = pynvml
        self.call("nvmlInit")

    def call(self, function: str, *arguments: Any) -> Any:
        """Result of a function of pynvml, journalled under its name; text as bytes. Raises `DriverError`."""
        called = getattr(self._api, function, None)
        if not called:
            raise DriverError(DriverFault(function, _FUNCTION_NOT_FOUND, "not in this nvidia-ml-py"))
        try:
            with self._arm(function):
                return getattr(called, "__wrapped__", called)(*arguments)  # which decodes only valid UTF-8
        except self._api.NVMLError as error:
            name = f"not in {LIBRARY}" if error.value == _FUNCTION_NOT_FOUND else str(error)
            raise DriverError(DriverFault(function, error.value, name)) from None

    def driver_version(self) -> str:
        """The version of the driver package, which the CUDA driver API does not report."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        return int(self.call("nvmlDeviceGetCount"))

    def by_index(self, index: int) -> Any:
        return self.call("nvmlDeviceGetHandleByIndex", index)

    def by_uuid(self, uuid: str) -> Any:
        return self.call("nvmlDeviceGetHandleByUUID", uuid.encode())

    def name(self, device: Any) -> str:
        return self._text("nvmlDeviceGetName", device)

    def pci(self, device: Any) -> str:
        """A GPU's PCI address, as ``0000:01:00.0``."""
        pci = self.call("nvmlDeviceGetPciInfo", device)
        return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"

    def memory(self, device: Any) -> GpuMemory:
        """Raises `DriverError`."""
        try:
            memory = self.call("nvmlDeviceGetMemoryInfo", device, self._api.nvmlMemory_v2)
        except DriverError as error:
            if error.fault.code != _FUNCTION_NOT_FOUND:  # before driver 510
                raise
            memory = self.call("nvmlDeviceGetMemoryInfo", device)
            return GpuMemory(memory.total, memory.used, memory.free, has_reservation=True)
        return GpuMemory(memory.total, memory.used, memory.free)

    def processes(self, device: Any, kind: str = "Compute") -> list[tuple[int, int | None]] | None:
        """Processes with a context on the GPU → their bytes; None if this driver does not list them.
        ``kind``: ``Graphics`` for those that draw, such as an X server.

        A process is listed once for each MIG instance. If listed twice for one, the larger figure counts.
        """
        for version in ("", "_v2"):
            try:
                found = self.call(f"nvmlDeviceGet{kind}RunningProcesses{version}", device)
            except DriverError as error:
                if error.fault.code != _FUNCTION_NOT_FOUND:
                    return None
                continue
            once: dict[tuple[int, ...], int | None] = {}
            for process in found:
                key = process.pid, *(getattr(process, name, 0) for name in _INSTANCE)
                figures = [once.get(key), process.usedGpuMemory]
                once[key] = max((each for each in figures if each is not None), default=None)
            return [(pid, used) for (pid, *_), used in once.items()]
        return None

    def load(self, device: Any) -> tuple[int | None, float | None]:
        """Utilisation in percent and power in watts; None for what the GPU does not report."""
        busy: int | None = None
        watts: float | None = None
        with suppress(DriverError):  # not of a MIG instance
            busy = self.call("nvmlDeviceGetUtilizationRates", device).gpu
        with suppress(DriverError):
            watts = self.call("nvmlDeviceGetPowerUsage", device) / 1000
        return busy, watts

    def traits(self, device: Any) -> dict[str, str]:
        """What equal GPUs should have in common, by the names of `equal_gpus`; without what the GPU does not
        report."""
        found: dict[str, str] = {}
        for trait, read in (
            (LINKS, self._active_links),
            ("NVLink speed", self._link_speed),
            ("PCIe link", self._pcie_link),
            ("ECC", lambda gpu: _named(_ON_OFF, self.call("nvmlDeviceGetEccMode", gpu)[0])),
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
            if self.call("nvmlDeviceGetP2PStatus", device, other, self._api.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
                links = min(int(self._active_links(each) or 0) for each in (device, other))
                return f"NV{links}" if links else "NV"
        with suppress(DriverError):
            return _named(_ANCESTORS, self.call("nvmlDeviceGetTopologyCommonAncestor", device, other))
        return "P2P"

    def _active_links(self, device: Any) -> str:
        states = []
        for link in range(self._api.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(self.call("nvmlDeviceGetNvLinkState", device, link))
            except DriverError:
                break  # the GPU has no more links
        return str(states.count(1)) if states else ""

    def _link_speed(self, device: Any) -> str:
        """Of the active links."""
        fields = [self._api.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        (field,) = self.call("nvmlDeviceGetFieldValues", device, fields)
        speed = field.value.uiVal
        return f"{speed} MB/s" if not field.nvmlReturn and speed else ""

    def _pcie_link(self, device: Any) -> str:
        """Width now, and the highest generation: the current one falls when the GPU is idle."""
        width = self.call("nvmlDeviceGetCurrPcieLinkWidth", device)
        return f"generation {self.call('nvmlDeviceGetMaxPcieLinkGeneration', device)} x{width}"

    def _row_remapping(self, device: Any) -> str:
        _, _, pending, failed = self.call("nvmlDeviceGetRemappedRows", device)
        return "failed" if failed else "pending" if pending else "none pending"

    def _clocks(self, device: Any) -> str:
        reasons = self.call("nvmlDeviceGetCurrentClocksThrottleReasons", device)
        return "limited by heat or power" if reasons & _SLOWDOWN else "not limited"

    def _fabric(self, device: Any) -> str:
        import ctypes

        info = self._api.c_nvmlGpuFabricInfo_t()
        self.call("nvmlDeviceGetGpuFabricInfo", device, ctypes.byref(info))
        error = f", error {info.status}" if info.status else ""
        return f"{_named(_FABRIC_STATES, info.state)}{error}" if info.state else ""

    def is_confidential(self) -> bool:
        """Whether confidential computing is on; False also if the driver does not know it."""
        try:
            return bool(self.call("nvmlSystemGetConfComputeState").ccFeature)
        except DriverError:
            return False

    def _text(self, function: str, *arguments: Any) -> str:
        text: bytes = self.call(function, *arguments)
        return text.decode(errors="replace")


def _named(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))
