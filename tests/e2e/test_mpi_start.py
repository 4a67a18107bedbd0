"""Ranks that do not start are reported once; planning respects a launcher that binds GPUs to ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, evidence, full
from tests.e2e.test_mpi_checks import LIBRARIES

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("resting")]

RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

Findings = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
def bound(doctor: Command, tmp_path: Path) -> Callable[..., tuple[Findings, int]]:
    """Run checks whose two ranks get ``by_rank`` as the value of a variable from a wrapper in the launcher.

    Returns the last finding by check and subject, and the exit code.
    """

    def run(
        library: str, node: str, variable: str, by_rank: tuple[str, str], *checks: str
    ) -> tuple[Findings, int]:
        prefix = Path(os.environ["GPUIPC_TEST_MPI"], library)
        wrapper = tmp_path / "bind"
        first, second = by_rank
        wrapper.write_text(
            f'#!/bin/sh\ncase {RANK} in 0) n="{first}";; *) n="{second}";; esac\n'
            f'export {variable}="$n"\nexec "$@"\n'
        )
        wrapper.chmod(0o755)
        config = tmp_path / "site.yaml"
        config.write_text(
            f"mpi:\n  launcher: {prefix}/bin/mpiexec -n {{ranks}} {wrapper}\nmemory: {{most_gib: 0.3}}\n"
            "options:\n  mpi-small-message: {sizes: [0, 1, 256, 65536]}\n"
        )
        ended = doctor(
            *("check", *checks, "--simulate", node, "--mpi-lib", str(prefix / LIBRARIES[library])),
            *("--config", str(config), "--no-workarounds", "--json"),
            env={**os.environ, **OPEN_MPI, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"},
        )
        assert ended.stderr == ""
        results = json.loads(ended.stdout)["results"]
        found = {(result["check"], " > ".join(result["devices"])): result["finding"] for result in results}
        return found, ended.returncode

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("library", "node", "variable", "by_rank", "pair"),
    [
        ("openmpi", "healthy-cuda", "CUDA_VISIBLE_DEVICES", ("1", "0"), "cuda:1 > cuda:0"),
        ("mpich43", "healthy-hip", "HIP_VISIBLE_DEVICES", ("1", "0"), "hip:1 > hip:0"),
        ("mpich50", "healthy-both", "ROCR_VISIBLE_DEVICES", ("1", "0"), "hip:1 > hip:0"),
    ],
)
def test_one_gpu_per_rank_is_tested_as_a_pair(
    bound: Any, library: str, node: str, variable: str, by_rank: tuple[str, str], pair: str
) -> None:
    checks = ("mpi-small-message", "mpi-first-touch")
    found, code = bound(library, node, variable, by_rank, *checks)
    assert found["mpi-start", ""]["key"] == "bound"
    for check in checks:
        assert found[check, pair]["status"] in ("PASS", "WARN"), found[check, pair]
    for label in pair.split(" > "):
        skipped = found["mpi-small-message", label]
        assert (skipped["status"], skipped["key"]) == ("SKIP", "hidden-by-launcher")
        assert skipped["summary"].startswith("the launcher shows each rank one GPU: rank 0 ")
        assert "cray-mpich-gpu-binding-hides-peers" in skipped["remedy"]
    assert code == 0


def test_rank_without_a_gpu_is_an_error_of_the_launcher(bound: Any) -> None:
    found, code = bound("mpich50", "healthy-hip", "ROCR_VISIBLE_DEVICES", ("0", "9"), "mpi-small-message")
    blind = found["mpi-start", ""]
    assert (blind["status"], blind["key"]) == ("ERROR", "shows-no-gpu")
    assert blind["summary"].startswith("the launcher gives rank 1 none of the GPUs to be tested")
    others = [one for (check, _), one in found.items() if check == "mpi-small-message"]
    assert {finding["status"] for finding in others} == {"SKIP"}
    assert code == 3  # no probe ran


@pytest.mark.full
def test_mpi_without_a_provider_is_reported_once_with_the_librarys_message(doctor: Command) -> None:
    library = Path(os.environ["GPUIPC_TEST_MPI"], "mpich50/lib/libmpi.so.12")
    checks = ("mpi-small-message", "mpi-cache-growth", "mpi-stale-buffer", "mpi-first-touch")
    ended = doctor(
        *("check", *checks, "--simulate", "healthy-cuda", "--mpi-lib", str(library), "--json"),
        env={**os.environ, "FI_PROVIDER": "nonexistent", "MPIR_CVAR_CH4_NETMOD": "ofi"},
    )
    results = json.loads(ended.stdout)["results"]
    (failed,) = (result["finding"] for result in results if result["finding"]["status"] == "FAIL")
    assert "MPI_Init_thread #1 ended the ranks: OFI call getinfo failed" in failed["summary"]
    assert not [line for line in evidence(failed) if line.startswith("Tried ")]
    others = [result["finding"] for result in results if result["check"] in checks]
    assert {(finding["status"], finding["remedy"]) for finding in others} == {
        ("SKIP", "see the result of mpi-start")
    }
    assert ended.returncode == 12


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("exit 1", "WARN", "ended with exit code 1 although its ranks ended with 0"),
        full("sleep 1000", "FAIL", "had not ended 5 s after its ranks"),
    ],
)
def test_launcher_that_fails_after_good_ranks_is_reported_once(
    doctor: Command, tmp_path: Path, end: str, status: str, words: str
) -> None:
    prefix = Path(os.environ["GPUIPC_TEST_MPI"], "mpich50")
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\n{prefix}/bin/mpiexec "$@" || exit\n{end}\n')
    launcher.chmod(0o755)
    config = tmp_path / "site.yaml"
    config.write_text(
        f"mpi:\n  launcher: {launcher} -n {{ranks}}\noptions:\n  mpi-small-message: {{sizes: [1, 256]}}\n"
    )
    ended = doctor(
        *("check", "mpi-small-message", "--simulate", "healthy-cuda", "--device", "0", "--deadline", "5"),
        *("--mpi-lib", str(prefix / LIBRARIES["mpich50"]), "--config", str(config), "--json"),
    )
    results = json.loads(ended.stdout)["results"]
    told = [result["finding"] for result in results if result["check"] == "mpi-start"]
    assert told[-1]["status"] == status
    assert words in told[-1]["summary"]
    others = [result["finding"]["status"] for result in results if result["check"] == "mpi-small-message"]
    assert others == ["PASS"]


@pytest.fixture
def loader(tmp_path: Path) -> str:
    """A loader of Level Zero that finds no driver, with all functions that Intel MPI asks for."""
    library = Path(os.environ["GPUIPC_TEST_MPI"], "impi", LIBRARIES["impi"]).read_bytes()
    calls = {
        name.decode() for name in re.findall(rb"\0(?:MPL_level_zero_proxy\.)?(ze[A-Z]\w+)(?=\0)", library)
    }
    assert "zeInit" in calls
    text = "".join(f"int {call}(void) {{ return 0x78000001; }}\n" for call in sorted(calls))
    planted = str(tmp_path / "libze_loader.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", planted, "-x", "c", "-"], input=text.encode(), check=True)
    return planted


@pytest.mark.parametrize(("mode", "code"), [("auto", 12), (None, 0)])
def test_loader_of_level_zero_without_a_driver_is_named_with_its_cure(
    doctor: Command, tmp_path: Path, loader: str, mode: str | None, code: int
) -> None:
    node = tmp_path / "node.yaml"
    node.write_text("description: x\nextends: healthy-cuda\nversions: {level-zero: 1.8.0}\n")
    library = Path(os.environ["GPUIPC_TEST_MPI"], "impi", LIBRARIES["impi"])
    environment = {**os.environ, "I_MPI_OFFLOAD": "1", "I_MPI_OFFLOAD_LEVEL_ZERO_LIBRARY": loader}
    if mode:
        environment["I_MPI_OFFLOAD_MODE"] = mode
    ended = doctor("check", "mpi-start", "--simulate", str(node), "--mpi-lib", str(library), env=environment)
    assert ended.returncode == code, ended.stdout
    if code:
        assert "Tried I_MPI_OFFLOAD_MODE=cuda: helps" in ended.stdout
        assert "Known issue intel-mpi-takes-level-zero CONFIRMED" in ended.stdout
        assert "Do: set I_MPI_OFFLOAD_MODE=cuda" in ended.stdout
