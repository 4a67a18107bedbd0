"""Everything that a check file may import.

A check is one file with one `Check` and its role functions. ``probes`` plans the probes, role functions run
in workers, and ``judge``, a pure function, judges completed probes. The engine judges incomplete probes. The
names imported here are the interface.
"""

from gpuipc_doctor.api.allocator import Allocator, Block, Stream, give_back, use_once
from gpuipc_doctor.api.allocator import probe as allocator_probe
from gpuipc_doctor.api.allowance import Bounded, share, share_of_free
from gpuipc_doctor.api.buffer_growth import (
    BufferGrowth,
    equal_sizes,
    growing_sizes,
    held_by,
    how_many,
    share_no_address,
)
from gpuipc_doctor.api.check import Check, Context, Control
from gpuipc_doctor.api.equal_gpus import odd_gpus, picture
from gpuipc_doctor.api.exchange import (
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
)
from gpuipc_doctor.api.fabrics import FABRICS
from gpuipc_doctor.api.gpu import (
    REUSES,
    WITHOUT_GPU_IPC,
    BackendUnavailable,
    Buffer,
    DriverError,
    Gpu,
    GpuContext,
    GpuStream,
    ImportedPool,
    IpcMapping,
    Kernels,
    KernelsUnavailable,
    Linear,
    Memory,
    PhysicalMemory,
    Pool,
    PoolMemory,
    VmmMapping,
    lacking,
    unless_refused,
)
from gpuipc_doctor.api.idle_counter import Reading
from gpuipc_doctor.api.latency import (
    Latency,
    figures,
    measurements,
    out_of_line,
    record_bandwidth,
    time_there_and_back,
)
from gpuipc_doctor.api.ledger import (
    NOISE_BYTES,
    ODD_BYTES,
    PATIENCE_S,
    REINSTALL,
    SETTLE_S,
    Account,
    Ledger,
    account,
    accounts,
    begin_when_asked,
    blind,
    holders,
    interval,
    ledger_in_turn,
    look_on,
)
from gpuipc_doctor.api.messages import ENOUGH, LARGE_MESSAGES, SIZES_OPTION, SMALL_MESSAGES
from gpuipc_doctor.api.patterns import (
    BOUNDARIES,
    difference,
    differences,
    glanced_at,
    mib,
    pattern,
    read_unless_pattern,
    reader_of,
    unlike_pattern,
    write_glances,
    write_pattern,
    write_zeros,
    wrong_glances,
    wrong_pattern,
)
from gpuipc_doctor.api.placement import misplaced
from gpuipc_doctor.api.process_ledger import figures_of_process, judge_processes, watched
from gpuipc_doctor.api.program_loss import judge_loss, repeat_if_lost
from gpuipc_doctor.api.samples import MemorySamples, judge_hidden, used_since_the_start
from gpuipc_doctor.api.samples import series as memory_series
from gpuipc_doctor.api.trend import Slope, last_third, lasting, slope
from gpuipc_doctor.api.worker import (
    Child,
    ChildGone,
    ChildHangs,
    Collectives,
    Communicator,
    Fabric,
    Mpi,
    Peer,
    Worker,
)
from gpuipc_doctor.model import (
    AtRest,
    CollectiveLibrary,
    CollectiveStack,
    Device,
    Evidence,
    EvidenceKind,
    FabricStack,
    Finding,
    Json,
    Launch,
    Line,
    Mark,
    Measurement,
    MemoryShare,
    MpiStack,
    Probe,
    ProbeOutcome,
    Series,
    StatedFabric,
    Status,
    Tier,
    Workaround,
)
