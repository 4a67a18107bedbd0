"""The layers of the simulated drivers: a file only calls files of lower layers in the README's table."""

from __future__ import annotations

import re
import subprocess
from itertools import chain

import pytest

from gpuipc_doctor.simulator.build import FLAGS, SOURCES, generate, read_table
from tests.waiting import LIMIT_S


@pytest.fixture(scope="module")
def layers() -> list[list[str]]:
    """The files of each row of the README's table, lowest layer first."""
    table = (SOURCES / "README.md").read_text().partition("| layer |")[2].partition("\n\n")[0]
    return [re.findall(r"`(\w+\.c)`", row.split("|")[1]) for row in table.splitlines()[2:]]


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory, layers: list[list[str]]) -> dict[str, dict[str, str]]:
    """File → symbol → its type from nm: ``U`` if another file defines it."""
    directory = tmp_path_factory.mktemp("layers")
    for name, text in generate(read_table((SOURCES / "calls.table").read_text())).items():
        (directory / name).write_text(text)
    found = {}
    for file in chain.from_iterable(layers):
        target = directory / f"{file}.o"
        command = ["cc", *FLAGS, "-O0", "-Werror", f"-I{SOURCES}", f"-I{directory}", "-c", "-o", target]
        subprocess.run([*command, SOURCES / file], check=True, timeout=LIMIT_S)
        lines = subprocess.run(["nm", "-g", target], check=True, capture_output=True, text=True).stdout
        found[file] = {line.split()[-1]: line.split()[-2] for line in lines.splitlines()}
    return found


def test_readme_names_every_file(layers: list[list[str]]) -> None:
    assert sorted(chain.from_iterable(layers)) == sorted(
        {path.name for path in SOURCES.glob("*.c")}
        - {"mpi_faults.c", "fabric_faults.c", "cuda_runtime.c", "nccl.c"}
    )


def test_calls_go_down(layers: list[list[str]], symbols: dict[str, dict[str, str]]) -> None:
    floor = {file: height for height, files in enumerate(layers) for file in files}
    home = {name: file for file in symbols for name, kind in symbols[file].items() if kind in "BDRT"}
    upward = [
        f"{file} calls {name} of {home[name]}"
        for file in symbols
        for name, kind in symbols[file].items()
        if kind == "U" and name in home and name != "face" and floor[home[name]] >= floor[file]
    ]
    assert not upward
