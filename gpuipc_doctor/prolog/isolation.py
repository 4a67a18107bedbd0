"""Isolate the prolog from its environment, since it may run as root before another user's job.

Python's isolated mode ignores ``PYTHON*``, the working directory and the user's packages; other variables are
kept only if listed. A process started without isolated mode restarts itself once, so the environment only
affects the first start.
"""

from __future__ import annotations

import os
import sys

from gpuipc_doctor.files import python

OWN = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
}
"""Variables that are always set.

CUDA's first call connects to any process that listens in CUDA_MPS_PIPE_DIRECTORY. The default,
/tmp/nvidia-mps, can be created by any user: https://docs.nvidia.com/deploy/mps/.
"""

KEPT = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_UID",
    "SLURM_SCRIPT_CONTEXT",
    "SLURMD_NODENAME",
)
"""Variables set by slurmd rather than by a user; they are only read, never used as a path or program."""

_BEFORE_PYTHON = ("LD_", "GLIBC_", "MALLOC_")
"""Prefixes of variables that the loader and the C library read before Python starts."""

_ANEW = "gpuipc-doctor-anew"
"""A -X option that Python ignores; it marks a process that restarted itself."""


def isolate() -> None:
    """Ensure that this process runs in isolated mode with only `OWN` and `KEPT` in its environment.

    Does not return if that requires a restart. If isolation is impossible, prints the reason and exits with
    0, because a wrong installation is not the node's fault.
    """
    environment = OWN | {name: os.environ[name] for name in KEPT if name in os.environ}
    is_steered = any(name.startswith(_BEFORE_PYTHON) for name in os.environ)
    if sys.flags.isolated and (_ANEW in sys._xoptions or not is_steered):
        os.environ.clear()
        os.environ.update(environment)
        return
    if _ANEW in sys._xoptions:
        _give_up(f"{sys.executable} is a wrapper that does not pass -I to Python")
    if not sys.executable:
        _give_up("Python does not know its own path; start it by an absolute path")
    if not (sys.flags.isolated or python.is_installed(environment)):
        _give_up(
            f"{sys.executable} -I does not find gpuipc_doctor; install it into that Python's site-packages"
        )
    python.restart("-X", _ANEW, environment=environment)


def _give_up(reason: str) -> None:
    print(f"gpuipc-doctor: ERROR cannot start: {reason}", flush=True)  # noqa: T201 - click is not imported yet
    sys.exit(0)
