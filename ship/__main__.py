"""How the single file starts: unpacked into a private directory, which goes when the program ends.

Nothing is written elsewhere and nothing is fetched. Unpacked it must be: the checks run in processes of their
own, whose Python gets that directory as ``PYTHONPATH``, and compiled modules (msgspec, jsonschema's `rpds`)
cannot be loaded out of an archive. With ``--once`` in front of all other words
the file removes itself, too, as who has brought it here wants. What runs that were killed have left beside
them is removed.

Python 3.6 and later must be able to parse this module, to say that they are too old.
"""

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PLACES = ("/tmp", "/dev/shm", "/var/tmp")


def unpacked(archive: str) -> str:
    """The directory: in the first place that has room, that lets compiled modules be loaded, and in which no
    other user can replace what root then runs. Ends the program where there is none.
    """
    reasons = []
    for place in dict.fromkeys((*filter(None, [os.environ.get("TMPDIR")]), *PLACES)):
        reason = untrusted(Path(place, "directory"))
        if reason:
            reasons.append(f"{place} {reason}")
            continue
        directory = ""
        try:
            directory = tempfile.mkdtemp(prefix="gpuipc-doctor-", dir=os.path.realpath(place))
            # Until we end, as `gpuipc_doctor.supervise.leftovers` does: no other run takes it for one.
            fcntl.flock(os.open(directory, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(directory, filter(ours, packed.namelist()))
            subprocess.run(loading(directory), check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            reasons.append(f"{place}: {said[-1] if said else error}")
            if directory:
                shutil.rmtree(directory, ignore_errors=True)
        else:
            return directory
    sys.exit("gpuipc-doctor: cannot unpack itself: " + "; ".join(reasons) + "; TMPDIR names another place")


def untrusted(path: Path) -> str:
    """As `gpuipc_doctor.files.trust.untrusted`, of the archive; nothing of it stays imported."""
    from gpuipc_doctor.files import trust

    try:
        return trust.untrusted(path)
    finally:
        forget()


def loading(directory: str) -> "list[str]":
    """Command line that tries whether compiled modules can be loaded from a directory."""
    from gpuipc_doctor.files import python

    try:
        return python.script("-c", "import sys; sys.path[:0] = sys.argv[1:]; import rpds, msgspec", directory)
    finally:
        forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpuipc_doctor"]:
        del sys.modules[name]


def ours(name: str) -> bool:
    """Whether this Python has a use for a file: not for what was compiled for others."""
    return not name.endswith(".so") or name.endswith(EXTENSION_SUFFIXES[0])


def main() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 - a user may start the file with any Python
        sys.exit(f"gpuipc-doctor: needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}")
    archive = sys.argv[0]
    directory = unpacked(archive)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if sys.argv[1:2] == ["--once"]:
        del sys.argv[1]
        Path(archive).unlink()
    sys.path[0] = directory  # in place of the archive
    from gpuipc_doctor.files import python

    python.unpack_into(directory)
    python.restrict_environment()
    from gpuipc_doctor.__main__ import main as doctor
    from gpuipc_doctor.supervise import leftovers

    leftovers.sweep([Path(archive).absolute().parent, Path(directory).parent])
    doctor()


if __name__ == "__main__":
    main()
