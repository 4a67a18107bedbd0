"""The .deb and the .rpm in root file systems without network: installed, used, upgraded, removed, refused.

No distribution with rpm is available here. `rpm --root` installs the .rpm of Python 3.11 into Debian 12's
root, together with a stand-in for the packages of its Python and C library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuipc_doctor import __version__
from gpuipc_doctor.cli.main import COMMANDS
from tests.conftest import ROOTS
from tests.waiting import LIMIT_S

pytestmark = [
    pytest.mark.full,
    pytest.mark.packages,
    pytest.mark.xdist_group("packages"),
    pytest.mark.timeout(1200),
]

REPOSITORY = Path(__file__).parents[2]
OURS = "/opt/gpuipc-doctor"
CONFIG = "etc/gpuipc-doctor/site.yaml"
METRICS = "var/lib/prometheus/node-exporter/gpuipc-doctor.prom"
MANUAL = "usr/share/man/man1/gpuipc-doctor.1.gz"
TRACES = ("opt/gpuipc-doctor", "usr/bin/gpuipc-doctor", MANUAL, "etc/gpuipc-doctor")

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}

STAND_IN = """
name: python3.11
arch: amd64
version: 3.11.2
description: what a distribution's own packages would provide
rpm: {compression: gzip}
provides: ["python(abi) = 3.11", /usr/bin/python3.11, glibc = 2.36, /bin/sh]
"""


@dataclass(frozen=True)
class Root:
    """A root file system of Debian."""

    path: Path

    def run(self, *command: str, code: int = 0, stdin: str = "") -> str:
        """The output of a command that must end with ``code``, without network and in a pid namespace."""
        into = ("unshare", "--net", "--pid", "--fork", f"--root={self.path}", "--mount-proc", "--wd=/")
        return ended((*into, *command), code, ENVIRONMENT, stdin)

    def add(self, package: Path) -> str:
        """Copy this package into the root file system; returns its path there."""
        shutil.copy(package, self.path / "root")
        return f"/root/{package.name}"

    def traces(self) -> list[str]:
        return [name for name in TRACES if os.path.lexists(self.path / name)]


def ended(
    command: tuple[str | Path, ...], code: int = 0, env: dict[str, str] | None = None, stdin: str = ""
) -> str:
    done = subprocess.run(
        command, env=env, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, cwd=REPOSITORY
    )
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def roots() -> Iterator[Path]:
    """Outside pytest's directory, which is private to root: apt's helper is another user."""
    with tempfile.TemporaryDirectory(prefix="gpuipc-roots-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def bookworm(roots: Path) -> Root:
    return copied("bookworm", roots)


def copied(suite: str, into: Path) -> Root:
    ended(("cp", "-a", ROOTS / suite, into))
    return Root(into / suite)


class Packages:
    """Packages, built on request: each pair of Python and kind takes half a minute."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, python: str, release: int, kind: str) -> Path:
        file = self._directory / f"gpuipc-doctor-{__version__}-{release}~py{python}.amd64.{kind}"
        if not file.exists():
            options = ("--python", python, "--machine", "x86_64", "--format", kind, "--release", "1", "2")
            ended((sys.executable, "-m", "ship.packages", self._directory, *options))
        return file


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(tmp_path_factory.mktemp("packages"))


def assert_is_usable(root: Root) -> None:
    assert __version__ in root.run("gpuipc-doctor", "--version")
    assert "SKIP" in root.run("gpuipc-doctor", "check", "--all", code=3)
    log = "[0]: cuIpcOpenMemHandle failed: NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."
    assert "nvidia-gpu-lost" in root.run("gpuipc-doctor", "diagnose", "-", code=12, stdin=log)
    assert "fine" in root.run("gpuipc-doctor", "config", "validate", f"/{CONFIG}")
    loaded = "import cuda.bindings.driver, mpi4py, msgspec, rpds, yaml; print(yaml.__with_libyaml__)"
    assert "True" in root.run(f"{OURS}/bin/python", "-I", "-c", loaded)
    assert "py-spy" in root.run(f"{OURS}/bin/py-spy", "--version")


def assert_is_integrated(root: Root) -> None:
    """Assert that hook, timer, completions and manual page work, and that earlier use wrote no file."""
    assert "no probe ran" in root.run("sh", f"{OURS}/hooks/gpuipc-doctor-slurm")
    root.run("bash", "-n", f"{OURS}/hooks/gpuipc_doctor.nhc")
    listed = (
        "source /usr/share/bash-completion/completions/gpuipc-doctor; "
        "COMP_WORDS=(gpuipc-doctor ''); COMP_CWORD=1; "
        "_gpuipc_doctor_completion gpuipc-doctor ''; echo ${COMPREPLY[@]}"
    )
    assert set(root.run("bash", "-c", listed).split()) == set(COMMANDS)
    manual = root.run("gzip", "-cd", f"/{MANUAL}")
    assert "gpuipc-doctor check" in manual.replace("\\-", "-")
    metrics = f"{OURS}/bin/gpuipc-doctor-metrics"
    assert "TEXTFILE_DIRECTORY" in root.run(metrics, code=2)
    (root.path / METRICS).parent.mkdir(parents=True)
    root.run(metrics)
    families = {family.name for family in text_string_to_metric_families((root.path / METRICS).read_text())}
    assert any(name.startswith("gpuipc_doctor") for name in families)
    assert [file.name for file in (root.path / METRICS).parent.iterdir()] == ["gpuipc-doctor.prom"]
    units = [str(file) for file in (root.path / "usr/lib/systemd/system").glob("gpuipc-doctor-*")]
    assert len(units) == 4
    (root.path / "var/log/gpuipc-doctor.jsonl").write_text("{}\n")
    ended(("logrotate", "--debug", root.path / "etc/logrotate.d/gpuipc-doctor"))


@pytest.mark.parametrize(("suite", "python"), [("bookworm", "3.11"), ("trixie", "3.13")])
def test_deb_is_installed_used_upgraded_and_removed(
    suite: str, python: str, packages: Packages, roots: Path
) -> None:
    root = copied(suite, roots)
    first, second = (root.add(packages.get(python, release, "deb")) for release in (1, 2))
    root.run("apt-get", "install", "-q", "-y", "--no-install-recommends", first)
    assert_is_usable(root)
    assert_is_integrated(root)
    assert root.run("dpkg", "--verify", "gpuipc-doctor") == ""
    with (root.path / CONFIG).open("a") as config:
        config.write("tier: soak\n")
    root.run("apt-get", "install", "-q", "-y", second)
    assert f"2~py{python}" in root.run("dpkg-query", "-W", "gpuipc-doctor")
    assert (root.path / CONFIG).read_text().endswith("tier: soak\n")
    assert_is_usable(root)
    root.run("apt-get", "remove", "-q", "-y", "gpuipc-doctor")
    assert root.traces() == ["etc/gpuipc-doctor"]
    root.run("apt-get", "purge", "-q", "-y", "gpuipc-doctor")
    assert root.traces() == []
    assert not (root.path / "var/lib/gpuipc-doctor").exists()


def test_deb_of_another_python_is_refused(packages: Packages, bookworm: Root) -> None:
    other = bookworm.add(packages.get("3.13", 1, "deb"))
    assert "Depends: python3.13" in bookworm.run("apt-get", "install", "-q", "-y", other, code=100)
    assert bookworm.traces() == []


def test_rpm_is_installed_used_upgraded_and_removed(
    packages: Packages, bookworm: Root, tmp_path: Path
) -> None:
    rpm = ("rpm", f"--root={bookworm.path}")
    first, second, other = (
        packages.get(python, release, "rpm") for python, release in (("3.11", 1), ("3.11", 2), ("3.13", 1))
    )
    (tmp_path / "nfpm.yaml").write_text(STAND_IN)
    nfpm = Path(sys.executable).with_name("nfpm")
    ended((nfpm, "package", "-f", tmp_path / "nfpm.yaml", "-p", "rpm", "-t", tmp_path / "python.rpm"))
    assert "python(abi) = 3.11 is needed" in ended((*rpm, "-i", first), code=1)
    ended((*rpm, "-i", tmp_path / "python.rpm"))
    assert "python(abi) = 3.13 is needed" in ended((*rpm, "-i", other), code=1)
    assert bookworm.traces() == []
    ended((*rpm, "-i", first))
    assert_is_usable(bookworm)
    assert_is_integrated(bookworm)
    with (bookworm.path / CONFIG).open("a") as config:
        config.write("tier: soak\n")
    ended((*rpm, "-U", second))
    assert "2~py3.11" in ended((*rpm, "-q", "gpuipc-doctor"))
    assert (bookworm.path / CONFIG).read_text().endswith("tier: soak\n")
    assert_is_usable(bookworm)
    ended((*rpm, "-e", "gpuipc-doctor"))
    assert bookworm.traces() == ["etc/gpuipc-doctor"]
    saved = [file.name for file in (bookworm.path / "etc/gpuipc-doctor").iterdir()]
    assert saved == ["site.yaml.rpmsave"]


def test_image_reports_missing_devices_and_tests_passed_ones(packages: Packages, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    ended(("sh", "ship/image.sh", packages.get("3.11", 1, "deb"), archive))
    store = (f"--root={tmp_path}/storage", f"--runroot={tmp_path}/run", "--storage-driver=vfs")
    container = ended(("buildah", *store, "from", "--quiet", f"oci-archive:{archive}")).split()[-1]
    described = ended(("buildah", *store, "inspect", container))
    assert "--pid=host" in described
    assert '"gpuipc-doctor"' in described
    run = ("buildah", *store, "run", "--isolation=chroot", container, "gpuipc-doctor")
    assert __version__ in ended((*run, "--version"))
    assert "SKIP" in ended((*run, "check", "--all"), code=3)
