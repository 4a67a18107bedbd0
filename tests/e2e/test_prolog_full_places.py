"""A user fills every directory for temporary files: a bad node is found, and no healthy one is drained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import full
from tests.e2e.test_prolog import AMPLE, Site
from tests.waiting import LIMIT_S

ALONE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
LAST = Path("/run/gpuipc-doctor/files")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0,
        reason="needs root, and mount namespaces",
    ),
]

EACH = "for place in /dev/shm /tmp /var/tmp; do {}; done"
FILLED = {
    "no byte": EACH.format(
        "mount -t tmpfs -o size=16k none $place; head -c 20000 /dev/zero > $place/of-user"
    ),
    "little": EACH.format("mount -t tmpfs -o size=1m none $place"),
    "no inode": EACH.format("mount -t tmpfs -o nr_inodes=1 none $place"),
    "read-only": EACH.format("mount -t tmpfs -o ro none $place"),
    "one has room": "for place in /dev/shm /tmp; do mount -t tmpfs -o size=16k none $place; done",
}


@pytest.mark.parametrize(
    ("how", "profile", "code", "says"),
    [
        ("no byte", "nvidia-460.32.03", 12, " FAIL ipc-reopen"),
        ("no byte", "healthy-single", 0, " PASS "),
        full("little", "nvidia-460.32.03", 12, " FAIL ipc-reopen"),
        full("no inode", "nvidia-460.32.03", 12, " FAIL ipc-reopen"),
        full("read-only", "nvidia-460.32.03", 12, " FAIL ipc-reopen"),
        full("one has room", "nvidia-460.32.03", 12, " FAIL ipc-reopen"),
        full("one has room", "healthy-single", 0, " PASS "),
    ],
)
def test_full_places_keep_no_bad_node_in_service(
    how: str, profile: str, code: int, says: str, request: pytest.FixtureRequest
) -> None:
    directory = Path("/root" if os.access("/root", os.W_OK) else "/opt", f"gpuipc-doctor-{os.getpid()}")
    directory.mkdir(mode=0o700)
    request.addfinalizer(lambda: subprocess.run(["rm", "-r", directory], check=True))
    site = Site(directory)
    site.write(profile)
    prolog = (sys.executable, "-I", "-m", "gpuipc_doctor", "prolog", "--config", str(site.config), *AMPLE)
    script = f'{FILLED[how]}; "$@"; code=$?; grep -c gpuipc-doctor /proc/mounts; exit $code'
    ended = subprocess.run(
        [*ALONE, script, "sh", *prolog],
        capture_output=True, text=True, cwd=directory, timeout=LIMIT_S,
    )  # fmt: skip
    line, mounts = ended.stdout.splitlines()
    assert (ended.returncode, mounts) == (code, "0"), ended
    assert says in line
    if how != "one has room":
        assert LAST.stat().st_mode & 0o7777 == 0o700
        assert list(LAST.iterdir()) == []
    assert (directory / "state").is_dir()  # what the prolog remembers is outside its own mounts
