"""Lend a simulated node this machine's programs of libfabric and UCX, with its faults in them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from gpuipc_doctor.fabric import programs
from gpuipc_doctor.simulator.profile import SimulatedFabric

_IN_TRUTH = "tcp"
"""What a provider is that this machine has not."""


def lend(fabric: SimulatedFabric, directory: Path, root: Path, preloaded: Path) -> None:
    """Make ``directory``, with a script for each program that starts it with the library ``preloaded``.

    Where the node has an ``fi_info`` of its own below ``root``, that answers.
    """
    directory.mkdir()
    stated = directory.with_name("fabric.sim")
    stated.write_text(faults_file(fabric))
    own = {name for name in programs.NAMES if next(root.glob(f"opt/cray/libfabric/*/bin/{name}"), None)}
    for name, program in here().items():
        if name not in own:
            library_path = programs.environment(program, {}).get("LD_LIBRARY_PATH", "")
            script = directory / name
            script.write_text(
                "#!/bin/sh\n"
                f"LD_LIBRARY_PATH={shlex.quote(library_path)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
                f"LD_PRELOAD={shlex.quote(str(preloaded))}\n"
                f"GPUIPC_SIM_FABRIC={shlex.quote(str(stated))}\n"
                "export LD_LIBRARY_PATH LD_PRELOAD GPUIPC_SIM_FABRIC\n"
                f'exec {shlex.quote(program)} "$@"\n'
            )
            script.chmod(0o755)


def here() -> dict[str, str]:
    """The programs on this machine's ``PATH``, by name."""
    found = programs.find("/", os.environ.get("PATH", ""), None, others=True)
    return {name: program.file for name, program in found.items()}


def faults_file(fabric: SimulatedFabric) -> str:
    """The text of ``fabric.sim``, whose fields have a fixed order."""
    lines = [f"provider asked={fabric.provider} is={_IN_TRUTH}"] if fabric.provider else []
    lines += [
        " ".join(["fault", *(f"{key}={fault[key]}" for key in ("call", "do", "min", "max"))])
        for fault in fabric.faults
    ]
    return "".join(f"{line}\n" for line in lines)
