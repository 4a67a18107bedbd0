"""Make a library that stands before another one and records the classes of the calls that it passes on.

``python3 -m tests.recorder.generate cuda|nccl|mpi REAL DIRECTORY`` compiles ``DIRECTORY/<soname>`` for the
library REAL (x86-64). Preloaded, it answers to the name of REAL: for what is linked with it and what opens it
by name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.simulator import build

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Face:
    """A library to be recorded: its name, its tables of calls, and C for what the tables do not say."""

    soname: str
    prefix: str
    tables: tuple[Path, ...]
    include: str


FACES = {
    "cuda": Face("libcuda.so.1", "cu", (build.SOURCES / "calls.table", HERE / "cuda.table"), "cuda.h"),
    "nccl": Face("libnccl.so.2", "nccl", (HERE / "nccl.table",), "nccl.h"),
    "mpi": Face("libmpi-recorder.so", "MPI_", (HERE / "mpi.table",), "mpi.h"),
}

_COMPILER = (
    "cc",
    "-std=gnu11",
    "-O1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-unused-function",
)

_EXCHANGE = (
    "exchange_word(symbol, sendbuf, (uint64_t)sendcount, sendtype, "
    "recvbuf, (uint64_t)recvcount, recvtype, {})"
)

_WORDS = (
    (r"size_t bytes\b", "bytes={}", "size_word(bytes)"),
    (r"(?:uint64_t|void \*) ?to\b", "to={}", "memory_word((uint64_t)to)"),
    (r"(?:uint64_t|void \*) ?from\b", "from={}", "memory_word((uint64_t)from)"),
    (r"(?:uint64_t|void \*) ?address\b", "memory={}", "memory_word((uint64_t)address)"),
    (r"void \*stream\b", "stream={}", "stream_word(stream)"),
    (r"(?:unsigned|uint64_t|int) flags\b", "flags={}", "number_word(flags)"),
    (r"int type\b", "type={}", "number_word(type)"),
    (r"int mode\b", "mode={}", "number_word(mode)"),
    (r"int priority\b", "priority={}", 'priority ? "other" : "0"'),
    (r"void \*event\b", "event={}", 'thing_word(event, "own")'),
    (r"struct (?:vmm|pool)_request \*request\b", "handles={}", "number_word(((const int *)request)[1])"),
    (r"struct vmm_access \*access, size_t count\b", "devices={}", "count_word(count)"),
    (r"struct ipc_handle handle\b", "open-before={}", 'count_word(memories_of("imported"))'),
    (r"unsigned grid_x\b", "blocks={}", "count_word((uint64_t)grid_x * grid_y * grid_z)"),
    (r"unsigned block_x\b", "threads={}", "size_word((uint64_t)block_x * block_y * block_z)"),
    (r"int kind\b", "type={}", "kind_word(kind)"),
    (r"size_t count, int kind\b", "bytes={}", "size_word(count * kind_bytes(kind))"),
    (r"size_t count, int kind\b", "count={}", 'count % 2 ? "odd" : "even"'),
    (r"int operation\b", "operation={}", "operation_word(operation)"),
    (r"int root\b", "root={}", 'root < 0 ? "inter" : root ? "other" : "0"'),
    (
        r"void \*from, void \*to\b.*void \*comm\b",
        "{}",
        "place_word(from, to, count * kind_bytes(kind), comm)",
    ),
    (r"void \*comm\b", "comm={}", 'thing_word(comm, "?")'),
    (r"void \*comm, void \*stream\b", "{}", "group_word()"),
    # MPI
    (
        r"(?:n|int64_t) (count|recvcount|origin_count), handle (datatype|origin_datatype)\b",
        "{}",
        r"sizes_word((uint64_t)\1, \2)",
    ),
    (
        r"(?:n \*recvcounts|\*result_addr|n incount|n outcount), handle datatype\b",
        "{}",
        "type_if(1, datatype)",
    ),
    (
        r"n sendcount, .*n recvcount, handle recvtype, (?:handle comm|int source)\b",
        "{}",
        _EXCHANGE.format("0"),
    ),
    (r"n sendcount, .*n recvcount, handle recvtype, int root\b", "{}", _EXCHANGE.format("root")),
    (
        r"handle sendtype, .*n \*recvcounts, .*handle recvtype, handle comm\b",
        "{}",
        "type_if(!is_in_place(sendbuf), sendtype)",
    ),
    (
        r"handle sendtype, .*n \*recvcounts, .*int root\b",
        "{}",
        "type_if(!is_in_place(sendbuf) && root >= 0, sendtype)",
    ),
    (
        r"n \*sendcounts, .*n recvcount, handle recvtype\b",
        "{}",
        "type_if(!is_in_place(recvbuf) && root >= 0, recvtype)",
    ),
    (r"\*sendbuf, .*\*recvbuf\b", "place={}", "place_word(sendbuf, recvbuf)"),
    (r"handle op\b", "operation={}", "operation_word(op)"),
    (r"int source\b", "source={}", "source_word(source)"),
    (r"int (tag|sendtag)\b", "tag={}", r"tag_word(\1)"),
    (r"int partitions\b", "partitions={}", "count_word((uint64_t)partitions)"),
    (r"int count, void \*requests\b", "requests={}", "count_word((uint64_t)count)"),
    (r"int lock_type\b", "lock={}", "lock_word(lock_type)"),
    (r"void \*(buf|buffer|base)\b", "memory={}", r"data_word(\1)"),
    (r"void \*(sendbuf|origin_addr|inbuf)\b", "from={}", r"data_word(\1)"),
    (r"void \*(recvbuf|result_addr|outbuf)\b", "to={}", r"data_word(\1)"),
    (r"handle comm\b", "comm={}", "comm_word(comm)"),
    (r"handle win\b", "window={}", "window_word(win)"),
)
"""What is said of an argument: pattern of the parameters, words, C expression with groups of the pattern."""

_SILENT = re.compile(r"device-|error-|pointer-attribute|context-|primary-|driver-version|mem-info|module-")
"""Calls of which nothing but the name matters."""


def rows(face: Face) -> list[build.Row]:
    """The calls of a library of which arguments are recorded."""
    found = [row for table in face.tables for row in build.read_table(table.read_text())]
    return [row for row in found if row.call not in ("unsupported", "get-proc-address", "exit", "pool-reuse")]


def source(name: str, exported: list[str], real: str) -> str:
    """The C text: a wrapper for each known symbol, a stub for each other one."""
    face = FACES[name]
    include = (HERE / f"recorder_{face.include}").read_text()
    wrappers = {
        symbol.name: _wrapper(row, symbol.name, include)
        for row in rows(face)
        for symbol in row.symbols
        if symbol.name in exported
    }
    special = set(re.findall(r"^EXPORT int (\w+)\(", include, re.M))
    stubs = [symbol for symbol in exported if symbol not in wrappers and symbol not in special]
    structs = sorted({found for row in rows(face) for found in re.findall(r"struct \w+", row.parameters)})
    kept = [symbol for symbol in exported if symbol in wrappers or symbol in special or symbol in stubs]
    return "\n".join(
        (
            f'#define LIBRARY "{name.upper()}"',
            f'#define DEFAULT_PATH "{real}"',
            '#include "recorder.c"',
            '#define EXPORT __attribute__((visibility("default")))',
            *(f"enum {{ AT_{symbol} = {at} }};" for at, symbol in enumerate(kept)),
            *(f"{found};" for found in structs if found not in ("struct ipc_handle", "struct unique_id")),
            include,
            *wrappers.values(),
            *(f"void {symbol}(void);" for symbol in stubs),
            "struct stub stubs[] = {",
            *(f'    {{"{symbol}", NULL, (void *){symbol}, 0}},' for symbol in kept),
            "    {NULL, NULL, NULL, 0}};",
            *(_stub(symbol, kept.index(symbol)) for symbol in stubs),
            "",
        )
    )


def _wrapper(row: build.Row, symbol: str, include: str) -> str:
    of_mpi = symbol.startswith("MPI_")
    call = symbol.removesuffix("_c") if of_mpi else row.call
    parameters = re.sub(r"\bn\b", "int64_t", row.parameters) if call != symbol and of_mpi else row.parameters
    matches = [(re.search(pattern, row.parameters), words, value) for pattern, words, value in _WORDS]
    said = [] if _SILENT.match(call) else [(words, m.expand(value)) for m, words, value in matches if m]
    format_ = " ".join([call, *(words.format("%s") for words, _ in said)])
    values = "".join(f", {value}" for _, value in said)
    after = _constant(call) + "_done"
    effect = f"    {after}({', '.join(['code', *row.arguments])});\n" if f" {after}(" in include else ""
    return (
        f"EXPORT int {symbol}({parameters})\n{{\n"
        f"    int (*real)({parameters}) = (int (*)({parameters}))real_of(stubs + AT_{symbol});\n"
        f'    static const char symbol[] = "{symbol}";\n    (void)symbol;\n'
        f'    record("{format_}"{values});\n'
        f"    int code = real({', '.join(row.arguments)});\n{effect}    return code;\n}}\n"
    )


def _constant(call: str) -> str:
    return call.replace("-", "_")


def _stub(symbol: str, at: int) -> str:
    """Assembly that records the name at the first call, and jumps: no argument is touched."""
    entry, called, real = (f"stubs+{32 * at + offset}(%rip)" for offset in (0, 24, 8))
    registers = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "r10")
    push = "".join(f"push %{register}\\n" for register in registers)
    pop = "".join(f"pop %{register}\\n" for register in reversed(registers))
    save = "".join(f"movups %xmm{n}, {16 * n}(%rsp)\\n" for n in range(8))
    load = "".join(f"movups {16 * n}(%rsp), %xmm{n}\\n" for n in range(8))
    return (
        f'__asm__(".globl {symbol}\\n.type {symbol},@function\\n{symbol}:\\n'
        f"cmpq $0, {called}\\njne 1f\\n{push}subq $136, %rsp\\n{save}"
        f"lea {entry}, %rdi\\ncall stub_first\\n{load}addq $136, %rsp\\n{pop}"
        f'1: jmp *{real}\\n");'
    )


def compile_library(name: str, real: Path, directory: Path) -> Path:
    """The compiled library in the directory. Raises `subprocess.CalledProcessError`."""
    listed = subprocess.run(["nm", "-D", "--defined-only", real], capture_output=True, text=True, check=True)
    exported = [
        fields[2].partition("@")[0]
        for fields in map(str.split, listed.stdout.splitlines())
        if len(fields) == 3 and fields[1] in "TW" and fields[2].startswith(FACES[name].prefix)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    text, library = directory / f"{name}.c", directory / FACES[name].soname
    text.write_text(source(name, list(dict.fromkeys(exported)), str(real.absolute())))
    subprocess.run(
        [*_COMPILER, f"-I{HERE}", f"-Wl,-soname,{library.name}", "-o", library, text, "-ldl", "-pthread"],
        check=True,
    )
    return library


if __name__ == "__main__":
    compile_library(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
