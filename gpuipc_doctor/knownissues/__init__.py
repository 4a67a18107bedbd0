"""Known issues and messages: affected versions, texts, workarounds and sources."""

from gpuipc_doctor.knownissues.database import (
    SHIPPED,
    edition,
    files,
    known_texts,
    lint,
    load,
    load_messages,
)
from gpuipc_doctor.knownissues.entry import KnownIssue, Suppression, Workaround
from gpuipc_doctor.knownissues.joining import Harm, harms, join, match_versions
from gpuipc_doctor.knownissues.message import Message, Severity
from gpuipc_doctor.knownissues.parse import SCHEMA
from gpuipc_doctor.knownissues.relation import relation
from gpuipc_doctor.knownissues.releases import newer_than_read
from gpuipc_doctor.knownissues.signatures import Confidence, Signature
