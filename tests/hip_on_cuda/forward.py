"""A ``libamdhip64.so`` whose calls are those of the node's ``libcuda.so.1``, for tests of our HIP path.

It proves our code and the binding's, never AMD's runtime. Which call is which stands in the simulator's table
of calls; what HIP does in its own way stands in ``own.c``. A call that is in neither is not there, which the
backend reports by its name.
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
    """Make the library in ``directory/lib`` and return that; the binding asks ``$ROCM_PATH/lib`` first."""
    (directory / "forward.h").write_text(source(read_table((SOURCES / "calls.table").read_text())))
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", "-I", str(directory)]
    libraries = directory / "lib"
    libraries.mkdir()
    subprocess.run([*command, str(OWN), "-o", str(libraries / "libamdhip64.so"), "-ldl"], check=True)
    return libraries


def source(rows: list[Row]) -> str:
    """C functions for the rows that both vendors have, and refusals for what the simulator refuses, too."""
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
    """Names to look for, the newest first: those that are the same but for the prefix, if there are any."""
    same = [symbol for symbol in cuda if re.sub(r"_v\d+$", "", symbol)[2:] == name[3:]]
    return ", ".join(f'"{symbol}"' for symbol in reversed(same or cuda)) + ", (char *)0"
