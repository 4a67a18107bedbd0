"""A node's files below a root: ``/`` on a real node, a tree of files on a simulated one."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.files import reading

_MAX_BYTES = 1 << 20
"""Maximum bytes read of a file. All files needed here are shorter; a longer one would only use memory."""

_LONGEST = 32 << 20
"""Maximum bytes read of a process's files: it may have 65,530 mappings, each with a path."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Files below a root. Arguments and results are absolute paths of the node, such as ``/proc/cmdline``."""

    root: Path

    @classmethod
    def of_machine(cls) -> Tree:
        """The files of this machine, also while a simulated node is examined."""
        return cls(Path("/"))

    @property
    def is_real(self) -> bool:
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        """The path on this machine of the file that the node calls ``name``."""
        return self.root / name.lstrip("/")

    def name(self, path: Path) -> str:
        """The node's own name for a file that `path` or `glob` returned."""
        return f"/{path.relative_to(self.root)}"

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def raw(self, name: str) -> bytes:
        """The file's bytes. Raises `OSError`."""
        try:
            with reading.opened(self.path(name)) as fd, open(fd, "rb", closefd=False) as file:
                return file.read(_MAX_BYTES)
        except reading.Unreadable as reason:
            if str(reason) == reading.DIRECTORY:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name) from None
            raise OSError(errno.EINVAL, str(reason), name) from None

    def text(self, name: str) -> str:
        return self.raw(name).decode(errors="replace")

    def line(self, name: str) -> str:
        """First line of a file; empty if unreadable."""
        try:
            return self.text(name).partition("\n")[0]
        except OSError:
            return ""

    def glob(self, pattern: str) -> Iterator[str]:
        """The node's matching files, in order; unreadable directories match nothing."""
        yield from map(self.name, matching(self.root, pattern))

    def real_name(self, name: str) -> str:
        """The path behind all links; ``name`` itself if they lead out of the tree."""
        real = self.path(name).resolve()
        root = self.root.resolve()
        return f"/{real.relative_to(root)}" if real.is_relative_to(root) else name


def matching(root: Path, pattern: str) -> list[Path]:
    """The matching files below ``root``, in order; an unreadable directory matches nothing."""
    try:
        return sorted(root.glob(pattern.lstrip("/")))
    except OSError:
        return []


def quietly(file: Path) -> str:
    """A file's text without surrounding white space; empty if unreadable."""
    try:
        return reading.sample(file, _LONGEST).decode(errors="replace").strip()
    except reading.Unreadable:
        return ""


def number(file: Path) -> int | None:
    """The integer in a file that contains nothing else; None if unreadable, or for any other text."""
    text = quietly(file)
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None


_DISPLAYS = ("0x03", "0x12")
"""Prefixes of the PCI classes of display controllers, and of processing accelerators such as AMD's MI300."""


def gpus_on_bus(root: Path, vendor: str, read: Callable[[Path], str] = quietly) -> list[Path]:
    """Directories of a vendor's GPUs below ``root``, by PCI address."""
    return [
        device
        for device in matching(root, "/sys/bus/pci/devices/*")
        if read(device / "vendor") == vendor and read(device / "class").startswith(_DISPLAYS)
    ]


def is_passed_through(device: Path) -> bool:
    """Whether a PCI device is bound to ``vfio-pci``, by which virtual machines are given devices."""
    return kernel_driver(device) == "vfio-pci"


_HEADER_BYTES = 64
"""Bytes of a PCI configuration that every user can read."""


def is_off_bus(device: Path) -> bool:
    """Whether a PCI device answers no more: its whole configuration reads as ff, which ``lspci`` shows as
    revision ff.

    A device that sleeps, or that a virtual machine was given, is not asked. Of a virtual function only the
    first four bytes are ff (PCI Express, "Single Root I/O Virtualization").
    """
    if quietly(device / "power/runtime_status") == "suspended" or is_passed_through(device):
        return False
    try:
        header = reading.sample(device / "config", _HEADER_BYTES)
    except reading.Unreadable:
        header = b""
    return header == b"\xff" * _HEADER_BYTES or quietly(device / "revision") == "0xff"


def kernel_driver(device: Path) -> str:
    """Name of the kernel driver that is bound to a PCI device; empty if none is."""
    found = re.search(r"^DRIVER=(\S+)$", quietly(device / "uevent"), re.MULTILINE)
    return found[1] if found else ""


def shown(text: str) -> str:
    """A value as one printable line for terminals."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
