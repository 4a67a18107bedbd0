"""A site's command template for starting MPI ranks: placeholders and their values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

KEYS = ("ranks", "nodes", "ranks_per_node", "env")


def mistakes(template: str) -> Iterator[str]:
    """Mistakes in a site's launcher template, in words."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        yield f"not a command line: {error}"
        return
    if not words:
        yield "an empty command"
        return
    try:
        template.format(**dict.fromkeys(KEYS, "1"))
    except (KeyError, ValueError, IndexError) as error:
        yield f"braces can only hold one of {', '.join(KEYS)}, not {error}"
        return
    if "{ranks}" not in template:
        yield "{ranks} is missing: it stands for the number of ranks to start"
    if "{env}" in template and "{env}" not in words:
        yield "{env} must be a separate word: it expands to env NAME=VALUE …"


def words(template: str, env: Mapping[str, str], nodes: int) -> Iterator[str]:
    for word in shlex.split(template):
        if word == "{env}":
            yield from ("env", *(literal(f"{name}={value}") for name, value in env.items()))
        else:
            yield word.format(ranks="{ranks}", nodes=nodes, ranks_per_node="{ranks}" if nodes == 1 else 1)


def literal(text: str) -> str:
    """``text`` escaped so that filling in placeholders leaves it unchanged."""
    return text.replace("{", "{{").replace("}", "}}")
