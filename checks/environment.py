"""Look at the environment variables that decide over GPU IPC: each must do what its setter believes.

Told with them is what of the node decides over how processes share memory: who may take another's
descriptor, and whether fabric handles have a channel. Whether that forbids anything, only the attempt tells
(`ipc-vmm`, `ipc-fabric`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Finding

DECIDE = ("ptrace-scope", "seccomp", "container", "namespaces", "imex-channels", "imex-daemon")
"""Facts of the inventory that decide over sharing, beside the variables."""


class Environment(Check):
    id = "environment"
    title = "variables are known to the versions here"

    def probes(self, ctx: Context) -> Iterable[Finding]:
        for one in ctx.settings:
            if one.effect.is_mistake:
                instead = f"set {one.instead} instead, or unset it" if one.instead else f"unset {one.name}"
                yield Finding.warn(
                    "in-vain",
                    "{name}={value} ({where}) is {effect}: {says_it}",
                    remedy=instead,
                    name=one.name,
                    value=one.value,
                    where=one.where,
                    effect=one.effect.value,
                    says_it=one.says,
                )
        if not any(one.effect.is_mistake for one in ctx.settings):
            said = (f"{one.name}={one.value}: {one.says}" for one in ctx.settings)
            yield Finding.ok(
                "none-in-vain",
                "relevant variables that are set: {count}, no mistakes found",
                *said,
                *decisive(ctx),
                count=len(ctx.settings),
            )


def decisive(ctx: Context) -> Iterable[str]:
    for fact in ctx.inventory:
        if fact.name in DECIDE and fact.value is not None:
            yield f"{fact.name}: {fact.value} ({fact.source})"


CHECK = Environment()
