"""A ``libamdhip64.so`` that forwards its calls to the node's ``libcuda.so.1``, for tests of our HIP path.

It tests our code and the binding, never AMD's runtime. The simulator's table of calls pairs the functions;
HIP's own behaviour is in ``own.c``. A call in neither is missing, and the backend reports its name.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gpuipc_doctor.simulator.build import SOURCES, Row, read_table

OWN = Path(__file__).with_name("own.c")
NOT_SUPPORTED = 801


def build(directory: Path) -> Path:
    """Build the library in ``directory/lib``, and return that; the binding first tries ``$ROCM_PATH/lib``."""
    (directory / "forward.h").write_text(source(read_table((SOURCES / "calls.table").read_text())))
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", "-I", str(directory)]
    libraries = directory / "lib"
    libraries.mkdir()
    subprocess.run([*command, str(OWN), "-o", str(libraries / "libamdhip64.so"), "-ldl"], check=True)
    return libraries


def source(rows: list[Row]) -> str:
    """C source: functions that forward to CUDA, and refusals for calls that the simulator also refuses."""
    structs = dict.fromkeys(re.findall(r"struct \w+", " ".join(row.parameters for row in rows)))
    declared = [f"{struct};" for struct in structs if struct != "struct ipc_handle"]
    return "\n".join([*declared, *(function for row in rows for function in _functions(row))]) + "\n"


def _functions(row: Row) -> Iterator[str]:
    cuda = [symbol.name for symbol in row.symbols if symbol.name.startswith("cu") and not symbol.per_thread]
    for name in (symbol.name for symbol in row.symbols if symbol.name.startswith("hip")):
        head = f"EXPORT int {name}({row.parameters})\n{{\n"
        if row.call == "unsupported":
            yield f"{head}    return {NOT_SUPPORTED};\n}}"
        elif cuda and name != "hipDeviceGetUuid":
            yield (
                f"{head}    static int (*call)({row.parameters});\n"
                f"    if (!call)\n        call = cuda({_candidates(name, cuda)});\n"
                f"    return call ? call({', '.join(row.arguments)}) : {NOT_SUPPORTED};\n}}"
            )


def _candidates(name: str, cuda: list[str]) -> str:
    """C list of CUDA symbols to look up, newest first: those equal except for the prefix, else all."""
    same = [symbol for symbol in cuda if re.sub(r"_v\d+$", "", symbol)[2:] == name[3:]]
    return ", ".join(f'"{symbol}"' for symbol in reversed(same or cuda)) + ", (char *)0"
