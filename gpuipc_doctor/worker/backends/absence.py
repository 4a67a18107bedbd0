"""Why a backend cannot be used here, in one line, and what to do about it.

Files are read below ``root``: ``/`` on a real node, a tree of files on a simulated one.
"""

from __future__ import annotations

import errno
import grp
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.api.driver_errors import BackendUnavailable
from gpuipc_doctor.api.gpu import Arm
from gpuipc_doctor.files.node_files import Tree, gpus_on_bus, is_off_bus, is_passed_through, matching, quietly
from gpuipc_doctor.model import DriverFault
from gpuipc_doctor.node.gpus import entries_in_force
from gpuipc_doctor.vendors import SupportedVendor

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/.singularity.d", "/run/host/container-manager")

_OF_SLURM = "NoDevFiles"
"""Slurm's value for the list of GPUs of a job that was given none (src/interfaces/gres.c)."""

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE`` and ``hipErrorNoDevice``."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why initialising a driver failed, and what to do about it."""

    meaning: str
    remedy: str
    is_absence: bool = False
    """Whether the driver is not installed, rather than broken."""


Look = Callable[[Tree], Cause | None]
"""Looks for one cause in the node's files and in this process."""


@dataclass(frozen=True, slots=True)
class Causes:
    """Why a vendor's driver may not initialise."""

    known_codes: Mapping[int, Cause]
    """Error code of initialisation → its cause."""
    looks: Mapping[int, tuple[Look, ...]]
    """Error code of initialisation → causes to look for on the node, before the code's general one."""
    withheld_by: Callable[[Mapping[str, str]], Cause | None] = lambda environ: None
    """The container's variable because of which the driver library is missing; None if there is none."""
    no_device_codes: frozenset[int] = frozenset({NO_DEVICE})
    """Codes with which initialising or counting devices fails because there is no device."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Explains, for one vendor on one node, why its GPUs cannot be used."""

    vendor: SupportedVendor
    causes: Causes
    root: Path
    arm: Arm

    def node_has_gpu(self) -> bool:
        """Whether the node has a GPU of this vendor: its kernel driver is loaded, or the PCI bus has one."""
        marks = [(self.root / mark).exists() for mark in self.vendor.kernel_marks]
        return (bool(marks) and all(marks)) or self.on_bus() > 0

    def on_bus(self) -> int:
        """Number of this vendor's GPUs on the PCI bus, without those that virtual machines were given."""
        gpus = gpus_on_bus(self.root, self.vendor.pci)
        return sum(not is_passed_through(gpu) for gpu in gpus)

    def off_bus(self) -> list[str]:
        """PCI addresses of this vendor's GPUs that answer no more."""
        gpus = gpus_on_bus(self.root, self.vendor.pci)
        with self.arm("read /sys/bus/pci/devices/*/config") if gpus else nullcontext():
            return [gpu.name for gpu in gpus if is_off_bus(gpu)]

    def instances_given(self) -> int:
        """Number of MIG instances that this process or its container was given by name; 0 if by none."""
        for name in self.vendor.instances:
            entries = {entry.strip() for entry in os.environ.get(name, "").split(",")}
            if given := [entry for entry in entries if re.match(r"MIG-|\d+:\d", entry)]:
                return len(given)
        return 0

    def hiding(self) -> list[str]:
        """Variables that hide devices from this process, as ``NAME=value``."""
        return [
            f"{name}={os.environ[name]}"
            for name, empty_hides in self.vendor.hides.items()
            if os.environ.get(name) or (empty_hides and name in os.environ)
        ]

    def mistakes(self) -> list[str]:
        """What is wrong in the lists of GPUs that variables hold: the first such entry ends the list."""
        return [
            f"{name} {wrong}"
            for name in self.vendor.hides
            if (wrong := entries_in_force(self.root, self.vendor, os.environ.get(name, ""))[1])
        ]

    def binding_missing(self, error: ImportError) -> BackendUnavailable:
        what = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not import: {error}"
        remedy = f"pip install '{self.vendor.binding.requirement}'"
        return self._unavailable(f"{self.vendor.binding.package} {what}", remedy)

    def library_missing(self, error: OSError) -> BackendUnavailable:
        reason = f"cannot load the driver library: {error}"
        if remedy := self._loader_remedy(str(error)):
            return self._unavailable(reason, remedy)
        if cause := self.causes.withheld_by(os.environ):
            return self._unavailable(f"{reason}; {cause.meaning}", cause.remedy)
        return self._unavailable(reason, self.vendor.library_remedy, is_absence=self.vendor.experimental)

    def _loader_remedy(self, said: str) -> str:
        """What to do about a library that exists and cannot be loaded, in the words of glibc's loader
        (elf/dl-load.c, dl-version.c); empty if it does not exist."""
        file, _, why = said.partition(": ")
        if "file too short" in why:
            return f"{file} is empty or cut: remove it (from the image, if a container was saved with it)"
        if "ELF" in why:
            return f"{file} is for another processor or 32 bits: name the right directory in LD_LIBRARY_PATH"
        if version := re.search(r"version [`']?(GLIBC(?:XX)?_[\d.]+)", why):
            return f"use an image or a system whose C library has {version[1]}"
        if "cannot open shared object" in why and not file.startswith(
            self.vendor.library.partition(".so")[0]
        ):
            return f"install the package that has {file}, which {self.vendor.library} needs"
        return ""

    def entry_point_missing(self, call: str, error: Exception) -> BackendUnavailable:
        reason = f"{self.vendor.library} has no {call}, which {self.vendor.binding.package} needs: {error}"
        remedy = f"update the driver, or install the {self.vendor.binding.package} release for this driver"
        return self._unavailable(reason, remedy)

    def initialising_failed(self, fault: DriverFault) -> BackendUnavailable:
        """The reason for an error of initialising or of counting devices: the code's own cause first."""
        causes = (
            *(look(Tree(self.root)) for look in self.causes.looks.get(fault.code, ())),
            self.causes.known_codes.get(fault.code),
            self._denied_device_files(),
        )
        if cause := next(filter(None, causes), None):
            return self._unavailable(f"{fault}: {cause.meaning}", cause.remedy, is_absence=cause.is_absence)
        if fault.code in self.causes.no_device_codes:
            return self._no_device(fault)
        return self._unavailable(str(fault), "check dmesg for driver messages")

    def _no_device(self, fault: DriverFault) -> BackendUnavailable:
        vendor = self.vendor
        hiding = self.hiding()
        if withheld := [assignment for assignment in hiding if assignment.endswith(f"={_OF_SLURM}")]:
            reason = f"{fault}: Slurm gave this job no GPU ({' '.join(withheld)})"
            return self._unavailable(reason, "request GPUs for the job: --gres=gpu:1, or --gpus=1")
        if hiding:
            reason = f"{fault}: {' and '.join(hiding)} leaves no {vendor.gpu} visible"
            names = " and ".join(assignment.partition("=")[0] for assignment in hiding)
            remedy = f"unset {names}, or set {names} to GPUs of this node"
            reason = "; ".join((reason, *self.mistakes()))
            if vendor.renumbering and {*vendor.renumbering} <= {*names.split(" and ")}:
                first, second = vendor.renumbering
                remedy = f"unset {second}: it counts, from 0, only the GPUs that {first} leaves"
            return self._unavailable(reason, remedy)
        if self.node_has_gpu():
            reason = f"{fault}, although this node has an {vendor.gpu}"
            return self._unavailable(reason, "check dmesg for why the driver lost the GPU")
        if passed := len(gpus_on_bus(self.root, vendor.pci)):
            reason = f"{fault}: this node's {passed} {vendor.gpu}s are assigned to vfio-pci"
            return self._unavailable(reason, f"run in the virtual machine that was given the {vendor.gpu}")
        absent = f"{fault}: this node has no {vendor.gpu}"
        return self._unavailable(absent, f"run on a node with an {vendor.gpu}")

    def _denied_device_files(self) -> Cause | None:
        """The device files that must be opened and cannot be, for example in a container.

        Denied files of single GPUs explain nothing while another GPU's can be opened: a job is often confined
        to its own GPUs.
        """
        for pattern in self.vendor.control_files:
            for path in matching(self.root, pattern):
                if denied := self._denial(path):
                    return denied
        files = filter(self._may_be_ours, matching(self.root, self.vendor.gpu_files))
        denials = list(map(self._denial, files))
        return denials[0] if denials and all(denials) else None

    def _may_be_ours(self, file: Path) -> bool:
        """Whether a GPU's device file is of this vendor: all vendors' GPUs have render nodes."""
        return quietly(self.root / "sys/class/drm" / file.name / "device/vendor") in ("", self.vendor.pci)

    def _denial(self, path: Path) -> Cause | None:
        """Why this process may not open the device file; None for any other error, of which the driver's own
        code says more.

        The device rules of a control group refuse with EPERM (Linux, fs/namei.c, devcgroup_inode_permission),
        the file's mode and a security module with EACCES.
        """
        try:
            with self.arm(f"open {path}"):
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        except PermissionError as error:
            meaning = f"no permission to open {path} ({error.strerror})"
            is_rule = error.errno == errno.EPERM
            return Cause(meaning, self._pass_device() if is_rule else self._admit_process(path.stat()))
        except OSError:
            pass
        return None

    def _is_in_container(self) -> bool:
        return any(map(Tree(self.root).exists, CONTAINER_MARKS))

    def _pass_device(self) -> str:
        """What to do if device rules refuse the device file."""
        if self._is_in_container():
            return (
                "start the container again, with its devices (--device): a reload of systemd takes them away"
            )
        return "request the GPU for this job (Slurm: --gres=gpu:1), or run outside the job or service"

    def _admit_process(self, status: os.stat_result) -> str:
        """What to do if the mode of a device file, or a security module, refuses this process."""
        is_member = status.st_gid in (os.getegid(), *os.getgroups())
        if status.st_mode & 0o006 == 0o006 or (is_member and status.st_mode & 0o060 == 0o060):
            if Tree(self.root).line("/sys/fs/selinux/enforce") == "1":
                return "setsebool container_use_devices on (SELinux)"
            return "the file's mode admits this process: see what dmesg says of SELinux, AppArmor or Landlock"
        if status.st_mode & 0o060 != 0o060:
            mode = f"{stat.S_IMODE(status.st_mode):o}"
            return f"run as root: the file's mode is {mode}; or let udev give it a group"
        try:
            group = grp.getgrgid(status.st_gid).gr_name
        except KeyError:  # a group of the host's that the image does not name
            group = str(status.st_gid)
        if self._is_in_container():
            return (
                f"start the container with the group of the file: --group-add {group} (podman: keep-groups)"
            )
        return f"join the group of the file: usermod -aG {group} USER, then log in again"

    def _unavailable(self, reason: str, remedy: str, *, is_absence: bool = False) -> BackendUnavailable:
        broken = self.node_has_gpu() and not is_absence
        return BackendUnavailable(reason, remedy, broken=broken, off_bus=self.off_bus())
