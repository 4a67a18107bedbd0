"""The relation of a known issue to a node, a log or a job: decided here only."""

from __future__ import annotations

from gpuipc_doctor.report_types import Relation
from gpuipc_doctor.versions import Verdict

_RELATIONS = {
    (Verdict.BAD, True): Relation.CONFIRMED,
    (Verdict.BAD, False): Relation.LATENT,
    (Verdict.FINE, True): Relation.NEW,
    (Verdict.UNKNOWN, True): Relation.UNKNOWN,
}


def relation(expected: Verdict, is_shown: bool) -> Relation | None:
    """The relation, or None for an issue that does not concern the node.

    ``expected``: the verdict on versions and conditions (`affected.judge`). ``is_shown``: whether a
    finding, a text or a stack shows the issue.
    """
    return _RELATIONS.get((expected, is_shown))
