"""A site's template of the command that starts MPI ranks: what may stand in it, and what it becomes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

KEYS = ("ranks", "nodes", "ranks_per_node", "env")
"""What stands in braces."""


def check(template: str) -> str:
    """What is wrong with a site's launcher template, in words; empty when nothing is."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        return f"not a command line: {error}"
    if not words:
        return "an empty command"
    try:
        template.format(**dict.fromkeys(KEYS, "1"))
    except (KeyError, ValueError, IndexError) as error:
        return f"braces can only hold one of {', '.join(KEYS)}, not {error}"
    if "{ranks}" not in template:
        return "{ranks} is missing, the number of ranks to start"
    if "{env}" in template and "{env}" not in words:
        return "{env} must be a word of its own: it becomes several, env NAME=VALUE …"
    return ""


def words(template: str, env: Mapping[str, str], nodes: int) -> Iterator[str]:
    for word in shlex.split(template):
        if word == "{env}":
            yield from ("env", *(literal(f"{name}={value}") for name, value in env.items()))
        else:
            yield word.format(ranks="{ranks}", nodes=nodes, ranks_per_node="{ranks}" if nodes == 1 else 1)


def literal(text: str) -> str:
    """``text`` where whoever fills in ``{ranks}`` must leave it as it is."""
    return text.replace("{", "{{").replace("}", "}}")
