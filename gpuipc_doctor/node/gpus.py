"""A node's GPUs from its kernel drivers' files, without a driver library.

NVIDIA: ``/proc/driver/nvidia/gpus/*/information``; ``Device Minor`` is the N of ``/dev/nvidiaN``. AMD: the
topology of ``/dev/kfd``, in the order in which ROCm numbers GPUs. Slurm names a job's GPUs by the number in
their device file's name (``gres.conf``): ``SLURM_JOB_GPUS=0,2``. Sources: NVIDIA driver README, "The /proc
Interface"; Linux, ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``; Slurm,
``src/plugins/gres/common/gres_common.c``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

from gpuipc_doctor.api.capabilities import CAPABILITIES
from gpuipc_doctor.files.node_files import Tree, gpus_on_bus, kernel_driver, matching, quietly, shown
from gpuipc_doctor.grouping import by_key
from gpuipc_doctor.model import Device, Fact
from gpuipc_doctor.vendors import AMD, INTEL, NVIDIA, SUPPORTED, Choice, SupportedVendor, untried


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU in the kernel driver's list."""

    backend: str
    index: int
    """Index among the vendor's GPUs of the node, as in ``nvidia-smi`` and ``rocm-smi``."""
    numbers: frozenset[int]
    """Numbers that may stand for the GPU in Slurm's variables."""
    uuid: str
    """Uuid in the driver's spelling; empty if unknown."""
    pci: str
    name: str

    @property
    def choice(self) -> Choice:
        return SUPPORTED[self.backend].choice


@dataclass(frozen=True, slots=True)
class JobGpus:
    """The GPUs of a job, out of those of its node."""

    listed: tuple[ListedGpu, ...]
    chosen: tuple[ListedGpu, ...]
    unknown: tuple[str, ...] = ()
    """Ids in the job's list that match no GPU of the node."""
    missing: tuple[str, ...] = ()
    """Those `unknown` ids that certainly mean a lost GPU."""

    @property
    def is_identified(self) -> bool:
        """Whether each GPU can be selected by uuid without querying a driver. False for AMD, because it is
        not known whether the kernel and the driver give a GPU the same uuid."""
        return bool(self.chosen) and all(gpu.uuid and gpu.choice.by_uuid for gpu in self.chosen)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs as devices. Their size is unknown, and all capabilities are assumed."""
        return _devices(self.chosen)

    @property
    def of_node(self) -> tuple[Device, ...]:
        """All GPUs of the node, as `devices` returns them."""
        return _devices(self.listed)

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu.backend for gpu in self.chosen))

    @property
    def known(self) -> str:
        """The numbers that the node's GPUs have, for an error message."""
        numbers = sorted({min(gpu.numbers) for gpu in self.listed if gpu.numbers})
        return ", ".join(map(str, numbers)) or "none"

    @property
    def ids(self) -> frozenset[str]:
        """All ids by which a job may name the selected GPUs."""
        return frozenset(str(number) for gpu in self.chosen for number in gpu.numbers)

    @property
    def visible(self) -> dict[str, str]:
        """Variables that hide all GPUs but the selected ones from a process."""
        own: dict[str, list[str]] = {}
        for gpu in self.chosen:
            uuid = gpu.uuid if gpu.choice.by_uuid else ""
            own.setdefault(gpu.choice.variable, []).append(uuid or str(gpu.index))
        orders = (vendor.choice.order.items() for vendor in SUPPORTED.values())
        return dict(chain(*orders)) | {name: ",".join(gpus) for name, gpus in own.items()}

    def numbered(self, found: Iterable[Device]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
        """(the driver's devices, numbered as in the kernel's list; selected GPUs that the driver does not
        list)."""
        if not self.listed:
            return tuple(found), ()
        left = by_key(((gpu.backend, gpu.pci), gpu) for gpu in self.chosen)  # parts of a GPU have one address
        numbered = {
            device: replace(device, index=parts.pop(0).index)
            for device in found
            if (parts := left.get((device.backend, device.pci)))
        }
        missing = [gpu for parts in left.values() for gpu in parts]
        labels = {device.label: gpu.label for device, gpu in numbered.items()}
        devices = tuple(
            replace(gpu, peers=frozenset(labels[label] for label in gpu.peers & labels.keys()))
            for gpu in numbered.values()
        )
        return devices, tuple(f"{gpu.backend}:{gpu.index} ({gpu.pci})" for gpu in missing)


def _devices(listed: Iterable[ListedGpu]) -> tuple[Device, ...]:
    devices = (Device(gpu.backend, gpu.index, gpu.uuid, gpu.pci, gpu.name, 0) for gpu in listed)
    return tuple(replace(each, capabilities=CAPABILITIES - each.vendor.lacks) for each in devices)


def of_node(root: str) -> tuple[ListedGpu, ...]:
    """All GPUs of the node: NVIDIA's, then AMD's, then Intel's."""
    tree = Tree(Path(root))
    return (*_nvidia(tree), *_amd(tree), *_intel_listed(tree.root))


def of_job(root: str, ids: str) -> JobGpus:
    """GPUs selected by ``ids`` (``0,2``); all GPUs of the node if empty."""
    tree, listed = Tree(Path(root)), of_node(root)
    wanted = [id_.strip() for id_ in ids.split(",") if id_.strip()]
    as_number = {id_: int(id_) for id_ in wanted if re.fullmatch("[0-9]{1,6}", id_)}
    if not wanted:
        return JobGpus(listed, listed)
    chosen = tuple(gpu for gpu in listed if gpu.numbers & set(as_number.values()))
    there = {number for gpu in chosen for number in gpu.numbers}
    unknown = tuple(shown(id_) for id_ in wanted if as_number.get(id_) not in there)
    can_tell = not _is_split(tree) and all(gpu.numbers for gpu in listed)
    missing = tuple(id_ for id_ in unknown if id_ in as_number) if can_tell else ()
    return JobGpus(listed, chosen, unknown, missing)


_NUMBER = re.compile(r"(?=.*[1-9])[\w.-]{4,64}", re.ASCII)


def of_each(name: str, told: Iterable[tuple[str, str]], source: str, form: str = "") -> Iterator[Fact]:
    """A fact about GPUs by PCI address, or about all if they are equal: ``0000:65:00.0 1650123456789; …``.

    Without values that are no serial or part number (``N/A``, zeros, no text), unless ``form`` allows them.
    None if nothing is left: the driver, or the kernel, does not know.
    """
    gpus = dict(told)
    known = {pci: text for pci, text in gpus.items() if re.fullmatch(form or _NUMBER, text)}
    equal = 1 < len(known) == len(gpus) and len({*known.values()}) == 1
    parts = {*known.values()} if equal else [f"{pci} {text}" for pci, text in known.items()]
    if parts:
        yield Fact(name, "; ".join(parts), source)


_NVIDIA = re.compile(r"^(Model|GPU UUID|Device Minor):(.*)$", re.MULTILINE)


def _is_split(tree: Tree) -> bool:
    """Whether a GPU is in MIG mode. Jobs then get GPU instances, which are in none of the files read here."""
    return next(tree.glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*"), None) is not None


def _nvidia(tree: Tree) -> Iterator[ListedGpu]:
    split = _is_split(tree)
    for index, file in enumerate(tree.glob("/proc/driver/nvidia/gpus/*/information")):
        said = {name: shown(value) for name, value in _NVIDIA.findall(quietly(tree.path(file)))}
        minor = said.get("Device Minor", "")
        # For a GPU not initialised since boot, the driver writes "GPU-????????-…".
        uuid = said.get("GPU UUID", "")
        yield ListedGpu(
            backend=NVIDIA.backend,
            index=index,
            numbers=frozenset({int(minor)} if minor.isdecimal() else ()),
            uuid="" if "?" in uuid or split else uuid,
            pci=file.split("/")[-2].lower(),
            name=said.get("Model", ""),
        )


_KFD = re.compile(r"^(simd_count|domain|location_id|drm_render_minor|unique_id) (\d+)$", re.MULTILINE)


def _amd(tree: Tree) -> Iterator[ListedGpu]:
    where = "/sys/class/kfd/kfd/topology/nodes"
    numbered = (file.split("/")[-2] for file in tree.glob(f"{where}/*/properties"))
    nodes = []
    for number in sorted(map(int, filter(str.isdecimal, numbered))):
        file = f"{where}/{number}/properties"
        said = {name: int(value) for name, value in _KFD.findall(quietly(tree.path(file)))}
        if said.get("simd_count"):  # the other nodes are CPUs
            nodes.append(said)
    for index, said in enumerate(nodes):
        place = said.get("location_id", 0)
        domain, bus, slot = said.get("domain", 0), place >> 8 & 0xFF, place & 0xFF
        pci = f"{domain:04x}:{bus:02x}:{slot >> 3:02x}.{slot & 7:x}"
        serial = said.get("unique_id", 0)
        numbers = {index, said.get("drm_render_minor", index)}
        name = shown(tree.line(f"/sys/bus/pci/devices/{pci}/product_name"))
        uuid = f"GPU-{serial:016x}" if serial else ""
        yield ListedGpu(AMD.backend, index, frozenset(numbers), uuid, pci, name)


def _intel_listed(root: Path) -> Iterator[ListedGpu]:
    """By number, as Level Zero numbers whole GPUs in PCI order; or by the number of the render node."""
    for index, device in enumerate(intel_gpus_of(root)):
        renders = (file.name.removeprefix("renderD") for file in matching(device, "drm/renderD*"))
        numbers = {index, *map(int, filter(str.isdecimal, renders))}
        yield ListedGpu(INTEL.backend, index, frozenset(numbers), "", device.name, _id(device))


def entries_in_force(root: Path, vendor: SupportedVendor, value: str) -> tuple[list[str], str]:
    """(the entries of a variable such as ``CUDA_VISIBLE_DEVICES`` that select GPUs, what is wrong in it).

    For all vendors, the list ends before the first entry that names no GPU, such as -1, and a GPU named
    twice hides all.
    """
    count, uuids = len(gpus_on_bus(root, vendor.pci)), _nvidia_uuids(root) if vendor.choice.by_uuid else []
    selected: dict[str, str] = {}  # GPU → its entry
    for entry in map(str.strip, value.split(",") if value else ()):
        if re.fullmatch(r"-\d+", entry):
            break
        if wrong := _mistake(entry, count, uuids):
            return [*selected.values()], wrong
        abbreviated = [uuid for uuid in uuids if uuid.startswith(entry.lower())]
        gpu = str(int(entry)) if entry.isdecimal() else abbreviated[0] if len(abbreviated) == 1 else entry
        if gpu in selected:
            return [], f"lists {entry} twice"
        selected[gpu] = entry
    return [*selected.values()], ""


def _mistake(entry: str, count: int, uuids: Collection[str]) -> str:
    """Why an entry names no GPU; empty if it may name one. ``count``: GPUs on the bus, 0 if unknown."""
    if entry.isdecimal() and count and int(entry) >= count:
        return f"lists {entry}, but this node's GPUs are 0 to {count - 1}"
    if not re.fullmatch(r"\d+|(GPU|MIG)-[0-9a-fA-F/-]+", entry):
        return f"has {entry!r}, which is neither a number nor a uuid"
    if entry.startswith("GPU-") and uuids and not any(map(str.startswith, uuids, repeat(entry.lower()))):
        return f"lists a uuid that no GPU of this node has: {entry}"
    return ""


def _nvidia_uuids(root: Path) -> list[str]:
    """Uuids of GPUs in files of NVIDIA's module, in lower case; none if that of a GPU is unknown."""
    texts = map(quietly, matching(root, "/proc/driver/nvidia/gpus/*/information"))
    found = (re.search(r"^GPU UUID:\s+(GPU-\S+)", text, re.MULTILINE) for text in texts)
    uuids = [uuid[1].lower() for uuid in found if uuid]
    return [] if any("?" in uuid for uuid in uuids) else uuids


_INTEGRATED = "0000:00:02.0"
"""Address of the GPU that is part of an Intel processor (QEMU, docs/igd-assign.txt)."""


EXPERIMENTAL = frozenset(backend for backend, vendor in SUPPORTED.items() if vendor.experimental)


def not_asked(root: str) -> frozenset[str]:
    """The experimental backends, unless the node has such a GPU that is no part of a processor."""
    return frozenset() if intel_gpus_of(Path(root)) else EXPERIMENTAL


def untried_here(root: str) -> str:
    """What screens say if the node has GPUs whose backend was never run on one; empty for others."""
    return untried(EXPERIMENTAL - not_asked(root))


def intel_gpus_of(root: Path) -> list[Path]:
    """Directories of Intel's GPUs on the PCI bus that are no part of a processor."""
    return [device for device in _intel(root) if device.name != _INTEGRATED]


def _intel(root: Path) -> list[Path]:
    """Without Intel's NPUs, which are processing accelerators (class 0x12)."""
    return [device for device in gpus_on_bus(root, INTEL.pci) if quietly(device / "class").startswith("0x03")]


def _id(device: Path) -> str:
    return ":".join(quietly(device / name).removeprefix("0x") for name in ("vendor", "device"))


_MOST_TILES = 4
"""Most tiles of an Intel GPU; each may be a device of its own (ZE_FLAT_DEVICE_HIERARCHY)."""


def intel_gpus(tree: Tree, mask: str) -> Fact:
    """``6 × 8086:0bd5 (i915)``: PCI id and kernel driver; ``mask``: ZE_AFFINITY_MASK.

    The driver ignores numbers that no device has (compute-runtime, execution_environment.cpp).
    """
    where = "/sys/bus/pci/devices"
    gpus = _intel(tree.root)
    if not gpus:
        return Fact("intel-gpus", None, f"no display controller of Intel in {where}")
    kinds = Counter(
        f"{_id(gpu)} ({kernel_driver(gpu) or 'no driver'}{', integrated' * (gpu.name == _INTEGRATED)})"
        for gpu in gpus
    )
    value = ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())
    numbers = re.findall(r"(\d+)[.\d]*(?:,|$)", mask) if re.fullmatch(r"[\d.,]+", mask) else []
    if numbers and all(int(number) >= len(gpus) * _MOST_TILES for number in numbers):
        value += f", all hidden by ZE_AFFINITY_MASK={mask}"
    return Fact("intel-gpus", value, f"{where} (experimental: never run on an Intel GPU)")
