"""How to start ranks with Flux. Written from its documentation and tested with a stand-in, not with Flux."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from gpuipc_doctor.node.mpi_identity import Identity

SOURCE = "flux run, because this is a Flux instance (untested)"


def program(environment: Mapping[str, str]) -> str:
    """Path of ``flux`` if ranks can be started with it; else empty.

    FLUX_URI is set in scripts of ``flux batch`` and shells of ``flux alloc``. A job's tasks also have
    FLUX_JOB_ID; in a task, ``flux run`` would wait for resources that the job itself holds.
    """
    if "FLUX_URI" not in environment or "FLUX_JOB_ID" in environment:
        return ""
    return shutil.which("flux", path=environment.get("PATH")) or ""


def command(flux: str, nodes: int, hosts: Sequence[str], identity: Identity | None = None) -> tuple[str, ...]:
    """The command before ``-n{ranks}``. ``identity``: the MPI library; None for processes without MPI.

    Without ``exit-on-error``, Flux waits 30 s for the other ranks when one has died. With
    ``gpu-affinity=off``, each rank sees all GPUs. Open MPI 5 needs PMIx, which flux-pmix provides.
    """
    options = ["exit-on-error", "gpu-affinity=off"]
    if identity is None:
        options.append("pmi=off")
    elif identity.family == "openmpi" and identity.major >= 5:
        options.append("pmi=pmix")
    shell = (word for option in options for word in ("-o", option))
    return on_hosts((flux, "run", *shell, f"-N{nodes}"), hosts)


def on_hosts(words: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """The command ``flux run …``, restricted to these nodes."""
    named = (f"--requires=host:{','.join(hosts)}",) if hosts else ()
    after = words.index("run") + 1
    return (*words[:after], *named, *words[after:])
