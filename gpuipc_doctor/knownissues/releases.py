"""When the versions that cure known issues were released: the dates of the tags in their repositories."""

from __future__ import annotations

from datetime import date, timedelta

LONG = timedelta(days=2 * 365)
"""After which a log is thought to be of a version that has the cure, if it does not tell its version."""

_NCCL = "2.11.4 2021-09-08, 2.24.3 2025-01-07, 2.26 2025-03-12, 2.26.5 2025-04-22"
_UCX = (
    "1.8.0 2020-04-03, 1.10.0 2021-03-09, 1.12.1 2022-03-21, 1.13.0 2022-07-07, 1.16.0 2024-04-15, "
    "1.18.0 2025-01-17, 1.19.0 2025-08-05, 1.20.1 2026-05-06, 1.21.0 2026-06-24, 1.22 2026-08-03, "
    "1.22.0 2026-08-03"
)
_GDRCOPY = (
    "2.3 2021-07-27, 2.4 2023-09-18, 2.4.2 2024-10-31, 2.4.4 2024-12-16, 2.5 2025-03-24, 2.5.2 2026-03-11"
)
_LIBFABRIC = (
    "1.12.0 2021-03-08, 1.14.0 2021-11-19, 1.16.1 2022-10-07, 1.17.0 2022-12-16, 1.18.0 2023-04-07, "
    "1.18.1 2023-06-30, 1.19.0 2023-09-01, 1.20.0 2023-11-17, 1.21.1 2024-07-24, 2.0.0 2024-12-13, "
    "2.1.0 2025-03-14, 2.2.0 2025-06-27, 2.3.0 2025-09-13, 2.4.0 2025-12-14, 2.5.0 2026-03-19, "
    "2.5.1 2026-04-13, 2.6.0 2026-06-20"
)
_MPICH = (
    "3.4 2021-01-05, 4.2.3 2024-10-02, 4.3.0 2025-02-03, 4.3.1 2025-06-20, 4.3.2 2025-10-06, "
    "5.0.0 2026-02-04, 5.0.1 2026-04-10"
)
_OPENMPI = "3.1.0 2018-05-07, 4.1.4 2022-05-26, 4.1.7 2024-10-31, 5.0.6 2024-11-15"

RELEASED = {
    component: {version: date.fromisoformat(day) for version, day in map(str.split, text.split(","))}
    for component, text in {
        "nccl": _NCCL,
        "ucx": _UCX,
        "gdrcopy": _GDRCOPY,
        "libfabric": _LIBFABRIC,
        "mpich": _MPICH,
        "openmpi": _OPENMPI,
    }.items()
}
"""By component and version."""
