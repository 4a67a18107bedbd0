"""Let nothing that is set around the prolog decide what it loads: it may run as root, in front of a stranger.

Python's isolated mode leaves out ``PYTHON*``, the working directory and the user's own packages; the loader's
variables and whatever else libraries look at go by a list of what is kept. A process that was not started so
starts itself anew, once: what such an environment could do to the first start is done by then, and no more;
and what is set again then is the doing of whoever installed the interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

OWN = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
}
"""Set whatever was set before.

CUDA's first call talks to whoever listens in the last of them, by default /tmp/nvidia-mps, which any user
can make: https://docs.nvidia.com/deploy/mps/ (CUDA_MPS_PIPE_DIRECTORY).
"""

KEPT = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_UID",
    "SLURM_SCRIPT_CONTEXT",
    "SLURMD_NODENAME",
)
"""What slurmd sets and a user does not choose; it is read, never looked up as a path or run."""

_BEFORE_PYTHON = ("LD_", "GLIBC_", "MALLOC_")
"""How the names begin that the loader and the C library read before Python starts."""

_ANEW = "gpuipc-doctor-anew"
"""An option -X of Python's, which means nothing to it: that we have started ourselves."""


def isolate() -> None:
    """See that this process runs in isolated mode with no environment but `OWN` and `KEPT`.

    Does not return where that takes a new start. Where that cannot be had it says so and exits with 0: how
    the tool is installed is no fault of the node.
    """
    environment = OWN | {name: os.environ[name] for name in KEPT if name in os.environ}
    is_steered = any(name.startswith(_BEFORE_PYTHON) for name in os.environ)
    if sys.flags.isolated and (_ANEW in sys._xoptions or not is_steered):
        os.environ.clear()
        os.environ.update(environment)
        return
    if _ANEW in sys._xoptions:
        _give_up(f"{sys.executable} does not start as it is told to: -I is lost on the way")
    if not sys.executable:
        _give_up("Python does not know its own path; start it by an absolute one")
    if not (sys.flags.isolated or _is_installed(environment)):
        _give_up(
            f"{sys.executable} -I does not find gpuipc_doctor; install it into that Python's site-packages"
        )
    command = [sys.executable, "-I", "-X", _ANEW, "-m", "gpuipc_doctor", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell is what is wanted


def _is_installed(environment: Mapping[str, str]) -> bool:
    """Whether isolated mode finds this package: not by ``PYTHONPATH`` or the working directory alone."""
    import site

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before pathlib
    here = os.path.dirname(package)  # noqa: PTH120
    if here in site.getsitepackages():
        return True
    import subprocess

    # An editable installation, for one: then the interpreter itself has to be asked.
    command = [sys.executable, "-I", "-c", "import gpuipc_doctor"]
    asked = subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)
    return asked.returncode == 0


def _give_up(reason: str) -> None:
    print(f"gpuipc-doctor: ERROR cannot start: {reason}", flush=True)  # noqa: T201 - click is not imported yet
    sys.exit(0)
