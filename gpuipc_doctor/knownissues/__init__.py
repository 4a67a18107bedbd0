"""Known issues: affected versions, symptoms, workarounds and sources."""

from gpuipc_doctor.knownissues.database import SHIPPED, edition, files, lint, load
from gpuipc_doctor.knownissues.entry import KnownIssue, Suppression, Workaround, may_concern
from gpuipc_doctor.knownissues.joining import Harm, harms, join, match_versions
from gpuipc_doctor.knownissues.parse import SCHEMA
from gpuipc_doctor.knownissues.signatures import Confidence, Signature
