"""Build the .deb and the .rpm: a virtual environment below /opt, hooks, manual page, completions, timer.

    python -m ship.packages dist [--python 3.11 …] [--machine x86_64 …] [--release 1] [--format deb rpm]

Run it in a clone, with the environment that `make demo` sets up. Each package is of one minor version of
Python:

| package | Python | for |
|---|---|---|
| deb | 3.10, 3.12 | Ubuntu 22.04, 24.04 |
| deb | 3.11, 3.13 | Debian 12, 13 |
| rpm | 3.11 | Enterprise Linux 8 and 9 with python3.11, SLES 15 with python311 |
| rpm | 3.12 | Enterprise Linux 8 and 9 with python3.12, 10 |

The environment has the bindings of CUDA and NVML, mpi4py and py-spy. CuPy, PyTorch and hip-python are the
node's own: `pip install --target /opt/gpuipc-doctor/local …` adds them, and the package leaves that directory
alone.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuipc_doctor import __version__
from gpuipc_doctor.cli import shell_files
from gpuipc_doctor.cli.main import cli
from gpuipc_doctor.prolog.hooks import HOOKS
from ship.build import NVML, pip, wheels_only

REPOSITORY = Path(__file__).parents[1]

PYTHONS = {"deb": ("3.10", "3.11", "3.12", "3.13"), "rpm": ("3.11", "3.12")}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""By machine, Debian's name, which nfpm translates for rpm."""

PREFIX = Path("/opt/gpuipc-doctor")
SITE_CONFIG = Path("/etc/gpuipc-doctor/site.yaml")
SCONTROL = "/usr/bin/scontrol"

GLIBC = ("manylinux_2_28", "manylinux_2_24")
"""Platforms whose glibc (2.28 or older) each distribution has that we package for. Without them, pip takes
cuda-bindings 12.9.0 instead of 12.9.10."""

EXTRAS = ("cuda-bindings>=12.9,<13", NVML, "mpi4py>=4", "py-spy>=0.4")

COMMAND = f"""#!/bin/sh
# Nothing is imported from the working directory, and as root nothing that the environment names.
python={PREFIX}/bin/python
[ "$(/usr/bin/id -u)" != 0 ] || {{
    unset PYTHONEXECUTABLE __PYVENV_LAUNCHER__  # -I does not ignore these two
    exec $python -I -m gpuipc_doctor "$@"
}}
exec $python -c 'import sys; sys.path[:] = filter(None, sys.path)
from gpuipc_doctor.__main__ import main; main()' "$@"
"""


def tree(root: Path, python: str, machine: str) -> None:
    """Write all files of the packages of one Python that are made here."""
    environment = root / PREFIX.relative_to("/")
    write(
        environment / "pyvenv.cfg",
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n",
    )
    write(environment / "bin/gpuipc-doctor", COMMAND, mode=0o755)
    (environment / "bin/python").symlink_to(f"/usr/bin/python{python}")
    packages = environment / f"lib/python{python}/site-packages"
    with tempfile.TemporaryDirectory() as directory:
        pip("wheel", "--no-deps", "--wheel-dir", directory, REPOSITORY)
        (wheel,) = Path(directory).glob("*.whl")
        wheels = wheels_only(python, machine, *GLIBC)
        pip("install", "--no-compile", "--target", packages, *wheels, wheel, *EXTRAS)
    (packages / "bin/py-spy").rename(environment / "bin/py-spy")
    shutil.rmtree(packages / "bin")  # with the path of this machine's Python in them
    write(packages / "local.pth", f"{PREFIX}/local\n")
    for hook in HOOKS.values():
        file = PREFIX / "hooks" / hook.name
        text = hook.written(
            file, python=f"{PREFIX}/bin/python", config=SITE_CONFIG, scontrol=SCONTROL, slurm_conf=""
        )
        write(root / file.relative_to("/"), text, mode=hook.mode)
    for name, text in shell_files.completions(cli).items():
        write(root / "usr" / name, text)
    manual = root / "usr/share/man/man1/gpuipc-doctor.1.gz"
    manual.parent.mkdir(parents=True)
    manual.write_bytes(gzip.compress(manual_page(), mtime=0))


def write(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def manual_page() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-I", "-m", "sphinx", "-q", "-W", "-b", "man", "docs", directory]
        subprocess.run(command, check=True, cwd=REPOSITORY)
        return (Path(directory) / "gpuipc-doctor.1").read_bytes()


def pack(root: Path, file: Path, env: dict[str, str]) -> None:
    """Write the package of a tree; its name's ending says which kind."""
    nfpm = Path(sys.executable).with_name("nfpm")
    command = [nfpm, "package", "--config", "ship/package/nfpm.yaml", "--packager", file.suffix[1:]]
    subprocess.run(
        [*command, "--target", file],
        check=True,
        cwd=REPOSITORY,
        env=os.environ | env | {"TREE": str(root)},
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", nargs="+")
    parser.add_argument("--machine", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--release", nargs="+", default=["1"])
    parser.add_argument("--format", nargs="+", default=list(PYTHONS), choices=list(PYTHONS))
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    pythons = given.python or sorted({python for name in given.format for python in PYTHONS[name]})
    for python, machine in itertools.product(pythons, given.machine):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            root.chmod(0o755)
            tree(root, python, machine)
            for name, release in itertools.product(given.format, given.release):
                if given.python or python in PYTHONS[name]:
                    arch = ARCHITECTURES[machine]
                    file = out / f"gpuipc-doctor-{__version__}-{release}~py{python}.{arch}.{name}"
                    env = {"ARCH": arch, "PYTHON": python, "RELEASE": release, "VERSION": __version__}
                    pack(root, file, env)
                    print(file)


if __name__ == "__main__":
    main()
