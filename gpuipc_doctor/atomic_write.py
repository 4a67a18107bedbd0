"""Replace a file at once, so that no reader sees a part of it."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Replace the file at ``path``. Raises `OSError`; the file is then unchanged."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
