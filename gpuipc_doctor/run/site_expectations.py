"""Compare a site config's expectations with this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuipc_doctor.api.equal_gpus import CHECK_LINKS, LINKS, Traits
from gpuipc_doctor.files.node_files import Tree
from gpuipc_doctor.model import Device, Fact, Finding, Json, Status, Subject, Tier, Unexpected
from gpuipc_doctor.node import fabric_devices
from gpuipc_doctor.node.gpus import JobGpus
from gpuipc_doctor.report_types import CheckInfo, Result
from gpuipc_doctor.run.skips import PeerRefusal
from gpuipc_doctor.site.config import ExpectedGpus, ExpectedValues, NodeGpus, NodeType, SiteConfig
from gpuipc_doctor.supervise.start import hides_gpus
from gpuipc_doctor.versions import Verdict


def of_gpus(
    expected: ExpectedGpus, devices: Sequence[Device], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings on the GPUs that the drivers list; GPUs that the environment hides do not count as missing."""
    fitting = [device for device in devices if expected.are(device.name)]
    others = [device for device in devices if not expected.are(device.name)]
    values = {"expected": expected.count, "model": expected.model or "GPU", "where": expected.where}
    if not fitting and others and len(others) >= expected.count > 0:  # none is lost
        yield Finding.of(
            expected.otherwise or Status.FAIL,
            "other-model",
            "found {others} and no {model}; {where} expects {expected} × {model}",
            remedy=f"correct {expected.where}, or check whether the hardware was changed",
            others=_counted(others),
            found=0,
            **values,
        )
        return
    if len(fitting) < expected.count and not hides_gpus(environment):
        yield Finding.of(
            expected.otherwise or Status.FAIL,
            "fewer-than-expected",
            "found {found} × {model}; {where} expects {expected}",
            *_counted(devices),
            remedy="check dmesg for lost GPUs; if the node never had more, correct the site config",
            found=len(fitting),
            **values,
        )
    elif expected.count and len(fitting) > expected.count:
        yield Finding.of(
            expected.otherwise or Status.WARN,
            "more-than-expected",
            "found {found} × {model}; {where} expects {expected}",
            remedy=f"correct {expected.where}",
            found=len(fitting),
            **values,
        )
    if others and not (expected.count and len(fitting) < expected.count):
        yield Finding.of(
            expected.otherwise or Status.WARN,
            "other-model",
            "found {others}; {where} expects {model}",
            remedy=f"correct {expected.where}, or check whether the hardware was changed",
            others=_counted(others),
            **values,
        )


def of_links(
    expected: ExpectedGpus,
    devices: Sequence[Device],
    traits: Traits,
    environment: Mapping[str, str],
    refusal: PeerRefusal | None = None,
) -> Iterator[Finding]:
    """Findings on peer access and NVLinks between the GPUs of the expected model.

    ``refusal``: by which the driver lacks peer access.
    """
    why = (refusal.why, *refusal.shown_by) if refusal else ()
    remedy = f"{refusal.cure}; or correct {expected.where}" if refusal else ""
    fitting = [device for device in devices if expected.are(device.name)]
    status = expected.otherwise or Status.FAIL
    labels = {device.label for device in fitting}
    lacking = {device.label: labels - device.peers - {device.label} for device in fitting}
    if expected.peers is None and any(lacking.values()):
        yield Finding.of(
            status,
            "no-peer-access",
            "{missing} of {pairs} pairs of GPUs have no peer access; {where} expects it between all",
            *(f"{label} to {', '.join(sorted(others))}" for label, others in lacking.items() if others),
            *why,
            remedy=remedy or f"{CHECK_LINKS}; in a container, check /dev/shm and which GPUs it was given",
            missing=sum(map(len, lacking.values())),
            pairs=len(labels) * (len(labels) - 1),
            where=expected.where,
        )
    elif expected.peers and not hides_gpus(environment):
        few = [label for label, others in lacking.items() if len(labels) - 1 - len(others) < expected.peers]
        if few:
            yield Finding.of(
                status,
                "no-peer-access",
                "{devices} have peer access to fewer than {peers} GPUs, which {where} expects",
                *why,
                remedy=remedy or CHECK_LINKS,
                devices=few,
                peers=expected.peers,
                where=expected.where,
            )
    if expected.nvlinks:
        yield from _of_nvlinks(expected, fitting, traits, status)


def of_job(
    expected: ExpectedGpus, job: JobGpus, devices: Sequence[Device], traits: Traits
) -> Iterator[Finding]:
    """Findings on the GPUs before a job; ``devices``: the job's, ``traits``: if their driver was asked.

    Too few are reported by the prolog itself (`SiteConfig.gpus_before_job`), unless they are only a WARN.
    """
    are_named = all(gpu.name for gpu in job.listed)
    listed, of_listed = (job.of_node, expected) if are_named else (devices, replace(expected, count=0))
    for finding in of_gpus(of_listed, listed, {}):
        if finding.key != "fewer-than-expected" or finding.status is Status.WARN:
            yield finding
    others, peers = len(job.listed) - 1, expected.peers
    if peers is not None and peers >= others:
        peers = None
    elif peers and len(devices) <= others:
        peers = 0  # a job's GPUs may be those that do not reach each other
    yield from of_links(replace(expected, peers=peers), devices, traits, {})


def _of_nvlinks(
    expected: ExpectedGpus, devices: Sequence[Device], traits: Traits, status: Status
) -> Iterator[Finding]:
    links = {device.label: traits.get(device.label, {}).get(LINKS) for device in devices}
    values = {"expected": expected.nvlinks, "where": expected.where}
    few = {label: number for label, number in links.items() if number and int(number) < expected.nvlinks}
    if few:
        yield Finding.of(
            status,
            "fewer-nvlinks",
            "{found}; {where} expects {expected} active NVLinks of each GPU",
            remedy=CHECK_LINKS,
            found=[f"{label} has {number}" for label, number in few.items()],
            **values,
        )
    if unknown := [label for label, number in links.items() if not number]:
        yield Finding.of(
            _untold(status),
            "nvlinks-unknown",
            "cannot count the NVLinks of {devices}; {where} expects {expected}",
            remedy="see `nvidia-smi nvlink -s`; if these GPUs have none, remove `nvlinks` there",
            devices=unknown,
            **values,
        )


def _untold(status: Status) -> Status:
    """The status if it is unknown whether an expectation is met."""
    return Status.ERROR if status is Status.FAIL else status


def of_types(types: Sequence[NodeType], node: NodeGpus, environment: Mapping[str, str]) -> Iterator[Finding]:
    """The WARN if several of a site's node types match: GPUs may be missing unnoticed."""
    if len(types) < 2 or not types[0].gpus.where or hides_gpus(environment):
        return
    lost = [max(kind.gpus.count - node.listed(kind.gpus), 0) for kind in types]
    fitting = [
        f"{kind.name} with {number} missing" if number else kind.name
        for kind, number in zip(types, lost, strict=True)
    ]
    yield Finding.warn(
        "node-type-unclear",
        "{gpus} matches more than one node type of {where}: {types}",
        remedy="name the nodes of each type with `hosts:`",
        gpus=_counted(node.devices) or "no GPU",
        types=", or ".join(fitting),
        where=types[0].gpus.where,
    )


def check_backend_gpus(
    backend: str, expected: ExpectedGpus, devices: Sequence[Device], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings as in `of_gpus`, for the GPUs of one backend. Missing GPUs may belong to another backend."""
    if not devices:  # the driver's own check reports that
        return
    for finding in of_gpus(expected, devices, environment):
        if finding.key == "more-than-expected" or "found" not in finding.values:
            continue
        if expected.model and finding.values["found"]:
            yield finding
        else:
            yield Finding.skip(
                "not-counted",
                "only {backend} GPUs were counted (--backend); {where} expects {expected} × {model}",
                remedy="omit --backend to count all GPUs",
                backend=backend,
                expected=expected.count,
                model=expected.model or "GPU",
                where=expected.where,
            )


def _counted(devices: Iterable[Device]) -> list[str]:
    return [f"{count} × {name}" for name, count in Counter(device.name for device in devices).items()]


def of_versions(site: SiteConfig, facts: Iterable[Fact], *, surveyed: bool) -> Iterator[Unexpected]:
    """Versions that differ from the site config's.

    ``surveyed``: whether drivers and libraries were queried; if not, only versions from files are compared.
    """
    facts = tuple(facts)
    for name, expected in site.versions.items():
        for fact in facts:
            if fact.name == name and fact.value is not None:
                verdict = expected.range.judge(fact.value)
                if verdict is not Verdict.BAD:  # the range of accepted versions
                    unclear = verdict is Verdict.UNKNOWN
                    doubt = ", which cannot be compared" if unclear else ""
                    found = f"{fact.value} ({fact.source}){doubt}"
                    status = _untold(expected.otherwise) if unclear else expected.otherwise
                    yield Unexpected(name, found, str(expected.range), expected.where, expected.why, status)
        if surveyed and all(fact.value is None for fact in facts if fact.name == name):
            wanted = str(expected.range)
            yield Unexpected(name, "not here", wanted, expected.where, expected.why, expected.otherwise)


def of_node(
    site: SiteConfig, facts: Iterable[Fact], root: str, seen: Mapping[str, Json]
) -> Iterator[Finding]:
    """Findings on settings, kernel modules, adapters, shared memory and limits that differ.

    ``seen``: what `node_state.look` read of this process's limits and shared memory.
    """
    yield from _of_settings(site, {fact.name: fact for fact in facts})
    yield from _of_modules(site.kernel_modules, Tree(Path(root)))
    yield from _of_adapters(site.node.adapters, Path(root))
    yield from _of_limits(site, seen)


def _of_settings(site: SiteConfig, facts: Mapping[str, Fact]) -> Iterator[Finding]:
    for name, expected in site.settings.items():
        fact = facts.get(name)
        value = fact.value if fact else None
        told = {"name": name, "wanted": " or ".join(expected.accepted), "where": expected.where}
        why = [expected.why] if expected.why else []
        remedy = f"set it so, or correct {expected.where}"
        if value is None:
            yield Finding.of(
                _untold(expected.otherwise),
                "setting-unknown",
                "{name} is unknown; {where} expects {wanted}",
                *why,
                *([fact.source] if fact else []),
                remedy=remedy,
                **told,
            )
        elif value.casefold() not in map(str.casefold, expected.accepted):
            says = "{name} is {found}; {where} expects {wanted}"
            yield Finding.of(
                expected.otherwise, "unlike-the-site", says, *why, remedy=remedy, found=value, **told
            )


def _of_modules(expected: ExpectedValues, tree: Tree) -> Iterator[Finding]:
    for name, wanted in expected.values.items():
        found = "loaded" if next(tree.glob(f"/sys/module/{name.replace('-', '_')}"), None) else "absent"
        if found != wanted:
            yield Finding.of(
                expected.otherwise,
                "module-unlike-the-site",
                "kernel module {name} is {found}; {where} expects it {wanted}",
                remedy=f"load or unload it with modprobe, or correct {expected.where}",
                name=name,
                found=found,
                wanted=wanted,
                where=expected.where,
            )


def _of_adapters(expected: ExpectedValues, root: Path) -> Iterator[Finding]:
    here, active = fabric_devices.adapters(root), fabric_devices.active(root)
    for fabric, wanted in expected.values.items():
        usable = active[fabric]
        if len(usable) < wanted:
            yield Finding.of(
                expected.otherwise,
                "fewer-adapters",
                "found {found} {fabric} adapters with an active port; {where} expects {wanted}",
                *(f"{name}: {'active' if name in usable else 'no active port'}" for name in here[fabric]),
                remedy="check lspci, dmesg and the cables, and the port on the switch",
                found=len(usable),
                fabric=fabric,
                wanted=wanted,
                where=expected.where,
            )


_LIMITS = {
    "locked_memory_mib": ("locked memory", 20, "ulimit -l"),
    "address_space_mib": ("address space", 20, "ulimit -v"),
    "open_files": ("open files", 0, "ulimit -n"),
    "processes": ("processes", 0, "ulimit -u"),
}
"""Key of the config → name in `process_limits.started_with`, bits of its unit, how a shell names it."""


def _of_limits(site: SiteConfig, seen: Mapping[str, Json]) -> Iterator[Finding]:
    if shared := site.shared_memory.values.get("free_gib"):
        free = (seen.get("shared memory") or {}).get("free")
        values = {"free": free, "wanted": shared, "where": site.shared_memory.where}
        remedy = "remove old files in /dev/shm, or enlarge it; in a container, --shm-size"
        if free is None:
            says = "free shared memory is unknown; {where} expects {wanted} GiB"
            status = _untold(site.shared_memory.otherwise)
            yield Finding.of(status, "shared-memory-unknown", says, remedy=remedy, **values)
        elif free < shared * 2**30:
            says = "shared memory has {free:mib} free; {where} expects {wanted} GiB"
            yield Finding.of(
                site.shared_memory.otherwise, "little-shared-memory", says, remedy=remedy, **values
            )
    limits = seen.get("limits") or {}
    for key, wanted in site.limits.values.items():
        name, bits, command = _LIMITS[key]
        told = {"limit": name, "wanted": wanted, "where": site.limits.where}
        if name not in limits:
            says = "the limit of {limit} is unknown; {where} expects {wanted}"
            yield Finding.of(_untold(site.limits.otherwise), "limit-unknown", says, **told)
            continue
        here = None if limits[name] is None else limits[name] >> bits
        if here is not None and (wanted == "unlimited" or here < wanted):
            yield Finding.of(
                site.limits.otherwise,
                "low-limit",
                "{limit} is limited to {found}{unit} ({command}); {where} expects {wanted}",
                remedy=f"`{command} {wanted}`; under Slurm, set the limit in slurmd's unit",
                found=here,
                unit=" MiB" if bits else "",
                command=command,
                **told,
            )


def of_subjects(
    required: Mapping[Subject, str], checks: Iterable[CheckInfo], results: Iterable[Result], tier: Tier
) -> Iterator[tuple[CheckInfo, Result]]:
    """The ERROR for each required subject that no check tested. ``required``: subject → who requires it."""
    from gpuipc_doctor.report.acceptance import untested as untested_of  # not needed by the prolog

    untested = untested_of(checks, results) if required else {}
    for subject, where in required.items():
        if subject in untested:
            finding = Finding.error(
                "not-tested",
                "not tested, but {where} requires it: {reason}",
                remedy=f"make it testable here, or remove {subject.value} at {where}",
                where=where,
                reason=untested[subject],
            )
            info = CheckInfo(subject.value, f"{subject.title}, which {where} requires", tier)
            yield info, Result(subject.value, finding)


def of_required(
    site: SiteConfig, announced: Collection[str], known: Mapping[str, Tier], tier: Tier
) -> Iterator[tuple[CheckInfo, Result]]:
    """The ERROR for each required check that this whole run did not include.

    ``known``: id → tier of each check that exists.
    """
    for check, where in site.required.items():
        if check not in announced:
            needs = known.get(check)
            reason = f"it is part of tier {needs.label}" if needs else "there is no such check"
            remedy = f"add --tier {needs.label}" if needs else f"correct {where}"
            finding = Finding.error(
                "required-not-run",
                "not tested, but required at {where}: {reason}",
                remedy=f"{remedy}; or remove the check at {where}" if needs else remedy,
                where=where,
                reason=reason,
            )
            yield (
                CheckInfo(check, "a check that the site config requires", needs or tier),
                Result(check, finding),
            )
