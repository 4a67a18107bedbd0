"""All that a check file may import.

A check is one file with one `Check` and its role functions. ``probes`` plans, role functions run in
workers, ``judge`` is pure and sees completed probes only; what did not complete is judged by the engine.
"""

from gpuipc_doctor.api.allocator import Allocator, Block, Stream
from gpuipc_doctor.api.allocator import probe as allocator_probe
from gpuipc_doctor.api.allowance import share, share_of_free
from gpuipc_doctor.api.check import Check, Context, Control
from gpuipc_doctor.api.exchange import exchange_as_exporter, exchange_as_importer, judge_exchange
from gpuipc_doctor.api.freed import Freed, held_by
from gpuipc_doctor.api.gpu import (
    REUSES,
    BackendUnavailable,
    Buffer,
    DriverError,
    Gpu,
    GpuContext,
    GpuStream,
    ImportedPool,
    IpcMapping,
    Memory,
    PhysicalMemory,
    Pool,
    PoolMemory,
    VmmMapping,
)
from gpuipc_doctor.api.latency import Latency, figures, out_of_line, time_there_and_back
from gpuipc_doctor.api.ledger import (
    NOISE_BYTES,
    ODD_BYTES,
    PATIENCE_S,
    SETTLE_S,
    Account,
    Ledger,
    account,
    blind,
    holders,
    interval,
)
from gpuipc_doctor.api.messages import ENOUGH, LARGE_MESSAGES, SMALL_MESSAGES
from gpuipc_doctor.api.patterns import difference, mib, pattern
from gpuipc_doctor.api.samples import MemorySamples
from gpuipc_doctor.api.samples import series as memory_series
from gpuipc_doctor.api.trend import Slope, lasting, slope
from gpuipc_doctor.api.worker import Fabric, Mpi, Peer, Worker
from gpuipc_doctor.model import (
    Device,
    Evidence,
    EvidenceKind,
    FabricStack,
    Finding,
    Json,
    Launch,
    Line,
    Mark,
    MemoryShare,
    MpiStack,
    Probe,
    ProbeOutcome,
    Series,
    StatedFabric,
    Status,
    Tier,
)

__all__ = [
    "ENOUGH",
    "LARGE_MESSAGES",
    "NOISE_BYTES",
    "ODD_BYTES",
    "PATIENCE_S",
    "REUSES",
    "SETTLE_S",
    "SMALL_MESSAGES",
    "Account",
    "Allocator",
    "BackendUnavailable",
    "Block",
    "Buffer",
    "Check",
    "Context",
    "Control",
    "Device",
    "DriverError",
    "Evidence",
    "EvidenceKind",
    "Fabric",
    "FabricStack",
    "Finding",
    "Freed",
    "Gpu",
    "GpuContext",
    "GpuStream",
    "ImportedPool",
    "IpcMapping",
    "Json",
    "Latency",
    "Launch",
    "Ledger",
    "Line",
    "Mark",
    "Memory",
    "MemorySamples",
    "MemoryShare",
    "Mpi",
    "MpiStack",
    "Peer",
    "PhysicalMemory",
    "Pool",
    "PoolMemory",
    "Probe",
    "ProbeOutcome",
    "Series",
    "Slope",
    "StatedFabric",
    "Status",
    "Stream",
    "Tier",
    "VmmMapping",
    "Worker",
    "account",
    "allocator_probe",
    "blind",
    "difference",
    "exchange_as_exporter",
    "exchange_as_importer",
    "figures",
    "held_by",
    "holders",
    "interval",
    "judge_exchange",
    "lasting",
    "memory_series",
    "mib",
    "out_of_line",
    "pattern",
    "share",
    "share_of_free",
    "slope",
    "time_there_and_back",
]
