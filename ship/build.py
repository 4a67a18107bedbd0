"""Pack gpuipc-doctor and what it needs of pure Python into one file for nodes without it.

    python ship/build.py dist/gpuipc-doctor.pyz [--python 3.11 …] [--machine x86_64 …]

The bindings are the node's own (cuda-bindings, hip-python, mpi4py, CuPy, PyTorch): they belong to its driver.
NVML's are packed.
The compiled modules of `COMPILED` are packed for each Python and machine; their file names differ.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

COMPILED = {"rpds": "rpds-py", "msgspec": "msgspec"}
"""Packages that need a compiled module, and the distributions that they are in."""

NVML = "nvidia-ml-py>=12.560"
"""Of the bindings, the one that is pure Python and works with every driver."""

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of all files in the archive, so that the same sources make the same file."""


def pip(*words: str | Path) -> None:
    subprocess.run(
        [sys.executable, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True
    )


def wheels_only(python: str, machine: str, *newer: str) -> list[str]:
    """What has pip take what is made for a node, not for the machine that it runs on. ``newer``: further
    platforms, if every node has their glibc."""
    platforms = [f"--platform={name}_{machine}" for name in (*newer, "manylinux2014", "manylinux_2_17")]
    return ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]


def collect(into: Path, work: Path, pythons: Sequence[str], machines: Sequence[str]) -> None:
    """The package and its dependencies, as the oldest Python needs them."""
    pip("wheel", "--no-deps", "--wheel-dir", work, HERE.parent)
    [wheel] = work.glob("gpuipc_doctor-*.whl")
    pip("install", "--no-compile", "--target", into, *wheels_only(pythons[0], machines[0]), wheel, NVML)
    for compiled in list(into.rglob("*.so")):
        compiled.unlink()  # PyYAML and others have them for speed
    for python in pythons:
        for machine in machines:
            place = work / f"{python}-{machine}"
            pip("download", "--no-deps", "--dest", place, *wheels_only(python, machine), *COMPILED.values())
            for path in place.glob("*.whl"):
                with zipfile.ZipFile(path) as packed:
                    packed.extractall(into, (n for n in packed.namelist() if n.partition("/")[0] in COMPILED))
    shutil.rmtree(into / "bin", ignore_errors=True)
    shutil.copy(HERE / "__main__.py", into)


def pack(files: Iterable[Path], root: Path, out: Path) -> None:
    """The header and the archive behind it; executable, and whole or not at all."""
    draft = out.with_name(f".{out.name}.draft")
    draft.write_bytes((HERE / "header.sh").read_bytes())
    with zipfile.ZipFile(draft, "a", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            name = path.relative_to(root).as_posix()
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    draft.chmod(0o755)
    draft.replace(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", nargs="+", default=PYTHONS)
    parser.add_argument("--machine", nargs="+", default=MACHINES)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        into = work / "into"
        collect(into, work, given.python, given.machine)
        pack((path for path in into.rglob("*") if path.is_file()), into, given.out)


if __name__ == "__main__":
    main()
