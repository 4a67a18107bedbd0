"""Look at the environment variables that decide over GPU IPC: each must do what its setter believes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuipc_doctor.api import Check, Context, Finding


class Environment(Check):
    id = "environment"
    title = "variables are known to the versions here"

    def probes(self, ctx: Context) -> Iterable[Finding]:
        for one in ctx.settings:
            if one.effect.is_mistake:
                instead = f"set {one.instead} instead, or unset it" if one.instead else f"unset {one.name}"
                yield Finding.warn(
                    f"{one.name}={one.value} ({one.where}) is {one.effect.value}: {one.says}", remedy=instead
                )
        if not any(one.effect.is_mistake for one in ctx.settings):
            said = (f"{one.name}={one.value}: {one.says}" for one in ctx.settings)
            yield Finding.ok(f"{len(ctx.settings)} variables of interest are set, none in vain", *said)


CHECK = Environment()
