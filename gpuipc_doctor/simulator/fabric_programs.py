"""Give a simulated node this machine's programs of libfabric and UCX, with faults put into them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from gpuipc_doctor.node import fabric_programs
from gpuipc_doctor.simulator.build import CUDA_RUNTIME, FABRIC_FAULTS
from gpuipc_doctor.simulator.profile import SimulatedFabric

_IN_TRUTH = "tcp"
"""The real provider used in place of a missing one."""


_OF_UCX = {"UCX_MEMTYPE_CACHE": "n"}
"""Makes UCX query the driver about each address. By default, if simulated memory was used before UCX's first
message, UCX takes it for host memory."""


def lend(fabric: SimulatedFabric, directory: Path, root: Path, libraries: Path) -> None:
    """Create ``directory`` with a script for each program, which starts the program with its preloads.

    ``libraries``: the directory from `build`. A program of the node itself, below ``root``, takes precedence.
    """
    directory.mkdir()
    stated = directory.with_name("fabric.sim")
    stated.write_text(faults_file(fabric))
    own = {
        name for name in fabric_programs.NAMES if next(root.glob(f"opt/cray/libfabric/*/bin/{name}"), None)
    }
    for name, program in here().items():
        if name not in own:
            library_path = fabric_programs.environment(program, {}).get("LD_LIBRARY_PATH", "")
            is_ucx = name.startswith("ucx")
            preloaded = [FABRIC_FAULTS, *([CUDA_RUNTIME] if is_ucx else [])]
            environment = {
                "LD_PRELOAD": ":".join(str(libraries / library) for library in preloaded),
                "GPUIPC_SIM_FABRIC": str(stated),
                **(_OF_UCX if is_ucx else {}),
            }
            script = directory / name
            script.write_text(
                "#!/bin/sh\n"
                f"LD_LIBRARY_PATH={shlex.quote(library_path)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
                "export LD_LIBRARY_PATH\n"
                + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
                + f'exec {shlex.quote(program)} "$@"\n'
            )
            script.chmod(0o755)


def here() -> dict[str, str]:
    """Programs on this machine's ``PATH``, by name."""
    found = fabric_programs.find("/", os.environ.get("PATH", ""), None, others=True)
    return {name: program.file for name, program in found.items()}


def faults_file(fabric: SimulatedFabric) -> str:
    """The text of ``fabric.sim``, with fields in a fixed order."""
    lines = [f"provider asked={fabric.provider} is={_IN_TRUTH}"] if fabric.provider else []
    lines += [
        " ".join(["fault", *(f"{key}={fault[key]}" for key in ("call", "do", "min", "max"))])
        for fault in fabric.faults
    ]
    return "".join(f"{line}\n" for line in lines)
