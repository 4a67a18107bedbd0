"""Known issues: which versions are bad, how that shows, what helps, and who says so."""

from gpuipc_doctor.knownissues.database import SHIPPED, files, lint, load
from gpuipc_doctor.knownissues.entry import KnownIssue, Suppression, Workaround
from gpuipc_doctor.knownissues.joining import join, match_versions
from gpuipc_doctor.knownissues.reading import SCHEMA
from gpuipc_doctor.knownissues.signatures import Confidence, Signature

__all__ = [
    "SCHEMA",
    "SHIPPED",
    "Confidence",
    "KnownIssue",
    "Signature",
    "Suppression",
    "Workaround",
    "files",
    "join",
    "lint",
    "load",
    "match_versions",
]
