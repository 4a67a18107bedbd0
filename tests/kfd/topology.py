"""The files of /sys and /dev in which AMD's user space finds its GPUs, as on a node of MI210s.

Sources: Linux 6.18, drivers/gpu/drm/amd/amdkfd/kfd_topology.c (names of properties); libhsakmt's topology.c
and libdrm's xf86drm.c (the properties that are read). Names, identities and limits are those of gfx90a.
"""

from __future__ import annotations

from pathlib import Path

FIRST_RENDER_MINOR = 128
MIB = 1 << 20

_PCIE = 2  # CRAT_IOLINK_TYPE_PCIEXPRESS
_HEAP_SYSTEM, _HEAP_VRAM = 0, 1
_DEVICE_ID = 0x740F


def write(root: Path, gpus: int, mib: int, cores: int) -> None:
    """Fill ``root/sys`` and ``root/dev`` for ``gpus`` GPUs with ``mib`` MiB of memory each."""
    topology = root / "sys/devices/virtual/kfd/kfd/topology"
    _properties(topology / "system_properties", platform_oem=0, platform_id=0, platform_rev=1)
    _text(topology / "generation_id", "1")
    _host(topology / "nodes/0", gpus, cores)
    _text(root / "dev/kfd", "")
    _text(root / "sys/module/amdgpu/initstate", "live")
    (root / "sys/module/amdgpu/parameters").mkdir()
    for gpu in range(gpus):
        _gpu(topology / f"nodes/{gpu + 1}", gpu, gpus, mib)
        _render_node(root, gpu)
        _pci_device(root, gpu, mib)


def _host(node: Path, gpus: int, cores: int) -> None:
    _text(node / "gpu_id", "0")
    _text(node / "name", "")
    _properties(node / "properties", cpu_cores_count=cores, mem_banks_count=1, io_links_count=gpus)
    _properties(node / "mem_banks/0/properties", heap_type=_HEAP_SYSTEM, size_in_bytes=16 << 30, width=64)
    for gpu in range(gpus):
        _link(node / f"io_links/{gpu}", 0, gpu + 1, weight=20)


def _gpu(node: Path, gpu: int, gpus: int, mib: int) -> None:
    others = [other for other in range(gpus) if other != gpu]
    _text(node / "gpu_id", str(0x5A00 + gpu))  # emulator.h: gpu_id()
    _text(node / "name", "aldebaran")
    _properties(
        node / "properties",
        simd_count=416,
        simd_per_cu=4,
        cu_per_simd_array=14,
        simd_arrays_per_engine=1,
        array_count=8,
        num_xcc=1,
        wave_front_size=64,
        max_waves_per_simd=8,
        max_slots_scratch_cu=32,
        lds_size_in_kb=64,
        num_gws=64,
        gfx_target_version=90010,  # 9.0.10: gfx90a
        vendor_id=0x1002,
        device_id=_DEVICE_ID,
        domain=0,
        location_id=_bus(gpu) << 8,
        drm_render_minor=FIRST_RENDER_MINOR + gpu,
        unique_id=(1 << 60) + gpu + 1,
        mem_banks_count=1,
        caches_count=2,
        io_links_count=1 + len(others),
        num_sdma_engines=2,
        num_sdma_queues_per_engine=8,
        num_cp_queues=24,
        max_engine_clk_fcompute=1700,
        max_engine_clk_ccompute=2000,
        fw_version=69,
        sdma_fw_version=8,
        capability=0x2280,  # doorbells of 64 bits, watch points
    )
    _properties(
        node / "mem_banks/0/properties",
        heap_type=_HEAP_VRAM,
        size_in_bytes=mib * MIB,
        width=4096,
        mem_clk_max=1600,
    )
    for cache, (level, kib, line) in enumerate([(1, 16, 64), (2, 8192, 128)]):
        _properties(
            node / f"caches/{cache}/properties",
            level=level,
            size=kib,
            cache_line_size=line,
            type=9,
            sibling_map=1,
        )
    _link(node / "io_links/0", gpu + 1, 0, weight=20)
    for number, other in enumerate(others, 1):
        _link(node / f"io_links/{number}", gpu + 1, other + 1, weight=40)


def _render_node(root: Path, gpu: int) -> None:
    minor = FIRST_RENDER_MINOR + gpu
    device = root / f"sys/dev/char/226:{minor}/device"
    for name in (f"renderD{minor}", f"card{gpu}"):
        (device / "drm" / name).mkdir(parents=True)
    _text(root / f"dev/dri/renderD{minor}", "")
    _text(
        device / "uevent",
        f"DRIVER=amdgpu\nPCI_ID=1002:{_DEVICE_ID:X}\nPCI_SUBSYS_ID=1002:0C34\nPCI_SLOT_NAME=0000:{_bus(gpu):02x}:00.0",
    )


def _pci_device(root: Path, gpu: int, mib: int) -> None:
    device = root / f"sys/bus/pci/devices/0000:{_bus(gpu):02x}:00.0"
    _text(device / "vendor", "0x1002")
    _text(device / "device", f"{_DEVICE_ID:#x}")
    _text(device / "class", "0x038000")
    _text(device / "product_name", "AMD Instinct MI210")
    _text(device / "mem_info_vram_total", str(mib * MIB))
    _text(device / "mem_info_vram_used", "0")  # interposed.c provides the content


def _bus(gpu: int) -> int:
    return 0x21 + gpu


def _link(link: Path, begin: int, end: int, weight: int) -> None:
    _properties(
        link / "properties",
        type=_PCIE,
        node_from=begin,
        node_to=end,
        weight=weight,
        min_bandwidth=312,
        max_bandwidth=31504,
        flags=1,
    )


def _properties(path: Path, **values: int) -> None:
    _text(path, "\n".join(f"{name} {value}" for name, value in values.items()))


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
