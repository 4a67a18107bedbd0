"""What libraries and package managers say, taken apart: pure functions, tested on what they really say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpuipc_doctor.node_files import shown


def nccl(number: int) -> str:
    """``22403`` is 2.24.3; before 2.9 the number was ``2708`` for 2.7.8 (NCCL's nccl.h)."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def packages(text: str, facts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(fact, version, package) of each line ``package version`` that names one of the packages in ``facts``.

    The Slingshot release is a part of the release of HPE's packages: ``1.0.0-SHS11.0.2_2024…``.
    """
    for line in text.splitlines():
        package, _, stated = line.partition(" ")
        if package in facts and re.match(r"[0-9]", stated):
            value = shown(stated)
            yield facts[package], value.partition("-")[0] if facts[package] == "shs" else value, package
            if found := re.search(r"(?:SHS|SSHOT)([0-9]+(?:\.[0-9]+)+)", value):
                yield "shs", found[1], package
