"""Lines that say that something went wrong, whether or not the fault is known; grouped by their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from gpuipc_doctor.diagnose.occurrences import Occurrences, Sighting, Tally

MOST_GROUPS = 250
"""Kinds of lines of one pattern that are remembered; the pattern is then no longer looked for."""

PATTERNS = (
    # Most telling first. The GPU or the machine went wrong:
    r"NVRM: Xid|\bS?Xid \(PCI",
    r"\bNVRM: .*(?:[Ff]ail|[Ee]rror|[Tt]imed out|[Tt]imeout|fallen off)|PCIe Bus Error: severity=Uncorrect",
    r"Memory access fault by GPU|HW Exception by GPU|HSA exception",
    r"\bamdgpu\b.*(?:\*ERROR\*|timeout|page fault|GPU reset)",
    r"kernel BUG at|BUG: |general protection fault|blocked for more than \d+ seconds",
    # a process was ended:
    r"[Ss]egmentation fault|SIGSEGV|SIGBUS|SIGABRT|SIGILL|[Bb]us error|core dumped|double free or corruption",
    # glibc's malloc.c and fortify; Open MPI's stacktrace.c; the C++ runtime; the dynamic linker
    r"\b(?:free|malloc|realloc|munmap_chunk)\(\): [a-z]|corrupted (?:size vs\. prev_size|double-linked list)",
    r"stack smashing detected|terminate called (?:after throwing|without an active)",
    r"\bSignal: [A-Z][\w ]+\(\d+\)",
    r"error while loading shared libraries|symbol lookup error|undefined symbol: ",
    r"[Oo]ut [Oo]f [Mm]emory|oom-kill|OOM Killed",
    r"[Aa]ssert(?:ion)?\b.{0,300}\bfailed|Assertion failed|__assert_fail|MPIR_Assert_fail",
    r"\b[Ll]eaked \d+ |LEAK SUMMARY",
    # a library's call did not succeed:
    r"\b(?:CUDA_ERROR_|HSA_STATUS_ERROR|MPI_ERR_|NVML_ERROR_|UCS_ERR_)",
    r"\b(?:cuda|hip|nccl)(?:Error[A-Z]|SystemError|InternalError|UnhandledCudaError|RemoteError)\w*",
    r"\b(?:CUDA|HIP|[Cc]uda|NCCL|RCCL) (?:error|failure)\b",
    r"\b[NR]CCL WARN\b|\bNCCL (?:error|operations have failed)",
    # PyTorch's ProcessGroupNCCL.cpp and CUDAException.cpp
    r"Watchdog caught collective operation timeout|watchdog (?:got stuck|thread terminated)",
    r"an illegal memory access was encountered|unspecified launch failure|device-side assert triggered",
    # NVSHMEM's error macros, NIXL's status codes
    r"\bnon-zero status: -?\d|\bNIXL_ERR_[A-Z]",
    r"\bibv_\w+\b.{0,60}\bfailed\b|[Ff]ailed to modify QP",
    r"\bUCX\s+(?:ERROR|FATAL)\b",
    r"\bGTL DEBUG: \d+\)",
    r"[Ff]atal error in (?:internal_|P?MPI)|\bMPI_ABORT\b|\bAbort\(\d+\)",
    # something else says so:
    r"\b(?:srun|slurmstepd|slurmd|mpiexec|mpirun|prte|prterun): (?:fatal|error):",
    r"<critical>|<warn>.*(?:[Ff]ail|\b[Ee]rr(?:or)?\b|[Uu]nable|[Cc]annot)",
    r"\b(?:RuntimeError|OSError|MemoryError|torch\.\w*Error)\b",
    r"\b(?:Assertion|Value|Import|Attribute|Connection|Timeout|BrokenPipe|Permission|Key|Type|Index)Error: ",
    r"\b\w+Exception: ",
    r"No space left on device|Cannot allocate memory|Connection (?:refused|reset by peer|timed out)",
    r"\bLustreError: |\bI/O error\b",
    r"has lost communication with a remote daemon",
    r"\bFATAL\b|\b[Ff]atal(?: (?:error|signal|exception)|:)",
    r"\b(?:[Nn]ot permitted|Permission denied)\b",
    r"\b(?:[Ff]alling back|[Ff]allback) to\b",
    r"\b(?:ERROR|Error|error|ERR): |\[(?:ERROR|error)\]|\bERROR\b",
)


class ErrorLines:
    """Tallies of telling lines by their words."""

    def __init__(self) -> None:
        self._groups: dict[bytes, tuple[Tally, int, set[int]]] = {}
        self._kinds: Counter[int] = Counter()
        self.beyond = 0
        """At least so many lines of further kinds, which are not remembered."""

    def is_full(self, rank: int) -> bool:
        """Whether no further kind of this pattern is remembered."""
        return self._kinds[rank] >= MOST_GROUPS

    def add(self, seen: Sighting, rank: int, known: Collection[int]) -> None:
        """``rank`` is the number of the line's pattern, ``known`` the signatures' patterns in the line."""
        group = self._groups.get(seen.kind)
        if group is None:
            if self.is_full(rank):
                self.beyond += seen.lines
                return
            self._kinds[rank] += 1
            group = self._groups[seen.kind] = (Tally(seen.first), rank, set())
        group[0].add(seen)
        group[2].update(known)

    def unexplained(self, explained: Collection[int]) -> Iterator[tuple[bytes, Occurrences]]:
        """Kinds of lines without a pattern of ``explained``, most telling first, then as they appeared."""
        left = [
            (rank, kind, tally)
            for kind, (tally, rank, known) in self._groups.items()
            if known.isdisjoint(explained)
        ]
        for _, kind, tally in sorted(left, key=lambda one: one[0]):
            yield kind, tally.occurrences()
