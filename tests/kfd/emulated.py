"""A node with emulated AMD GPUs: AMD's own runtime, over a preloaded stand-in for the kernel driver.

A mount namespace holds what the runtime reads of /sys and /dev. It is made as root or, where the kernel lets
users have one, in a user namespace. The runtime is this machine's (Debian 12 has ROCm 5.2.3) or that of
another root file system (`Makefile`, ``.prefix/rocm-*``), in which this machine's Python and this repository
are mounted.

    python -m tests.kfd.emulated rocm-6 -- gpuipc-doctor check --all --backend hip
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.kfd import topology

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
DRIVER = "kfd.so"
GPUS, MIB = 2, 3072
"""More than 1.1 GiB: with less, ROCr leaves out the scratch memory that it reserves on real GPUs."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One release of AMD's runtime: its name here, and the root file system that it is installed in."""

    name: str
    root: Path

    @property
    def library(self) -> Path:
        """``libamdhip64.so.N``, as a path below ``root``."""
        (found,) = (self.root / "usr/lib").glob("*/libamdhip64.so.[0-9]")
        return found

    @property
    def generation(self) -> int:
        return int(self.library.suffix[1:])

    @property
    def packages(self) -> str:
        """The exact versions, as Debian has them: ``libamdhip64-5 5.2.3-8, libhsa-runtime64-1 5.2.3-3``."""
        status = (self.root / "var/lib/dpkg/status").read_text(errors="replace")
        found = re.findall(
            r"^Package: (libamdhip64-\d|libhsa-runtime64-1|libhsakmt1)\n(?:.+\n)*?Version: (.+)",
            status,
            re.MULTILINE,
        )
        return ", ".join(" ".join(pair) for pair in found)


def runtimes() -> list[Runtime]:
    """Those that this machine has, oldest first: Debian's own, and those that ``make`` fetched."""
    fetched = [ready.parent for ready in (REPOSITORY / ".prefix").glob("rocm-*/.ready")]
    found = [Runtime(root.name, root) for root in fetched]
    if any(Path("/usr/lib").glob("*/libamdhip64.so.5")):
        found.append(Runtime("rocm-5", Path("/")))
    return sorted(found, key=lambda runtime: runtime.generation)


def chosen_runtimes() -> list[Runtime]:
    """This machine's own, and those named in ``GPUIPC_TEST_AMD``: ``rocm-6,rocm-7``."""
    names = os.environ.get("GPUIPC_TEST_AMD", "").split(",")
    return [runtime for runtime in runtimes() if runtime.root == Path("/") or runtime.name in names]


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """What a process needs to run there: a command to put before its own, and variables."""

    runtime: Runtime
    enter: tuple[str, ...]
    env: dict[str, str]


def build(directory: Path) -> Path:
    """Compile the emulated driver into ``directory``."""
    flags = [
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-fvisibility=hidden",
        "-shared",
        "-pthread",
    ]
    library = directory / DRIVER
    sources = sorted(map(str, HERE.glob("*.c")))
    subprocess.run(
        ["cc", *flags, "-I", str(HERE / "include"), *sources, "-o", str(library), "-ldl"], check=True
    )
    return library


@cache
def namespace() -> tuple[str, ...]:
    """The command that makes a mount namespace here; raises `OSError` that says why none can be made."""
    refusals = []
    for command in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
        tried = subprocess.run(
            [*command, "mount", "-t", "tmpfs", "t", "/mnt"], capture_output=True, text=True, check=False
        )
        if not tried.returncode:
            return command
        refusals.append(tried.stderr.strip())
    raise OSError(f"no mount namespace can be made here: {'; '.join(refusals)}")


@contextmanager
def node(runtime: Runtime, gpus: int = GPUS, mib: int = MIB) -> Iterator[EmulatedNode]:
    """A node that lives as long as the block; its GPUs are nobody else's."""
    with tempfile.TemporaryDirectory(prefix="kfd-", ignore_cleanup_errors=True) as directory:
        run = Path(directory)
        (run / "ipc").mkdir()
        (run / "lib").mkdir()
        (run / "lib/libamdhip64.so").symlink_to(Path("/") / runtime.library.relative_to(runtime.root))
        topology.write(run, gpus, mib, os.cpu_count() or 1)
        build(run)
        env = {
            "KFD_EMULATOR": directory,
            "LD_PRELOAD": str(run / DRIVER),
            "LD_LIBRARY_PATH": str(run / "lib"),
            "ROCM_PATH": directory,
        }
        arguments = map(str, (run, runtime.root, gpus, mib, *_bound(runtime)))
        with _namespace_of("sh", str(HERE / "namespace.sh"), *arguments) as enter:
            yield EmulatedNode(runtime, enter, env)


@contextmanager
def _namespace_of(*script: str) -> Iterator[tuple[str, ...]]:
    """The command that enters the mount namespace which a script makes; it ends with the block."""
    command = [*namespace(), "--propagation", "private", *script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != b"ready\n":
                raise OSError(f"{script[1]} failed; what it said is on stderr")
            user = ("--user", "--preserve-credentials") if "--user" in command else ()
            yield ("nsenter", f"--target={holder.pid}", *user, "--mount", "--root", f"--wdns={REPOSITORY}")
        finally:
            holder.stdin.close()


def _bound(runtime: Runtime) -> list[str]:
    """What of this machine another root file system needs: this repository, and the Python that runs here."""
    if runtime.root == Path("/"):
        return []
    python = Path(sys.executable).resolve()
    release = f"python3.{sys.version_info.minor}"
    installed = [python, Path("/usr/lib") / release] if sys.base_prefix == "/usr" else [Path(sys.base_prefix)]
    places = [REPOSITORY, (REPOSITORY / ".prefix").resolve(), Path(tempfile.gettempdir()), *installed]
    return sorted({str(place) for place in places if place.exists() and place != Path("/tmp")})


def main() -> None:
    """Run a command on an emulated node."""
    parser = argparse.ArgumentParser(prog="python -m tests.kfd.emulated", description=main.__doc__)
    parser.add_argument("runtime", choices=[runtime.name for runtime in runtimes()])
    parser.add_argument("--gpus", type=int, default=GPUS)
    parser.add_argument("--mib", type=int, default=MIB, help="memory of each GPU")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    (runtime,) = (runtime for runtime in runtimes() if runtime.name == asked.runtime)
    with node(runtime, asked.gpus, asked.mib) as emulated:
        sys.exit(
            subprocess.run([*emulated.enter, *asked.command], env={**os.environ, **emulated.env}).returncode
        )


if __name__ == "__main__":
    main()
