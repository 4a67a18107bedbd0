"""Each vendor's driver behind one protocol, so that callers need not distinguish them.

`open_backend` loads the driver and the binding, so only workers call it.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path

from gpuipc_doctor.api.capabilities import CAPABILITIES
from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.model import Device, DriverFault, Fact
from gpuipc_doctor.vendors import SUPPORTED
from gpuipc_doctor.worker.backends.absence import NO_DEVICE
from gpuipc_doctor.worker.backends.device import DriverGpu, without_strangers
from gpuipc_doctor.worker.backends.driver import Driver

__all__ = ["CAPABILITIES", "Backend", "open_backend"]


def open_backend(name: str, arm: Arm, root: str = "/") -> Backend:
    """Load one backend's binding and driver library.

    ``root`` is put before ``/proc``, ``/sys`` and ``/dev`` to find the reason for a missing GPU. Raises
    `BackendUnavailable`, and `ValueError` for a name not in `SUPPORTED`.
    """
    if name not in SUPPORTED:
        raise ValueError(f"no backend {name!r}; there are {', '.join(SUPPORTED)}")
    driver: type[Driver] = import_module(f"{__name__}.{name}").DRIVER
    return Backend(driver(arm, Path(root)))


class Backend:
    """One vendor's GPUs as seen by this process."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._count: int | None = None
        self._gpus: dict[Device, DriverGpu] = {}

    def devices(self) -> list[Device]:
        """Initialise the driver and describe every visible device; creates no context.

        Raises `BackendUnavailable` if there is none.
        """
        driver = self.driver
        here = [driver.device_at(ordinal) for ordinal in range(self.initialise())]
        return [
            Device(
                backend=driver.backend,
                index=ordinal,
                uuid=driver.uuid(one),
                pci=driver.text("device-pci", one).lower(),
                name=driver.text("device-name", one),
                total_bytes=driver.number("device-memory", one),
                capabilities=driver.capabilities(one),
                peers=frozenset(
                    f"{driver.backend}:{number}"
                    for number, other in enumerate(here)
                    if number != ordinal and driver.call("can-access", one, other)
                ),
            )
            for ordinal, one in enumerate(here)
        ]

    def gpu(self, device: Device, *, by_process: bool = False) -> DriverGpu:
        """This process's GPU ``device``, found by uuid; if it has none, by PCI address; otherwise by number.
        ``by_process``: see `Gpu.by_process`.

        Raises `BackendUnavailable` if this process does not see it.
        """
        if device not in self._gpus:
            self._gpus[device] = self._find(device)
        self._gpus[device].by_process = by_process
        return self._gpus[device]

    def end_contexts(self, keep: Collection[str]) -> None:
        """Destroy this process's contexts, except the primary ones of the devices with these labels."""
        for device, gpu in self._gpus.items():
            gpu.contexts.end(keep_primary=device.label in keep)

    def _find(self, device: Device) -> DriverGpu:
        driver = self.driver
        ordinals = range(self.initialise())  # parts of a GPU may have one identity: the own number first
        for ordinal in sorted(ordinals, key=lambda number: number != device.index):
            one = driver.device_at(ordinal)
            if device.uuid:
                found = driver.uuid(one) == device.uuid
            elif device.pci:
                found = driver.text("device-pci", one).lower() == device.pci
            else:
                found = ordinal == device.index
            if found:
                return DriverGpu(driver, device, ordinal)
        raise BackendUnavailable(
            f"{device.label} ({device.uuid or device.pci}) is not visible to this process",
            "check dmesg for a lost GPU, and check whether the GPU is hidden by "
            f"{' or '.join(driver.vendor.hides)}",
            broken=True,
        )

    def hidden(self, device: Device) -> DriverGpu:
        """A device that this process does not see: driver calls fail, but NVML may report its memory."""
        return DriverGpu(self.driver, device, -1)

    def is_seen_from_outside(self, device: Device) -> bool:
        """Whether a device's used memory can be read without the driver."""
        return self.driver.process_memory.used(device.uuid) is not None

    def memory_used_from_outside(self, device: Device) -> int:
        """Bytes in use on a device that this process does not use.

        A context is created only if NVML does not report the bytes.
        """
        driver = self.driver
        if not self.is_seen_from_outside(device):
            return self.gpu(device).memory_used()
        return without_strangers(
            driver, device, lambda: driver.process_memory.used(device.uuid) or 0, has_context=False
        )

    def memory_of_nobody(self, device: Device) -> tuple[int, list[int]] | None:
        """Bytes in use on a device that no process holds, and the pids of those that hold some; None if
        unknown."""
        return self.driver.process_memory.of_nobody(device.uuid)

    def versions(self) -> list[Fact]:
        """Versions reported by this backend's libraries, each with the call that reported it."""
        return self.driver.versions()

    def initialise(self) -> int:
        """Initialise the driver once and count its devices; creates no context.

        Raises `BackendUnavailable` if there is none.
        """
        if self._count is None:
            driver = self.driver
            try:
                driver.call("init", 0)
                self._count = int(driver.call("device-count"))
            except DriverError as error:
                raise driver.absence.initialising_failed(error.fault) from error
            if self._count == 0:
                fault = DriverFault(driver.calls["device-count"], NO_DEVICE, "0 devices")
                raise driver.absence.initialising_failed(fault)
        return self._count
