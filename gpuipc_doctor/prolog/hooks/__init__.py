"""The files that put gpuipc-doctor in front of every job, for each program that can call it there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hook:
    """One file that a site installs."""

    name: str
    """What it is called where it is installed."""
    mode: int
    source: str
    """Its template, beside this module: ``@NAME@`` stands for what `written` fills in."""

    def written(self, file: Path | None, *, python: str, config: Path, scontrol: str, slurm_conf: str) -> str:
        """The text of the hook as it stands at ``file``. Nothing in it depends on a search path.

        ``slurm_conf`` is empty where Slurm finds its configuration by itself.
        """
        text = Path(__file__).with_name(self.source).read_text(encoding="utf-8")
        setting = f"SLURM_CONF={shlex.quote(slurm_conf)}\nexport SLURM_CONF\n" if slurm_conf else ""
        text = text.replace("@SLURM_CONF@\n", setting).replace("@FILE@", str(file or f"/…/{self.name}"))
        programs = {"ENV": "/usr/bin/env", "PYTHON": python, "CONFIG": str(config), "SCONTROL": scontrol}
        for name, path in programs.items():
            text = text.replace(f"@{name}@", shlex.quote(path))
        return text


HOOKS = {
    "slurm": Hook("gpuipc-doctor-slurm", 0o755, "slurm.sh"),
    "monitor": Hook("gpuipc-doctor-monitor", 0o755, "monitor.sh"),
    "nhc": Hook("gpuipc_doctor.nhc", 0o644, "nhc.sh"),
}
"""By the argument of ``gpuipc-doctor config hooks``."""
