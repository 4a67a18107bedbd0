"""Everything that a check file may import.

A check is one file with one `Check` and its role functions. ``probes`` plans the probes, role functions run
in workers, and ``judge``, a pure function, judges completed probes. The engine judges incomplete probes. The
names imported here are the interface; what few checks need is in the modules.
"""

from __future__ import annotations

from gpuipc_doctor.api.check import Check, Context, Control, SurveyCheck
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
from gpuipc_doctor.api.driver_errors import BackendUnavailable, DriverError, unless_refused
from gpuipc_doctor.api.exchange import (
    closing_order,
    exchange_as_exporter,
    exchange_as_importer,
    judge_exchange,
)
from gpuipc_doctor.api.gpu import Buffer, Gpu, GpuStream, IpcMapping, Memory, PhysicalMemory, Pool
from gpuipc_doctor.api.leak_report import blind, leak_report, leak_reports
from gpuipc_doctor.api.memory_counter import NOISE_BYTES, ODD_BYTES
from gpuipc_doctor.api.memory_limit import share, share_of_free
from gpuipc_doctor.api.meter import Meter, Reading, begin_when_asked, look_on
from gpuipc_doctor.api.node_placement import misplaced
from gpuipc_doctor.api.process_leaks import watched
from gpuipc_doctor.api.worker import Collectives, Communicator, Fabric, Mpi, Peer, Worker
from gpuipc_doctor.model import (
    Device,
    Evidence,
    EvidenceKind,
    Finding,
    Json,
    Measurement,
    Status,
    Subject,
    Tier,
)
from gpuipc_doctor.probe_types import (
    Baseline,
    FabricStack,
    Launch,
    MpiStack,
    Observed,
    Probe,
    ProbeOutcome,
    RoleOutcome,
    StatedFabric,
)
from gpuipc_doctor.report_types import Line, Series

__all__ = [  # noqa: RUF022 (by purpose)
    # A check, its probes, what it concludes
    "Check", "SurveyCheck", "Context", "Control", "Tier", "Subject", "Probe", "ProbeOutcome", "RoleOutcome",
    "Device", "Finding", "Evidence", "EvidenceKind", "Status", "Measurement", "Series", "Json",
    # What a check is told of the node
    "Baseline", "FabricStack", "Launch", "Line", "MpiStack", "StatedFabric",
    # What a role has
    "Worker", "Observed", "Peer", "Communicator", "Collectives", "Mpi", "Fabric",
    # Device memory and what else a driver gives
    "Gpu", "Buffer", "Memory", "IpcMapping", "PhysicalMemory", "Pool", "GpuStream", "DriverError",
    "BackendUnavailable", "unless_refused", "share", "share_of_free",
    # Data: written, read again, compared
    "pattern", "difference", "differences", "write_pattern", "wrong_pattern", "unlike_pattern",
    "write_glances", "wrong_glances", "reader_of",
    # Two roles that exchange a handle
    "exchange_as_exporter", "exchange_as_importer", "closing_order", "judge_exchange", "misplaced",
    # Memory that a device or a process loses
    "Meter", "Reading", "leak_report", "leak_reports", "look_on", "blind", "begin_when_asked", "NOISE_BYTES",
    "ODD_BYTES", "watched",
]  # fmt: skip
