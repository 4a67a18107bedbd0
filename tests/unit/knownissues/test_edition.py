"""The edition of the database."""

from __future__ import annotations

from pathlib import Path

from gpuipc_doctor import knownissues

OWN = "suppress:\n  - {id: nvidia-ipc-reopen, reason: known here, until: 2026-12-31}\n"


def test_edition_depends_on_the_sites_files(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    one = knownissues.edition([tmp_path])
    assert one != knownissues.edition()
    (tmp_path / "own.yaml").write_text(OWN + "# changed\n")
    assert knownissues.edition([tmp_path]) not in (one, knownissues.edition())
