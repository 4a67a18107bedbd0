"""The lines of a first site config, from the facts of a node."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path

from gpuipc_doctor import node_name
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Device, Fact, Node
from gpuipc_doctor.node import fabric_devices
from gpuipc_doctor.probe_types import MpiStack
from gpuipc_doctor.site import hosts
from gpuipc_doctor.site.show import flow
from gpuipc_doctor.vendors import SUPPORTED, untried
from gpuipc_doctor.versions import parse

_TOLD = ("nvidia-driver", "rocm", "cray-mpich", "libfabric", "shs-libfabric", "ucx")
"""Components whose versions a site config usually prescribes."""

_SETTINGS = ("persistence", "mig", "compute-mode", "iommu", "numa-balancing")
_MODULES = ("nvidia_peermem", "gdrdrv", "xpmem", "kdreg2")


def lines(
    node: Node,
    base: Path | None,
    devices: Sequence[Device],
    facts: Iterable[Fact],
    mpi: MpiStack | None,
) -> Iterator[str]:
    host = node_name.short()
    yield f"# What gpuipc-doctor found on {host} on {date.today()}: a site config to correct and complete."
    if node.simulated:
        yield f"# SIMULATED (profile {node.simulated}): not a real node."
    yield "# `gpuipc-doctor config show --all` shows every key; site-configs/generic.yaml explains them."
    yield ""
    yield from _base(base, devices)
    yield "# The nodes that this config is for: Slurm's ClusterName, a node set (ClusterShell's), or both."
    cluster = hosts.cluster_name(os.environ)
    yield f"cluster: {flow(cluster)}" if cluster else "# cluster: no Slurm found"
    yield f"# hosts: {flow(host)}"
    yield ""
    facts = tuple(facts)
    yield from _gpus(devices)
    yield from _versions(facts)
    yield from _settings(facts, Path(node.root))
    here = fabric_devices.adapters(Path(node.root))
    fabric = next((name for name, found in here.items() if found), "")
    yield f"# The network between nodes, from {fabric_devices.CXI} or {fabric_devices.VERBS}."
    yield f"fabric: {fabric}" if fabric else "# fabric: no adapter found; tcp, or none"
    counts = {name: len(found) for name, found in fabric_devices.active(Path(node.root)).items() if found}
    yield f"adapters: {flow(counts)}" if counts else "# adapters: {verbs: 8}    how many must be active"
    yield ""
    yield from _mpi(mpi)


def _base(base: Path | None, devices: Sequence[Device]) -> Iterator[str]:
    if base is not None:
        yield "# The shipped file for this node; the settings below override it."
        yield f"extends: {flow(base.stem)}"
    else:
        backends = {device.backend for device in devices}
        names = [vendor.site for backend, vendor in SUPPORTED.items() if backend in backends]
        yield "# No shipped config matches this node. If its cluster uses Slurm, try:"
        yield from (f"# extends: {name}" for name in names or [vendor.site for vendor in SUPPORTED.values()])
    yield ""


def _gpus(devices: Sequence[Device]) -> Iterator[str]:
    yield "# The GPUs, as the drivers list them; a node with fewer fails, or without peer access between all."
    if untested := untried(device.backend for device in devices):
        yield f"# {untested}"
    models = Counter(device.name for device in devices)
    if len(models) > 1:
        yield f"# {', '.join(f'{count} × {name}' for name, count in models.items())}"
        yield f"gpus: {flow({'count': len(devices)})}"
    elif models:
        [(name, count)] = models.items()
        labels = {device.label for device in devices}
        joined = count > 1 and all(labels <= {device.label, *device.peers} for device in devices)
        peers = {"peers": "all"} if joined else {}
        yield f"gpus: {flow({'model': name, 'count': count, **peers})}"
    else:
        yield "# gpus: {model: A100, count: 4}    an example: no GPU was found"
    yield ""


def _versions(facts: Iterable[Fact]) -> Iterator[str]:
    yield "# The versions found. An older one is a WARN, or with `else: fail` a FAIL."
    here = {fact.name: fact.value for fact in facts if fact.value and parse(fact.name, fact.value)}
    found = [f"  {name}: {flow({'from': here[name], 'else': 'warn'})}" for name in _TOLD if name in here]
    yield "versions:" if found else "# versions:"
    yield from found or [
        "#   nvidia-driver: {from: 535.104.05, else: fail}    an example: no driver was found"
    ]
    yield ""


def _settings(facts: Iterable[Fact], root: Path) -> Iterator[str]:
    here = {fact.name: fact.value for fact in facts if fact.value}
    yield "# Settings of the node, and kernel modules: another value is a WARN."
    found = {name: here[name] for name in _SETTINGS if name in here}
    yield f"settings: {flow(found)}" if found else "# settings: {persistence: on, iommu: [off, passthrough]}"
    loaded = {name: "loaded" for name in _MODULES if next(Tree(root).glob(f"/sys/module/{name}"), None)}
    yield f"kernel_modules: {flow(loaded)}" if loaded else "# kernel_modules: {nvidia_peermem: loaded}"
    yield ""
    yield "# What the jobs need, and checks that must not be skipped on these nodes:"
    yield "# shared_memory: {free_gib: 8}"
    yield "# limits: {locked_memory_mib: unlimited, open_files: 65536}"
    yield "# required: [ipc-handles, ipc-reopen]"
    yield ""
    yield "# The tier of `gpuipc-doctor check --all`: prolog, acceptance or soak."
    yield "tier: acceptance"
    yield ""


def _mpi(mpi: MpiStack | None) -> Iterator[str]:
    yield "# The MPI of the ranks. Omitted values are found in each run, through PATH and mpi4py."
    if mpi is None:
        yield "# An example, since no MPI was found:"
        yield "# mpi: {library: …/libmpi.so.12, launcher: 'srun -N{nodes} -n{ranks}'}"
        return
    takes = ", ".join(sorted(mpi.takes)) or "no"
    yield f"# Found: {mpi.family} {mpi.version}, which accepts {takes} device pointers."
    yield "mpi:"
    yield f"  library: {flow(mpi.library)}"
    yield f"  # launcher: {flow(' '.join(mpi.launch.command))}"
    yield ""
    yield "# The jobs' other settings: modules, variables, and Cray's GTL library."
    yield "# modules: [cray-mpich]"
    yield '# environment: {MPICH_GPU_SUPPORT_ENABLED: "1"}'
    yield '# preload: {cuda: {library: "${CRAY_MPICH_ROOTDIR}/gtl/lib/libmpi_gtl_cuda.so", why: Cray MPICH}}'
