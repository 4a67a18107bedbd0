"""Files with which other programs run gpuipc-doctor: before every job, and for stuck ones."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hook:
    """A file for a site to install."""

    name: str
    """File name when installed."""
    mode: int
    source: str
    """Its template next to this module; `written` fills in ``@NAME@``."""
    command: str = "prolog"

    def written(self, file: Path | None, *, python: str, config: Path, scontrol: str, slurm_conf: str) -> str:
        """Text of the hook for installation as ``file``; all programs in it have absolute paths.

        ``slurm_conf`` is empty if Slurm finds its configuration by itself.
        """
        text = Path(__file__).with_name(self.source).read_text(encoding="utf-8")
        setting = f"SLURM_CONF={shlex.quote(slurm_conf)}\nexport SLURM_CONF\n" if slurm_conf else ""
        text = text.replace("@SLURM_CONF@\n", setting).replace("@FILE@", str(file or f"/…/{self.name}"))
        programs = {"ENV": "/usr/bin/env", "PYTHON": python, "CONFIG": str(config), "SCONTROL": scontrol}
        for name, path in programs.items():
            text = text.replace(f"@{name}@", shlex.quote(path))
        if self.command == "epilog":  # the same, without the lines on a Prolog's use
            head, between, rest = text.partition("# A node is drained only")
            use = EPILOG_USE.replace("@FILE@", str(file or f"/…/{self.name}"))
            text = f"{head.splitlines()[0]}\n{use}{between}{rest.replace(' prolog ', ' epilog ')}"
        return text


EPILOG_USE = """# Slurm's Epilog: which error counters of the GPUs rose during the job, and what the job left.
# Written by `gpuipc-doctor config hooks slurm --epilog`; write it anew rather than edit it.
#
#   Epilog=@FILE@
#
"""

EPILOG = Hook("gpuipc-doctor-slurm-epilog", 0o755, "slurm.sh", "epilog")

HOOKS = {
    "slurm": Hook("gpuipc-doctor-slurm", 0o755, "slurm.sh"),
    "monitor": Hook("gpuipc-doctor-monitor", 0o755, "monitor.sh"),
    "sweep": Hook("gpuipc-doctor-sweep", 0o755, "sweep.sh"),
    "nhc": Hook("gpuipc_doctor.nhc", 0o644, "nhc.sh"),
}
"""Argument of ``gpuipc-doctor config hooks`` → hook."""
