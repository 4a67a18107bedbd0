"""Values of a site config reach the ranks, the checks and the screen."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Command, full

LOOK = '''
"""Look at what ranks have."""

import os

from gpuipc_doctor.api import Check, Finding, Probe

NAMES = ("OF_SITE", "OF_USER", "OF_MODULE", "LD_PRELOAD")


class SiteLook(Check):
    id = "site-look"
    title = "ranks have what the site says"
    needs_mpi = True

    def probes(self, ctx):
        yield Probe("look", {"rank0": look, "rank1": look}, ctx.devices[:1], launch=ctx.mpi.launch)

    def judge(self, done):
        yield Finding.ok("seen", "looked", **done.records["rank1"])


def look(w):
    w.record(**{name: os.environ.get(name, "") for name in NAMES})


CHECK = SiteLook()
'''

NODE = """
extends: healthy-cuda
description: A node with a library to preload.
files: {/opt/cray/gtl/libmpi_gtl_cuda.so: ""}
"""

SITE = """
checks_dirs: [checks]
modules: [cray-mpich]
environment:
  OF_SITE: {value: "1", why: to be seen}
  OF_USER: "0"
preload:
  cuda: {library: "${OF_MODULE}/libmpi_gtl_cuda.so", why: to be seen}
"""

MODULECMD = r"""#!/bin/sh
printf 'import os\nos.environ["OF_MODULE"] = "/opt/cray/gtl"\n_mlstatus = True\n'
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "site_look.py").write_text(LOOK)
    (tmp_path / "node.yaml").write_text(NODE)
    (tmp_path / "modulecmd").write_text(MODULECMD)
    (tmp_path / "modulecmd").chmod(0o755)
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    return path


def mpich() -> str:
    return str(Path(os.environ["GPUIPC_TEST_MPI"], "mpich50/lib/libmpi.so.12"))


def results(ended: Any, check: str) -> list[dict[str, Any]]:
    return [result["finding"] for result in json.loads(ended.stdout)["results"] if result["check"] == check]


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.cuda
def test_ranks_have_the_sites_modules_variables_and_preload(doctor: Command, site: Path) -> None:
    launcher = site.parent / "launcher"
    mpiexec = Path(mpich()).parent.parent / "bin/mpiexec"
    launcher.write_text(f'#!/bin/sh\necho "$OF_SITE,$LD_PRELOAD" > {site.parent}/seen\nexec {mpiexec} "$@"\n')
    launcher.chmod(0o755)
    site.write_text(f"{SITE}mpi: {{launcher: '{launcher} -n {{ranks}}'}}\n")
    command = ["check", "mpi-gpu-aware", "site-look", "--backend", "cuda", "--config", str(site), "--json"]
    command += ["--simulate", str(site.parent / "node.yaml"), "--mpi-lib", mpich()]
    environment = {**os.environ, "LMOD_CMD": str(site.parent / "modulecmd"), "OF_USER": "user"}
    ended = doctor(*command, env=environment)
    (look,) = results(ended, "site-look")
    preload = "/opt/cray/gtl/libmpi_gtl_cuda.so"
    assert look["values"].pop("LD_PRELOAD").split(":")[0] == preload
    assert look["values"] == {"OF_SITE": "1", "OF_USER": "user", "OF_MODULE": "/opt/cray/gtl"}
    assert preload not in (site.parent / "seen").read_text()  # the launcher must not load it
    assert (site.parent / "seen").read_text().startswith("1,")


@pytest.mark.mpi
@pytest.mark.cuda
def test_missing_library_stops_only_the_mpi_checks(doctor: Command, site: Path) -> None:
    site.write_text("preload:\n  cuda: {library: /none/libmpi_gtl_cuda.so, why: Cray MPICH wants it}\n")
    command = ["check", "mpi-gpu-aware", "environment", "--backend", "cuda", "--config", str(site), "--json"]
    ended = doctor(*command, "--simulate", "healthy-single", "--mpi-lib", mpich())
    (aware,) = results(ended, "mpi-gpu-aware")
    assert aware["status"] == "ERROR"
    assert aware["summary"] == f"{site}:2: preload: file not found: /none/libmpi_gtl_cuda.so"
    assert "Cray MPICH wants it" in aware["remedy"]
    assert {result["status"] for result in results(ended, "environment")} == {"PASS"}


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["auto", full("cuda")])
def test_node_with_fewer_gpus_than_expected_fails(doctor: Command, site: Path, backend: str) -> None:
    site.write_text("gpus: {model: H200, count: 4}\n")
    command = ["check", "driver-init", "--simulate", "healthy-cuda", "--config", str(site), "--json"]
    ended = doctor(*command, "--backend", backend)
    assert ended.returncode == 12
    said = [(result["status"], result["key"]) for result in results(ended, "driver-init")]
    assert said == [("FAIL", "fewer-than-expected"), ("PASS", "initialised")]


@pytest.mark.cuda
def test_command_line_overrides_the_config(doctor: Command, site: Path) -> None:
    """The remaining precedence is tested for `layers`."""
    site.write_text("tier: prolog\ndeadline_s: 7\nbudget_s: {prolog: 90}\n")
    dry = ["check", "--all", "--simulate", "healthy-single", "--dry-run", "--config", str(site)]
    by_config, by_command = doctor(*dry).stdout, doctor(*dry, "--tier", "soak", "--deadline", "9").stdout
    assert "  7\n" in by_config
    assert "ipc-peer" not in by_config
    assert "  9\n" in by_command
    assert "ipc-pool" in by_command


@pytest.mark.cuda
def test_mistake_in_a_sites_variable_is_reported_with_its_line(doctor: Command, site: Path) -> None:
    site.write_text("environment: {MPICH_GPU_SUPORT_ENABLED: '1'}\n")
    ended = doctor("check", "environment", "--simulate", "healthy-single", "--config", str(site), "--json")
    finding, _ = results(ended, "environment")  # the other one: what helps in a hang is not set
    assert finding["status"] == "WARN"
    assert f"MPICH_GPU_SUPORT_ENABLED=1 ({site}:1) is misspelt" in finding["summary"]


def test_config_for_other_nodes_is_used_and_reported(doctor: Command, site: Path) -> None:
    site.write_text("# ours\nhosts: nowhere[01-99]\n")
    ended = doctor("check", "known-versions", "--simulate", "healthy-single", "--config", str(site))
    assert ended.returncode == 0, ended
    assert ended.stderr.startswith(f"gpuipc-doctor: {site}:2: hosts: ")
    assert " is not one of nowhere[01-99]; the file is used anyway; " in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_loop_of_layers_is_one_line_before_anything_runs(doctor: Command, site: Path) -> None:
    site.write_text("extends: ./site.yaml\n")
    ended = doctor("check", "--all", "--config", str(site))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"gpuipc-doctor: {site}:1: extends: './site.yaml' is a cycle; change 'extends' in one of its files\n"
    )


AURORA = """
description: A node with Intel's GPUs, and without a driver of NVIDIA's or AMD's.
devices: []
files:
  /sys/bus/pci/devices/0000:18:00.0/vendor: "0x8086\n"
  /sys/bus/pci/devices/0000:18:00.0/device: "0x0bd5\n"
  /sys/bus/pci/devices/0000:18:00.0/class: "0x038000\n"
  /sys/bus/pci/devices/0000:42:00.0/vendor: "0x8086\n"
  /sys/bus/pci/devices/0000:42:00.0/device: "0x0bd5\n"
  /sys/bus/pci/devices/0000:42:00.0/class: "0x038000\n"
  /sys/bus/pci/devices/0000:00:1f.0/vendor: "0x8086\n"
  /sys/bus/pci/devices/0000:00:1f.0/class: "0x060100\n"
"""


@pytest.mark.full
@pytest.mark.cuda
@pytest.mark.hip
def test_intel_gpus_are_reported_and_no_other_driver_is_required(doctor: Command, tmp_path: Path) -> None:
    (tmp_path / "aurora.yaml").write_text(AURORA)
    ended = doctor("check", "driver-init", "--simulate", tmp_path / "aurora.yaml", "--json")
    assert ended.returncode == 3
    [finding] = results(ended, "driver-init")
    assert finding["status"] == "SKIP"  # without Level Zero's loader, or without a driver for it
    assert re.match(
        r"cannot load the driver library: libze_loader|zeInit .* finds no driver", finding["summary"]
    )
    assert finding["remedy"].startswith(("install ", "unset "))
    with_nvidia = AURORA.replace("devices: []", "extends: healthy-single")
    (tmp_path / "aurora.yaml").write_text(with_nvidia)
    ended = doctor("check", "driver-init", "--simulate", tmp_path / "aurora.yaml", "--json")
    assert {result["status"] for result in results(ended, "driver-init")} == {"PASS"}
