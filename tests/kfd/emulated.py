"""A node with emulated AMD GPUs: AMD's own runtime, over a preloaded stand-in for the kernel driver.

A mount namespace holds the files of /sys and /dev that the runtime reads. It is created as root or, if the
kernel allows that, in a user namespace. The runtime is this machine's (Debian 12 has ROCm 5.2.3) or that of
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.kfd import topology

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
DRIVER = "kfd.so"
GPUS, MIB = 2, 3072
"""Number of GPUs, MiB of each. With less than 1.1 GiB, ROCr omits the scratch memory that real GPUs have."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One release of AMD's runtime: its name here, and the root file system that it is installed in."""

    name: str
    root: Path

    @property
    def library(self) -> Path:
        """``libamdhip64.so.N``, as a path below ``root``."""
        return _library(self.root)

    @property
    def generation(self) -> int:
        return int(self.library.suffix[1:])

    @property
    def has_ucx_with_rocm(self) -> bool:
        """Whether its UCX has transports for AMD GPUs, as Debian's has since 13."""
        return any((self.root / "usr/lib").glob("*/ucx/libuct_rocm.so.0"))

    @property
    def packages(self) -> str:
        """Debian's exact versions, such as ``libamdhip64-5 5.2.3-8, libhsa-runtime64-1 5.2.3-3``."""
        status = (self.root / "var/lib/dpkg/status").read_text(errors="replace")
        found = re.findall(
            r"^Package: (libamdhip64-\d|libhsa-runtime64-1|libhsakmt1)\n(?:.+\n)*?Version: (.+)",
            status,
            re.MULTILINE,
        )
        return ", ".join(" ".join(pair) for pair in found)


@cache
def _library(root: Path) -> Path:
    (found,) = (root / "usr/lib").glob("*/libamdhip64.so.[0-9]")
    return found


@cache
def runtimes() -> list[Runtime]:
    """The runtimes on this machine, oldest first: Debian's own, and those fetched by ``make``."""
    fetched = [ready.parent for ready in (REPOSITORY / ".prefix").glob("rocm-*/.ready")]
    found = [Runtime(root.name, root) for root in fetched]
    if any(Path("/usr/lib").glob("*/libamdhip64.so.5")):
        found.append(Runtime("rocm-5", Path("/")))
    return sorted(found, key=lambda runtime: runtime.generation)


def chosen_runtimes() -> list[Runtime]:
    """This machine's own runtime, and those named in ``GPUIPC_TEST_AMD``: ``rocm-6,rocm-7``.

    Raises `LookupError` if a named runtime is missing.
    """
    named = set(filter(None, os.environ.get("GPUIPC_TEST_AMD", "").split(",")))
    found = runtimes()
    if absent := named - {runtime.name for runtime in found}:
        raise LookupError(f"GPUIPC_TEST_AMD names {', '.join(sorted(absent))}: not found below .prefix")
    return [runtime for runtime in found if runtime.root == Path("/") or runtime.name in named]


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """The node for a process that runs there: a command prefix, and variables."""

    runtime: Runtime
    enter: tuple[str, ...]
    env: dict[str, str]

    @property
    def env_with_ucx(self) -> dict[str, str]:
        """Variables that make an MPI library load the runtime's UCX instead of its own."""
        libraries = Path("/", *self.runtime.library.relative_to(self.runtime.root).parent.parts)
        return {**self.env, "LD_LIBRARY_PATH": f"{self.env['LD_LIBRARY_PATH']}:{libraries}"}


def build(directory: Path) -> Path:
    """Compile the emulated driver into ``directory``."""
    return compiled(directory / DRIVER, HERE.glob("*.c"), "-I", str(HERE / "include"))


def compiled(library: Path, sources: Iterable[Path], *more: str) -> Path:
    """A library to preload."""
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
    subprocess.run(["cc", *flags, *more, *sorted(map(str, sources)), "-o", str(library), "-ldl"], check=True)
    return library


@cache
def _driver() -> bytes:
    """The emulated driver, compiled once per process."""
    with tempfile.TemporaryDirectory(prefix="kfd-") as directory:
        return build(Path(directory)).read_bytes()


@cache
def namespace() -> tuple[str, ...]:
    """The command that creates a mount namespace; raises `OSError` with the reasons if none works."""
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
    """An emulated node for the duration of the block, with its own GPUs."""
    with tempfile.TemporaryDirectory(prefix="kfd-", ignore_cleanup_errors=True) as directory:
        run = Path(directory)
        (run / "ipc").mkdir()
        (run / "lib").mkdir()
        (run / "lib/libamdhip64.so").symlink_to(Path("/") / runtime.library.relative_to(runtime.root))
        topology.write(run, gpus, mib, os.cpu_count() or 1)
        (run / DRIVER).write_bytes(_driver())
        env = {
            "KFD_EMULATOR": directory,
            "LD_PRELOAD": str(run / DRIVER),
            "LD_LIBRARY_PATH": str(run / "lib"),
            "ROCM_PATH": directory,
        }
        arguments = map(str, (run, runtime.root, gpus, mib, *bound(runtime.root)))
        with namespace_of("sh", str(HERE / "namespace.sh"), *arguments) as enter:
            yield EmulatedNode(runtime, enter, env)


@contextmanager
def namespace_of(*script: str) -> Iterator[tuple[str, ...]]:
    """The command that enters the mount namespace created by a script; the namespace ends with the block."""
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


def bound(root: Path) -> list[str]:
    """Directories that another root file system needs from here: this repository, and the running Python."""
    if root == Path("/"):
        return []
    installed = [Path(sys.base_prefix)]
    if sys.base_prefix == "/usr":  # an environment's python3 links to it, and it is another release there
        installed = [*_links(Path(sys.executable)), Path(f"/usr/lib/python3.{sys.version_info.minor}")]
    places = [REPOSITORY, (REPOSITORY / ".prefix").resolve(), Path(tempfile.gettempdir()), *installed]
    outside = {place for place in places if place.exists() and REPOSITORY not in place.parents}
    return sorted(map(str, outside - {Path("/tmp")}))


def _links(path: Path) -> Iterator[Path]:
    """The targets of a chain of symbolic links, in order."""
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path


TOLD = """
import ctypes
hip, number = ctypes.CDLL("libamdhip64.so"), ctypes.c_int()
for call in ("hipRuntimeGetVersion", "hipDriverGetVersion"):
    if error := getattr(hip, call)(ctypes.byref(number)):
        raise SystemExit(f"{call} returned {error}")
    print(number.value)
"""


def versions(runtime: Runtime) -> str:
    """One line with the exact versions: of the packages, and as the runtime reports them on an emulated node.

    HIP's reference: a version is ``major · 10,000,000 + minor · 100,000 + patch``.
    """
    with node(runtime, gpus=1) as emulated:
        command = [*emulated.enter, sys.executable, "-c", TOLD]
        environment = {**os.environ, **emulated.env}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    hip, driver = (
        f"{number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"
        for number in map(int, done.stdout.split())
    )
    return f"{runtime.name}: {runtime.packages}; it reports HIP {hip}, driver {driver}"


def main() -> None:
    """Run a command on an emulated node; without one, print the exact versions of the runtimes."""
    if not sys.argv[1:]:
        for runtime in chosen_runtimes():
            sys.stdout.write(versions(runtime) + "\n")
        return
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
