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
from gpuipc_doctor.model import DriverFault, Json

LIBRARY = "libnvidia-ml.so.1"

DRIVER_NOT_LOADED = 9
"""``NVML_ERROR_DRIVER_NOT_LOADED``: the library is installed, but there is no NVIDIA GPU."""

NOT_SUPPORTED = 3
"""``NVML_ERROR_NOT_SUPPORTED``: this GPU has no such figure; of GB10, for example, the memory's."""

_REMOTE = "nvmlDeviceGetNvLinkRemotePciInfo"

_INVALID_ARGUMENT, _FUNCTION_NOT_FOUND = 2, 13

NOT_FOUND = 6
"""``NVML_ERROR_NOT_FOUND``."""

LOST = (15, 16)
"""``NVML_ERROR_GPU_IS_LOST``, ``NVML_ERROR_RESET_REQUIRED``."""

_SLOWDOWNS = {0x8: "hardware", 0x20: "heat, by the driver", 0x40: "heat", 0x80: "the power supply's brake"}
"""Bit of ``nvmlClocksEventReasons`` → what holds the clocks down: HwSlowdown, SwThermalSlowdown,
HwThermalSlowdown, HwPowerBrakeSlowdown."""

_LINK_COUNTERS = {
    "nvlink-replay": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "nvlink-recovery": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "nvlink-crc": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
}
_LINK_COUNTERS_OF_BLACKWELL = {"nvlink-recovery": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"}
"""Instead of all of these: nvml.h at NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY."""

_GPU_COUNTERS = {
    "pcie-replay": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "rows-correctable": "NVML_FI_DEV_REMAPPED_COR",
    "rows-uncorrectable": "NVML_FI_DEV_REMAPPED_UNC",
}

_MOST_COUNTED = 1 << 48
"""More is no count."""

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
        with self._arm(function):
            return self._call(function, *arguments)

    def _call(self, function: str, *arguments: Any) -> Any:
        called = getattr(self._api, function, None)
        if not called:
            raise DriverError(DriverFault(function, _FUNCTION_NOT_FOUND, "not in this nvidia-ml-py"))
        try:
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

    def by_pci(self, pci: str) -> Any:
        return self.call("nvmlDeviceGetHandleByPciBusId", pci.encode())

    def name(self, device: Any) -> str:
        return self._text("nvmlDeviceGetName", device)

    def serial(self, device: Any) -> str:
        """Empty if NVML does not report it; so is `part_number`."""
        return self._told("nvmlDeviceGetSerial", device)

    def part_number(self, device: Any) -> str:
        return self._told("nvmlDeviceGetBoardPartNumber", device)

    def link_peers(self, device: Any) -> dict[int, str]:
        """Number of each NVLink → PCI address of its other end, where NVML reports it."""
        found = {}
        with self._arm(_REMOTE):  # once: a node has hundreds of links
            for link in range(self._api.NVML_NVLINK_MAX_LINKS):
                try:
                    found[link] = _address(self._call(_REMOTE, device, link))
                except DriverError as error:
                    if error.fault.code in (_INVALID_ARGUMENT, _FUNCTION_NOT_FOUND, *LOST):
                        break
        return found

    def pci(self, device: Any) -> str:
        """A GPU's PCI address, as ``0000:01:00.0``."""
        return _address(self.call("nvmlDeviceGetPciInfo", device))

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

    def load(self, device: Any) -> tuple[int | None, float | None, float | None]:
        """Utilisation in percent, power and its limit in watts; None for what the GPU does not report."""
        busy: int | None = None
        watts: float | None = None
        limit: float | None = None
        with suppress(DriverError):  # not of a MIG instance
            busy = self.call("nvmlDeviceGetUtilizationRates", device).gpu
        with suppress(DriverError):
            watts = self.call("nvmlDeviceGetPowerUsage", device) / 1000
        with suppress(DriverError):
            limit = self.call("nvmlDeviceGetEnforcedPowerLimit", device) / 1000
        return busy, watts, limit

    def traits(self, device: Any) -> dict[str, str]:
        """What equal GPUs should have in common, by the names of `equal_gpus`; without what the GPU does not
        report."""
        found: dict[str, str] = {}
        for trait, read in (
            (LINKS, self._active_links),
            ("NVLink speed", self._link_speed),
            ("PCIe link", self._pcie_link),
            ("ECC", lambda gpu: _named(_ON_OFF, self.call("nvmlDeviceGetEccMode", gpu)[0])),
            ("VBIOS", lambda gpu: self._text("nvmlDeviceGetVbiosVersion", gpu)),
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
        return _active(self._link_states(device))

    def _link_states(self, device: Any) -> list[int]:
        states: list[int] = []
        for link in range(self._api.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(self.call("nvmlDeviceGetNvLinkState", device, link))
            except DriverError:
                break  # the GPU has no more links
        return states

    def _link_speed(self, device: Any) -> str:
        """Of the active links."""
        speed = self._field(device, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON")
        return f"{speed} MB/s" if speed else ""

    def _pcie_link(self, device: Any) -> str:
        """What GPU and slot allow; whether the link has that is `health`'s."""
        link = self.pcie_link(device)
        return f"generation {link['generations']} x{link['slot']}"

    def health(self, device: Any) -> dict[str, Json]:
        """Figures that need no other GPU to compare with (`api.health_rows`), without those that the GPU does
        not report. Raises `DriverError` for a GPU that is lost or must be reset."""
        found: dict[str, Json] = {}
        links = self._link_states(device)
        for name, read in (
            ("recovery", lambda gpu: self._field(gpu, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")),
            ("remapped", lambda gpu: self.call("nvmlDeviceGetRemappedRows", gpu)[2:]),
            ("uncorrected", self._uncorrected),
            ("slowdown", self._slowdown),
            ("links", lambda _: _active(links)),
            ("pcie", self.pcie_link),
            ("fabric", self._fabric),
            ("counters", lambda gpu: self._counters(gpu, len(links))),
            ("switched", lambda gpu: self._is_switched(gpu) if any(links) else None),
            ("peers", lambda gpu: self._peers(gpu, found.get("counters", {}))),
        ):
            try:
                found[name] = read(device)
            except DriverError as error:
                if error.fault.code in LOST:
                    raise
        return {name: value for name, value in found.items() if value not in (None, "", {})}

    def _counters(self, device: Any, links: int) -> dict[str, list[int | None]]:
        """Errors counted since the driver was loaded: of the GPU and, by number, of each NVLink. None: not
        reported."""
        found = self._fields(device, _GPU_COUNTERS, 1)
        of_links = self._fields(device, _LINK_COUNTERS, links)
        return found | (of_links or self._fields(device, _LINK_COUNTERS_OF_BLACKWELL, links))

    def _fields(self, device: Any, names: Mapping[str, str], count: int) -> dict[str, list[int | None]]:
        """Each field of the scopes up to ``count``, without fields that are not reported; one call."""
        numbers = [(name, getattr(self._api, field, None)) for name, field in names.items()]
        asked = [(name, (field, scope)) for name, field in numbers if field for scope in range(count)]
        found: dict[str, list[int | None]] = {name: [] for name, _ in asked}
        if asked:
            told = self.call("nvmlDeviceGetFieldValues", device, [each for _, each in asked])
            for (name, _), field in zip(asked, told, strict=True):
                found[name].append(self._count(field))
        return {name: counts for name, counts in found.items() if any(n is not None for n in counts)}

    def _count(self, field: Any) -> int | None:
        types = {1: "uiVal", 2: "ulVal", 3: "ullVal"}  # nvmlValueType_t: unsigned int, long, long long
        if field.nvmlReturn or field.valueType not in types:
            return None
        count = int(getattr(field.value, types[field.valueType]))
        return count if count < _MOST_COUNTED else None

    def _is_switched(self, device: Any) -> bool:
        """Whether NVLink 0 leads to an NVSwitch rather than to another GPU."""
        found = self.call("nvmlDeviceGetNvLinkRemoteDeviceType", device, 0)
        return bool(found == self._api.NVML_NVLINK_DEVICE_TYPE_SWITCH)

    def _peers(self, device: Any, counters: Mapping[str, list[int | None]]) -> dict[str, str]:
        """Number of each NVLink that has counted an error → PCI address of its other end."""
        counts = [each for name, each in counters.items() if name.startswith("nvlink")]
        links = sorted({link for each in counts for link, count in enumerate(each) if count})
        return {str(link): _address(self.call(_REMOTE, device, link)) for link in links}

    def pcie_link(self, device: Any) -> dict[str, Json]:
        """The link now, and what GPU and slot allow. An idle GPU may lower both."""
        return {
            "generation": self.call("nvmlDeviceGetCurrPcieLinkGeneration", device),
            "generations": self.call("nvmlDeviceGetMaxPcieLinkGeneration", device),
            "lanes": self.call("nvmlDeviceGetCurrPcieLinkWidth", device),
            "slot": self.call("nvmlDeviceGetMaxPcieLinkWidth", device),
        }

    def _uncorrected(self, device: Any) -> int:
        """ECC errors since the driver was loaded."""
        what = self._api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._api.NVML_VOLATILE_ECC
        return int(self.call("nvmlDeviceGetTotalEccErrors", device, *what))

    def _field(self, device: Any, name: str) -> int | None:
        if not hasattr(self._api, name):
            return None
        (field,) = self.call("nvmlDeviceGetFieldValues", device, [getattr(self._api, name)])
        return None if field.nvmlReturn else field.value.uiVal

    def _slowdown(self, device: Any) -> list[str]:
        """What holds the clocks down although the GPU has no work."""
        reasons = self.call("nvmlDeviceGetCurrentClocksThrottleReasons", device)
        held = [words for bit, words in _SLOWDOWNS.items() if reasons & bit]
        return held if held and not self.load(device)[0] else []

    def _fabric(self, device: Any) -> dict[str, Json]:
        """``nvmlGpuFabricInfo``, in the newest version that this driver has: version 1 has no health."""
        import ctypes

        versions = ((f"c_nvmlGpuFabricInfo_v{number}_t", "V") for number in (3, 2))
        for structure, suffix in (*versions, ("c_nvmlGpuFabricInfo_t", "")):
            if made := getattr(self._api, structure, None):
                info = made()
                try:
                    self.call(f"nvmlDeviceGetGpuFabricInfo{suffix}", device, ctypes.byref(info))
                except DriverError as error:
                    if error.fault.code in LOST:
                        raise
                    continue
                return {
                    "state": info.state & 0xFF,
                    "status": info.status,
                    "error": str(self._api.NVMLError(info.status)) if info.status else "",
                    "health": getattr(info, "healthMask", 0),
                    "cluster": bytes(info.clusterUuid).hex(),
                    "clique": info.cliqueId,
                }
        return {}

    def is_confidential(self) -> bool:
        """Whether confidential computing is on; False also if the driver does not know it."""
        try:
            return bool(self.call("nvmlSystemGetConfComputeState").ccFeature)
        except DriverError:
            return False

    def _told(self, function: str, device: Any) -> str:
        with suppress(DriverError):
            return self._text(function, device)
        return ""

    def _text(self, function: str, *arguments: Any) -> str:
        text: bytes = self.call(function, *arguments)
        return text.decode(errors="replace")


def _active(states: list[int]) -> str:
    return str(states.count(1)) if states else ""


def _address(pci: Any) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _named(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))
