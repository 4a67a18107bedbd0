"""How Flux starts ranks. By its documentation and over a stand-in; not tried on Flux.

Sources, all in flux-framework/flux-core: doc/man1/flux-run.rst, doc/man7/flux-shell-options.rst
for ``-o``, and doc/man7/flux-environment.rst.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from gpuipc_doctor.mpi.identity import Identity

SOURCE = "flux run, for this is within a Flux instance (not tried on Flux)"


def program(environment: Mapping[str, str]) -> str:
    """Path of ``flux`` within an instance that can start ranks; else empty.

    The script of ``flux batch`` and the shell of ``flux alloc`` have FLUX_URI. Tasks of a job also have
    FLUX_JOB_ID: the job holds the resources, and ``flux run`` would wait for them.
    """
    if "FLUX_URI" not in environment or "FLUX_JOB_ID" in environment:
        return ""
    return shutil.which("flux", path=environment.get("PATH")) or ""


def command(flux: str, nodes: int, hosts: Sequence[str], identity: Identity | None = None) -> tuple[str, ...]:
    """The words before ``-n{ranks}``. ``identity``: of the MPI library, None for processes without MPI.

    Without ``exit-on-error`` Flux waits 30 s for the other ranks when one has died. With ``gpu-affinity=off``
    each rank sees all GPUs, though none is requested. Open MPI 5 speaks PMIx alone, which flux-pmix brings.
    """
    options = ["exit-on-error", "gpu-affinity=off"]
    if identity is None:
        options.append("pmi=off")
    elif identity.family == "openmpi" and identity.major >= 5:
        options.append("pmi=pmix")
    shell = (word for option in options for word in ("-o", option))
    return on_hosts((flux, "run", *shell, f"-N{nodes}"), hosts)


def on_hosts(words: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """``flux run …`` on these nodes alone."""
    named = (f"--requires=host:{','.join(hosts)}",) if hosts else ()
    after = words.index("run") + 1
    return (*words[:after], *named, *words[after:])
