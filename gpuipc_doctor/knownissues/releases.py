"""Release dates of the versions that fix known issues, from the tags in their repositories."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path

from gpuipc_doctor.files.tables import table

LONG = timedelta(days=2 * 365)
"""A log without a version is assumed to come from software with all fixes that are at least this old."""


def released() -> Mapping[str, Mapping[str, date]]:
    """(component, version) → release date."""
    found: Mapping[str, Mapping[str, date]] = table(Path(__file__).with_name("releases.yaml"))
    return found
