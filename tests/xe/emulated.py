"""A node with an emulated Intel GPU: Intel's own user-mode driver, over a stand-in for its kernel driver.

Driver and loader are those of another root file system (`Makefile`, ``.prefix/intel``); the rest is as in
`tests.kfd.emulated`. Nothing executes commands: the user-mode driver is told to copy by the processor.

    python -m tests.xe.emulated -- gpuipc-doctor check ipc-release --backend ze
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.kfd.emulated import HERE as KFD
from tests.kfd.emulated import REPOSITORY, bound, compiled, namespace_of

ROOT = REPOSITORY / ".prefix/intel"
SETTINGS = {
    "NEOReadDebugKeys": "1",
    "OverrideCsrAllocationSize": "1048576",  # instead of HWCONFIG, which is not played
    "ExperimentalForceCopyThroughLock": "1",  # copies by the processor: no command is executed
    "OverrideGpuAddressSpace": "47",  # addresses of the GPU that the processor can have, too
    "MakeEachAllocationResident": "1",  # and they are bound when it imports, not when a command needs them
}
"""Debug keys of compute-runtime (shared/source/debug_settings/debug_variables_base.inl)."""


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """The node for a process that runs there: a command prefix, and variables."""

    enter: tuple[str, ...]
    env: dict[str, str]

    def run(self, *command: str, limit_s: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.enter, *command],
            env={**os.environ, **self.env, **env},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )


def why_not() -> str:
    """Why the node cannot be made here; empty if it can."""
    if (ROOT / ".ready").exists():
        return ""
    return "needs `make .prefix/intel/.ready`: libze-intel-gpu1 of Debian forky, where the mirror has it"


def version() -> str:
    """Debian's version of the user-mode driver, such as ``26.27.39122.14-1``."""
    status = (ROOT / "var/lib/dpkg/status").read_text(errors="replace")
    (found,) = re.findall(r"^Package: libze-intel-gpu1\n(?:.+\n)*?Version: (.+)", status, re.MULTILINE)
    return str(found)


@cache
def _driver() -> bytes:
    """The emulated driver, compiled once per process."""
    with tempfile.TemporaryDirectory(prefix="xe-") as directory:
        headers = ("-idirafter", str(ROOT / "usr/include"))
        return compiled(Path(directory, "xe.so"), [Path(__file__).with_name("xe.c")], *headers).read_bytes()


@contextmanager
def node(mib: int = 1024) -> Iterator[EmulatedNode]:
    """An emulated node with one GPU for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="xe-", ignore_cleanup_errors=True) as directory:
        run = Path(directory)
        (run / "xe.so").write_bytes(_driver())
        _describe(run)
        env = {
            "XE_EMULATOR": directory,
            "LD_PRELOAD": str(run / "xe.so"),
            "XE_EMULATOR_YAMA": "1",
            **SETTINGS,
        }
        arguments = map(str, (run, ROOT, 1, mib, *bound(ROOT)))
        with namespace_of("sh", str(KFD / "namespace.sh"), *arguments) as enter:
            yield EmulatedNode(enter, env)


def _describe(run: Path) -> None:
    """The files of /sys and /dev in which user space finds an Arc B580."""
    minor, address = 128, "0000:03:00.0"
    device = run / "sys/devices/xe" / address
    for name in ("card0", f"renderD{minor}"):
        drm = device / "drm" / name
        drm.mkdir(parents=True)
        (drm / "device").symlink_to(f"../../../{address}")
    texts = {"vendor": "0x8086", "device": "0xe20b", "class": "0x030000", "numa_node": "-1"}
    texts |= {"tile0/gt0/freq0/max_freq": "2850", "uevent": f"DRIVER=xe\nPCI_SLOT_NAME={address}"}
    for name, text in texts.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text + "\n")
    links = {
        run / "sys/bus/pci/devices" / address: device,
        run / f"sys/dev/char/226:{minor}": device / f"drm/renderD{minor}",
        **{run / "sys/class/drm" / name: device / "drm" / name for name in ("card0", f"renderD{minor}")},
    }
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))
    (run / "sys/module/xe").mkdir(parents=True, exist_ok=True)
    paths = run / "dev/dri/by-path"
    paths.mkdir(parents=True, exist_ok=True)
    (run / f"dev/dri/renderD{minor}").touch()
    (paths / f"pci-{address}-render").symlink_to(f"../renderD{minor}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command on an emulated node; without one, print the version of the driver."""
    parser = argparse.ArgumentParser(prog="python -m tests.xe.emulated", description=main.__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="memory of the GPU")
    parser.add_argument("command", nargs="*")
    asked = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(reason)
    if not asked.command:
        sys.stdout.write(f"libze-intel-gpu1 {version()}\n")
        return
    with node(asked.mib) as emulated:
        command = [*emulated.enter, *asked.command]
        sys.exit(subprocess.run(command, env={**os.environ, **emulated.env}, check=False).returncode)


if __name__ == "__main__":
    main()
