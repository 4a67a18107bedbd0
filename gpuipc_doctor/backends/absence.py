"""Why a backend cannot be used here, in one line each, and what to do about it.

Everything is read below ``root``, which is ``/`` on a real node and a tree of files on a simulated one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.api.gpu import Arm, BackendUnavailable
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.node_files import gpus_on_bus

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE`` and ``hipErrorNoDevice``."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """What has to be in place on a node before one vendor's GPUs can be used."""

    gpu: str
    """``NVIDIA GPU``: what a person calls it."""
    binding: str
    extra: str
    """Extra of this package that installs the binding."""
    library: str
    library_remedy: str
    kernel_marks: tuple[str, ...]
    """Files below the root that exist, all of them, when the kernel driver is loaded."""
    pci_vendor: str
    device_files: tuple[str, ...]
    """Glob patterns of the device files that a process must be able to open for reading and writing."""
    device_files_remedy: str
    hiding_variables: Mapping[str, bool]
    """Environment variable that hides devices → whether its being empty hides them all."""
    known_codes: Mapping[int, tuple[str, str]]
    """Code that initialising returns → (what it means, what to do)."""
    no_device_codes: frozenset[int] = frozenset({NO_DEVICE})
    """What initialising, or counting, returns where there is no device."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Explains, for one vendor on one node, why its GPUs cannot be used."""

    vendor: Vendor
    root: Path
    arm: Arm

    def node_has_gpu(self) -> bool:
        """Whether the node visibly has such a GPU: its kernel driver is loaded or it is on the PCI bus."""
        return all((self.root / mark).exists() for mark in self.vendor.kernel_marks) or self.on_bus() > 0

    def on_bus(self) -> int:
        """How many such GPUs the PCI bus lists."""
        return len(gpus_on_bus(self.root, self.vendor.pci_vendor))

    def hiding(self) -> list[str]:
        """The variables that hide devices from this process, as ``NAME=value``."""
        return [
            f"{name}={os.environ[name]}"
            for name, empty_hides in self.vendor.hiding_variables.items()
            if os.environ.get(name) or (empty_hides and name in os.environ)
        ]

    def binding_missing(self, error: ImportError) -> BackendUnavailable:
        what = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not import: {error}"
        remedy = f'pip install "gpuipc-doctor[{self.vendor.extra}]"'
        return self._unavailable(f"{self.vendor.binding} {what}", remedy)

    def library_missing(self, error: OSError) -> BackendUnavailable:
        reason = f"cannot load the driver library: {error}"
        return self._unavailable(reason, self.vendor.library_remedy)

    def entry_point_missing(self, call: str, error: Exception) -> BackendUnavailable:
        reason = f"{self.vendor.library} does not offer {call}, which {self.vendor.binding} needs: {error}"
        remedy = f"update the driver, or install a {self.vendor.binding} as old as the driver"
        return self._unavailable(reason, remedy)

    def initialising_failed(self, fault: DriverFault) -> BackendUnavailable:
        """Translate what initialising, or counting the devices, returned."""
        if denied := self._denied_device_file():
            return self._unavailable(f"{fault}: {denied}", self.vendor.device_files_remedy)
        if fault.code in self.vendor.known_codes:
            meaning, remedy = self.vendor.known_codes[fault.code]
            return self._unavailable(f"{fault}: {meaning}", remedy)
        if fault.code in self.vendor.no_device_codes:
            return self._no_device(fault)
        return self._unavailable(str(fault), "read the kernel's log (dmesg) for what the driver says")

    def _no_device(self, fault: DriverFault) -> BackendUnavailable:
        if hiding := self.hiding():
            reason = f"{fault}: {' and '.join(hiding)} leaves no {self.vendor.gpu} visible"
            names = " and ".join(assignment.partition("=")[0] for assignment in hiding)
            return self._unavailable(reason, f"unset {names}, or name a device that this node has")
        if self.node_has_gpu():
            reason = f"{fault}, although this node has an {self.vendor.gpu}"
            return self._unavailable(reason, "read the kernel's log (dmesg) for why the driver lost it")
        return self._unavailable(f"{fault}: this node has no {self.vendor.gpu}", "run on a node that has one")

    def _denied_device_file(self) -> str:
        """The first device file that exists and cannot be opened; empty when there is none.

        Opened rather than looked at: a container's device rules deny what the file's mode allows.
        """
        for pattern in self.vendor.device_files:
            for path in sorted(self.root.glob(pattern)):
                try:
                    with self.arm(f"open {path}"):
                        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
                except PermissionError as error:
                    return f"no permission to open {path} ({error.strerror})"
                except OSError:
                    continue  # something else than permission; the driver's own code says more
        return ""

    def _unavailable(self, reason: str, remedy: str) -> BackendUnavailable:
        return BackendUnavailable(reason, remedy, broken=self.node_has_gpu())
