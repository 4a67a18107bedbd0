"""Versions reported by programs, and by package managers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuipc_doctor.api import Worker
from gpuipc_doctor.files import foreign
from gpuipc_doctor.files.node_files import shown
from gpuipc_doctor.node.survey_records import record

_LIMIT_S = 60.0
"""Seconds for a program; the probe's deadline is shorter."""

PROGRAMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "slurm": (("scontrol", "srun", "slurmd"), ("--version",), r"slurm(?:-wlm)? (\S+)"),
    "mlnx-ofed": (("ofed_info",), ("-s",), r"OFED[\w.]*-([0-9][^\s:]*)"),
}
"""Fact → (alternative names of a program, its arguments, pattern of the version)."""


def version(w: Worker) -> None:
    """Version printed by a program; the supervisor ends a program that does not answer."""
    command, fact = w.params["command"], w.params["facts"][0]
    source = " ".join(command)
    text = _output(w, command)
    stated = re.search(w.params["expression"], text)
    said = stated[1] if stated else None
    record(w, (fact, said, source if said else f"{source} said {shown(text)[:60]!r}"))


PACKAGE_MANAGERS = {
    "rpm": ("-q", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n"),
    "dpkg-query": ("-W", "-f", r"${Package} ${Version}\n"),
}

PACKAGES = {
    "cray-cxi-driver": "cxi-driver",
    "cray-cxi-driver-kmp-default": "cxi-driver",
    "cxi-driver": "cxi-driver",
    "shs-version": "shs",
    "intel-level-zero-gpu": "intel-compute-runtime",
    "libze-intel-gpu1": "intel-compute-runtime",
    "intel-opencl-icd": "intel-compute-runtime",
}
"""Package → the fact about its version."""


def packages(w: Worker) -> None:
    manager = w.params["manager"]
    name = Path(manager).name
    text = _output(w, [manager, *PACKAGE_MANAGERS[name], *PACKAGES])
    for fact, value, package in versions_in(text, PACKAGES):
        record(w, (fact, value, f"{name}: {package}"))
    missing = f"{name} lists none of the packages {', '.join(PACKAGES)}"
    record(w, *((fact, None, missing) for fact in w.params["facts"]))


def versions_in(text: str, facts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(fact, version, package) of each line ``package version`` that names a package in ``facts``.

    The versions of HPE's packages contain the Slingshot release: ``1.0.0-SHS11.0.2_2024…``.
    """
    for line in text.splitlines():
        package, _, stated = line.partition(" ")
        if package in facts and re.match(r"[0-9]", stated):
            value = shown(stated)
            yield facts[package], value.partition("-")[0] if facts[package] == "shs" else value, package
            if found := re.search(r"(?:SHS|SSHOT)([0-9]+(?:\.[0-9]+)+)", value):
                yield "shs", found[1], package


def _output(w: Worker, command: list[str]) -> str:
    with w.armed(" ".join(command[:2])):
        done = foreign.run(command, limit_s=_LIMIT_S)
    return done.stdout + done.stderr
