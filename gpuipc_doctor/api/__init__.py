"""Everything that a check file may import.

A check is one file with one `Check` and its role functions. ``probes`` plans the probes, role functions run
in workers, and ``judge``, a pure function, judges completed probes. The engine judges incomplete probes. The
names imported here are the interface; what few checks need is in the modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gpuipc_doctor.api.check import Check, Context, Control
from gpuipc_doctor.api.data_patterns import (
    difference,
    differences,
    pattern,
    reader_of,
    unlike_pattern,
    write_glances,
    write_pattern,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.exchange import (
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
)
from gpuipc_doctor.api.gpu import (
    BackendUnavailable,
    Buffer,
    DriverError,
    Gpu,
    GpuStream,
    IpcMapping,
    Memory,
    PhysicalMemory,
    Pool,
    unless_refused,
)
from gpuipc_doctor.api.idle_counter import Reading
from gpuipc_doctor.api.ledger import (
    NOISE_BYTES,
    ODD_BYTES,
    Ledger,
    account,
    accounts,
    begin_when_asked,
    blind,
    look_on,
)
from gpuipc_doctor.api.memory_limit import share, share_of_free
from gpuipc_doctor.api.node_placement import misplaced
from gpuipc_doctor.api.process_leaks import watched
from gpuipc_doctor.api.worker import Collectives, Communicator, Fabric, Mpi, Peer, Worker
from gpuipc_doctor.model import (
    AtRest,
    Device,
    Evidence,
    EvidenceKind,
    FabricStack,
    Finding,
    Json,
    Launch,
    Line,
    Measurement,
    MpiStack,
    Probe,
    ProbeOutcome,
    Series,
    StatedFabric,
    Status,
    Tier,
)

__all__ = [  # noqa: RUF022 (by purpose)
    # A check, its probes, what it concludes
    "Check",
    "Context",
    "Control",
    "Tier",
    "Probe",
    "ProbeOutcome",
    "Device",
    "Finding",
    "Evidence",
    "EvidenceKind",
    "Status",
    "Measurement",
    "Series",
    "Json",
    # What a check is told of the node
    "AtRest",
    "FabricStack",
    "Launch",
    "Line",
    "MpiStack",
    "StatedFabric",
    # What a role has
    "Worker",
    "Peer",
    "Communicator",
    "Collectives",
    "Mpi",
    "Fabric",
    # Device memory and what else a driver gives
    "Gpu",
    "Buffer",
    "Memory",
    "IpcMapping",
    "PhysicalMemory",
    "Pool",
    "GpuStream",
    "DriverError",
    "BackendUnavailable",
    "unless_refused",
    "share",
    "share_of_free",
    # Data: written, read again, compared
    "pattern",
    "difference",
    "differences",
    "write_pattern",
    "wrong_pattern",
    "unlike_pattern",
    "write_glances",
    "wrong_glances",
    "reader_of",
    # Two roles that exchange a handle
    "exchange_as_exporter",
    "exchange_as_importer",
    "closing_order",
    "judge_exchange",
    "misplaced",
    # Memory that a device or a process loses
    "Ledger",
    "Reading",
    "account",
    "accounts",
    "look_on",
    "blind",
    "begin_when_asked",
    "NOISE_BYTES",
    "ODD_BYTES",
    "watched",
]

_ELSEWHERE = {
    "gpuipc_doctor.api.allocator": ("Allocator Block Stream allocator_probe=probe give_back use_once "),
    "gpuipc_doctor.api.memory_limit": "Bounded",
    "gpuipc_doctor.api.buffer_growth": (
        "BufferGrowth equal_sizes growing_sizes held_by how_many share_no_address "
    ),
    "gpuipc_doctor.api.equal_gpus": "odd_gpus picture",
    "gpuipc_doctor.api.fabrics": "FABRICS",
    "gpuipc_doctor.api.gpu": (
        "GpuContext ImportedPool Kernels KernelsUnavailable Linear PoolMemory REUSES VmmMapping "
        "WITHOUT_GPU_IPC lacking "
    ),
    "gpuipc_doctor.api.latency": (
        "Latency figures measurements out_of_line record_bandwidth time_there_and_back "
    ),
    "gpuipc_doctor.api.ledger": ("Account PATIENCE_S REINSTALL SETTLE_S holders interval ledger_in_turn "),
    "gpuipc_doctor.api.message_sizes": "ENOUGH LARGE_MESSAGES SIZES_OPTION SMALL_MESSAGES",
    "gpuipc_doctor.api.offered_memory": (
        "BY_DESCRIPTOR BY_HANDLE BY_POINTER SHARED_BY offer_memory open_offered "
    ),
    "gpuipc_doctor.api.data_patterns": "BOUNDARIES glanced_at mib read_unless_pattern write_zeros",
    "gpuipc_doctor.api.process_leaks": "figures_of_process judge_processes",
    "gpuipc_doctor.api.program_loss": "judge_loss repeat_if_lost",
    "gpuipc_doctor.api.program_memory": (
        "MemorySamples judge_hidden memory_series=series used_since_the_start "
    ),
    "gpuipc_doctor.api.slopes": "Slope last_third lasting slope",
    "gpuipc_doctor.api.worker": "Child ChildGone ChildHangs",
    "gpuipc_doctor.model": ("CollectiveLibrary CollectiveStack Mark MemoryShare Workaround "),
}
"""Names that the api of 0.2.0 or later has exported, by module; `=`: the name there is another."""

if not TYPE_CHECKING:  # else every name would be taken for one of the api

    def __getattr__(name: str) -> object:
        """A name that a site's check imports from here although it is in a module."""
        for module, names in _ELSEWHERE.items():
            for entry in names.split():
                exported, _, real = entry.partition("=")
                if name == exported:
                    return getattr(import_module(module), real or name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
