"""Check that the environment variables that affect GPU IPC have the intended effect.

Misspelt variables are named, and those that the installed versions do not read, with the variable to set
instead if there is one. The check also lists the node's settings that affect sharing: whether a process may
fetch another process's descriptor, and whether an IMEX channel for fabric handles exists. Only `ipc-vmm` and
`ipc-fabric` show whether sharing works. Another result lists the variables and kernel limits that would help
`gpuipc-doctor job` diagnose a hanging job. A node that differs from the site config's settings, kernel
modules, adapters, limits or free shared memory gets the status that the config states.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Finding

DECIDE = ("ptrace-scope", "seccomp", "container", "namespaces", "imex-channels", "imex-daemon")
"""Inventory facts, other than variables, that affect sharing."""


class Environment(Check):
    id = "environment"
    title = "environment variables for GPU IPC have an effect"
    subject = None

    def probes(self, ctx: Context) -> Iterable[Finding]:
        yield from ctx.unmet
        for setting in ctx.settings:
            if setting.effect.is_mistake:
                instead = (
                    f"set {setting.instead} instead of {setting.name}, or unset {setting.name}"
                    if setting.instead
                    else f"unset {setting.name}"
                )
                yield Finding.warn(
                    "in-vain",
                    "{name}={value} ({where}) is {effect}: {says_it}",
                    remedy=instead,
                    name=setting.name,
                    value=setting.value,
                    where=setting.where,
                    effect=setting.effect.value,
                    says_it=setting.says,
                )
        if not any(setting.effect.is_mistake for setting in ctx.settings):
            said = (f"{setting.name}={setting.value}: {setting.says}" for setting in ctx.settings)
            yield Finding.ok(
                "none-in-vain",
                "relevant variables that are set: {count}, no mistakes found",
                *said,
                *decisive(ctx),
                count=len(ctx.settings),
            )
        if ctx.lacking:
            yield Finding.ok(
                "hang-unarmed",
                "variables that help to diagnose a hang are not set; see `gpuipc-doctor job --arm`",
                *ctx.lacking,
            )


def decisive(ctx: Context) -> Iterable[str]:
    for fact in ctx.inventory:
        if fact.name in DECIDE and fact.value is not None:
            yield f"{fact.name}: {fact.value} ({fact.source})"


CHECK = Environment()
