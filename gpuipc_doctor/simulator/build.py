"""Build the simulated drivers on demand: C sources and the symbol table → a private, cached directory.

The directory contains ``libcuda.so.1``, ``libnvidia-ml.so.1`` and ``libamdhip64.so``, each also with its
unversioned name. A process that has the directory first in ``LD_LIBRARY_PATH`` loads these instead of the
drivers. The directory also contains `MPI_FAULTS` (preloaded in ranks), `FABRIC_FAULTS` (preloaded in programs
of libfabric and UCX) and `CUDA_RUNTIME` (for UCX's programs).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuipc_doctor.files.trust import changeable
from gpuipc_doctor.simulator.vocabulary import PREFIXES
from gpuipc_doctor.vendors import SUPPORTED

SOURCES = Path(__file__).with_name("src")

FLAGS = (
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-fvisibility=hidden",
    # A stack of a hung call must show the driver's function, so no frame may be optimised away.
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
)


@dataclass(frozen=True, slots=True)
class SimulatedLibrary:
    """One library: its source file, symbol prefix, loader name and further names."""

    source: str
    prefix: str
    soname: str
    links: tuple[str, ...]


LEVEL_ZERO_DRIVER = "libze_intel_gpu.so.1"
"""Name by which Level Zero's loader finds Intel's driver."""

FACES = (
    SimulatedLibrary("cuda.c", PREFIXES["cuda"], SUPPORTED["cuda"].library, ("libcuda.so",)),
    SimulatedLibrary(
        "hip.c",
        PREFIXES["hip"],
        SUPPORTED["hip"].library,
        ("libamdhip64.so.6", "libamdhip64.so.7", "libhiprtc.so"),
    ),
    SimulatedLibrary("ze.c", PREFIXES["ze"], f"levelzero/{LEVEL_ZERO_DRIVER}", ()),
    SimulatedLibrary("nvml.c", "nvml", "libnvidia-ml.so.1", ("libnvidia-ml.so",)),
)


MPI_FAULTS = "libmpi-faults.so"
"""A library that makes calls of real MPI libraries misbehave; independent of the drivers."""

FABRIC_FAULTS = "libfabric-faults.so"
"""A library that makes messages of libfabric and UCX misbehave."""

CUDA_RUNTIME = "libcuda-runtime.so"
"""A library with the CUDA runtime functions that UCX's test program calls. The real runtime does not start on
a simulated driver."""

_PRELOADED = {
    MPI_FAULTS: SOURCES / "mpi_faults.c",
    FABRIC_FAULTS: SOURCES / "fabric_faults.c",
    CUDA_RUNTIME: SOURCES / "cuda_runtime.c",
}

COLLECTIVES = {
    "nccl": "collectives/libnccl.so.2",
    "rccl": "collectives/librccl.so.1",
}
"""Component → the simulated library, below the directory of the drivers."""


class SimulatorUnavailable(Exception):
    """The simulated drivers cannot be built here; the message is one line with reason and remedy."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """One exported name; ``version`` is the CUDA version from which cuGetProcAddress serves it, or 0."""

    name: str
    version: int = 0
    per_thread: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of ``calls.table``: an operation, the function that implements it, and its exported symbols."""

    call: str
    function: str
    parameters: str
    symbols: tuple[Symbol, ...]

    @property
    def arguments(self) -> list[str]:
        """Names of the parameters."""
        return [] if self.parameters == "void" else re.findall(r"(\w+)(?:,|$)", self.parameters)


def read_table(text: str) -> list[Row]:
    """The rows of ``calls.table``, in which a comment describes the format."""
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith(" "):
            row = rows.pop()
            rows.append(Row(row.call, row.function, row.parameters, row.symbols + tuple(_symbols(line))))
        elif match := re.fullmatch(r"([\w-]+):(?: (\w+)\((.*)\))?", line):
            rows.append(Row(match[1], match[2] or "", match[3] or "", ()))
        else:
            raise ValueError(f"calls.table:{number}: not a row: {line}")
    return rows


def _symbols(line: str) -> Iterable[Symbol]:
    for word in line.split():
        name, _, rest = word.partition("@")
        version, _, variant = rest.partition("+")
        yield Symbol(name, int(version or 0))
        if variant:
            yield Symbol(f"{name}_{variant}", int(version), per_thread=True)


def generate(rows: list[Row]) -> dict[str, str]:
    """The generated C files by name: the list of calls, the prototypes, each library's exported functions."""
    calls = dict.fromkeys(row.call for row in rows)
    working = [row for row in rows if row.function]
    prototypes = dict.fromkeys(f"int {row.function}({row.parameters});" for row in working)
    structs = dict.fromkeys(re.findall(r"struct \w+", " ".join(row.parameters for row in working)))
    files = {
        "calls.def": "".join(f'CALL({_constant(call)}, "{call}")\n' for call in calls),
        "calls.h": "".join(f"{line}\n" for line in [*(f"{struct};" for struct in structs), *prototypes]),
        "symbols.h": _symbol_list(rows),
        "exports-ze.h": "".join(
            f"int {symbol.name}({row.parameters});\n"
            for row in working
            for symbol in row.symbols
            if symbol.name.startswith(PREFIXES["ze"])
        ),
        "backends.h": f"enum backend {{ {', '.join(PREFIXES).upper()}, BACKENDS }};\n"
        f"#define BACKEND_NAMES {', '.join(map(json.dumps, PREFIXES))}\n",
    }
    for face in FACES:
        functions = [
            _export(row, symbol)
            for row in working
            for symbol in row.symbols
            if symbol.name.startswith(face.prefix)
        ]
        files[f"exports-{face.source}"] = '#include "sim.h"\n\n' + "\n".join(functions)
    return files


def _constant(call: str) -> str:
    return call.replace("-", "_")


def _export(row: Row, symbol: Symbol) -> str:
    arguments = row.arguments
    is_ze = symbol.name.startswith(PREFIXES["ze"])
    device = "device" if "device" in arguments and "int device" in row.parameters else "-1"
    if is_ze and "object" in arguments:
        device = "ze_choose(object)"
    handle = "&handle" if "struct ipc_handle handle" in row.parameters else "NULL"
    file = "-1"
    if "void *shared" in row.parameters:
        file = "descriptor_in(shared)" if row.call == "vmm-import" else "(int)(intptr_t)shared"
    subject = {"ordinal": device, "handle": handle, "file": file, **_memory(row)}
    fields = ", ".join(f".{name} = {value}" for name, value in subject.items())
    if is_ze:  # its loader gets it from a table: exported, the loader's own function would take its place
        translated = "    handle = ze_imported(handle);\n" if handle != "NULL" else ""
        return (
            f"int {symbol.name}({row.parameters})\n{{\n{translated}"
            f"    int code = call_begin(CALL_{_constant(row.call)}, (struct subject){{{fields}}});\n"
            f"    return ze_result(call_end(code ? code : {row.function}({', '.join(arguments)})));\n}}\n"
        )
    return (
        f"EXPORT int {symbol.name}({row.parameters})\n{{\n"
        f"    int code = call_begin(CALL_{_constant(row.call)}, (struct subject){{{fields}}});\n"
        f"    return call_end(code ? code : {row.function}({', '.join(arguments)}));\n}}\n"
    )


def _memory(row: Row) -> dict[str, str]:
    """The fields of ``struct subject`` about memory: its address, or its pool, and its size in bytes."""
    fields = {}
    if "const struct ipc_handle *shared" in row.parameters:
        fields["pointer"] = "shared"
    inward = "from" if row.call == "copy-from-device" else "to"
    for name in (inward, "address"):
        if f"uint64_t {name}," in f"{row.parameters}," and "address" not in fields:
            fields["address"] = name
    if "void *stream" in row.parameters:
        fields["default_stream"] = "!stream"
    if {"to", "from"} <= {*row.arguments}:
        fields["other"] = f"(uint64_t)(uintptr_t){'to' if inward == 'from' else 'from'}"
    if row.call == "pool-trim":
        fields["address"] = "(uint64_t)(uintptr_t)pool"
    for name, width in (("count", _WIDTHS.get(row.function, 1)), ("bytes", 1)):
        if row.call in _SIZED and f"size_t {name}" in row.parameters:
            fields["bytes"] = f"(uint64_t){name} * {width}"
    return fields


_SIZED = (
    "mem-alloc",
    "pool-alloc-from",
    "vmm-create",
    "vmm-set-access",
    "dmabuf-export",
    "fill",
    "copy-to-device",
    "copy-from-device",
    "copy-on-device",
)
"""Calls with a size to which faults can be limited, besides those that import memory."""

_WIDTHS = {f"sim_fill{bits}{form}": bits // 8 for bits in (8, 16, 32) for form in ("", "_async")}
"""Function that fills memory → bytes of its unit."""


def _symbol_list(rows: list[Row]) -> str:
    symbols = [symbol for row in rows for symbol in row.symbols if symbol.version]
    entries = (
        f'    {{"{re.sub("(_v[0-9]+)?(_pt[ds][sz])?$", "", symbol.name)}", {symbol.version}, '
        f"{str(symbol.per_thread).lower()}, (void (*)(void)){symbol.name}}},\n"
        for symbol in symbols
    )
    declarations = (
        f"int {symbol.name}({row.parameters});\n" for row in rows for symbol in row.symbols if symbol.version
    )
    return "".join(declarations) + "static const struct symbol symbols[] = {\n" + "".join(entries) + "};\n"


def build() -> Path:
    """The directory of the simulated drivers, compiled unless cached.

    The compiler is ``$CC`` or ``cc``. Parallel builds are safe: each creates its own directory, and the first
    to finish renames it. Raises `SimulatorUnavailable`.
    """
    compiler = _compiler()
    cache = _private(_cache_root())
    target = cache / _key(compiler)
    if not target.is_dir():
        work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
        try:
            _compile(compiler, work)
            work.rename(target)
        except OSError as error:
            if not target.is_dir():  # otherwise another build was first
                raise SimulatorUnavailable(f"{target}: {error.strerror}") from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return _private(target)


def has_compiler() -> bool:
    """Whether a compiler for the simulated drivers is installed."""
    try:
        return bool(_compiler())
    except SimulatorUnavailable:
        return False


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        raise SimulatorUnavailable(
            f"no C compiler ({command[0]}) to build the simulated drivers; install gcc or clang, or set CC"
        )
    return command


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "gpuipc-doctor"


def _private(directory: Path) -> Path:
    """The directory, created if needed; refused if another user could put a library into it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SimulatorUnavailable(
            f"{directory}: {error.strerror}; set XDG_CACHE_HOME to a directory that you can write to"
        ) from error
    if found := changeable(directory):
        raise SimulatorUnavailable(
            f"{directory}: other users can write to {found.path}; run chmod go-w on it, or set XDG_CACHE_HOME"
        )
    return directory


def _key(compiler: list[str]) -> str:
    """A name that changes with everything that the libraries depend on."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(repr((compiler, version, FLAGS, FACES)).encode())
    for path in sorted([*SOURCES.iterdir(), Path(__file__)]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def _compile(compiler: list[str], directory: Path) -> None:
    apart = {*_PRELOADED.values(), *(SOURCES / face.source for face in FACES), SOURCES / "nccl.c"}
    with tempfile.TemporaryDirectory(prefix="generated-", dir=directory) as generated:
        for name, text in generate(read_table((SOURCES / "calls.table").read_text())).items():
            (Path(generated) / name).write_text(text)
        include = (f"-I{SOURCES}", f"-I{generated}")
        core = Path(generated) / "core.o"
        common = sorted(set(SOURCES.glob("*.c")) - apart)
        alone: list[list[str | Path]] = [
            [*compiler, *FLAGS, "-shared", "-o", directory / name, source]
            for name, source in _PRELOADED.items()
        ]
        (directory / "collectives").mkdir()
        (directory / "levelzero").mkdir()  # apart, for nodes with Intel's GPUs only
        alone += [
            [*compiler, *FLAGS, *define, "-shared", "-o", directory / COLLECTIVES[name], SOURCES / "nccl.c"]
            for name, define in (("nccl", ()), ("rccl", ("-DRCCL",)))
        ]
        _run([[*compiler, *FLAGS, *include, "-r", "-nostdlib", "-o", core, *common], *alone])
        _run(
            [
                *compiler,
                *FLAGS,
                *include,
                "-shared",
                f"-Wl,-soname,{Path(face.soname).name}",
                "-o",
                directory / face.soname,
                core,
                SOURCES / face.source,
                Path(generated) / f"exports-{face.source}",
            ]
            for face in FACES
        )
    for face in FACES:
        for link in face.links:
            (directory / link).symlink_to(face.soname)


def _run(commands: Iterable[list[str | Path]]) -> None:
    """Run compilers in parallel. Raises `SimulatorUnavailable` with the error of the first that failed."""
    running = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for command in commands
    ]
    complaints = [process.communicate()[1] for process in running]
    for process, complaint in zip(running, complaints, strict=True):
        if process.returncode:
            lines = complaint.strip().splitlines() or [f"exit status {process.returncode}"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise SimulatorUnavailable(f"cannot build the simulated drivers: {first.strip()}")
