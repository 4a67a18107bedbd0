"""Known issues: which versions are bad, how that shows, what helps, and who says so."""

from gpuipc_doctor.knownissues.database import SHIPPED, files, lint, load
from gpuipc_doctor.knownissues.entry import KnownIssue, Workaround
from gpuipc_doctor.knownissues.joining import join, match_versions

__all__ = ["SHIPPED", "KnownIssue", "Workaround", "files", "join", "lint", "load", "match_versions"]
