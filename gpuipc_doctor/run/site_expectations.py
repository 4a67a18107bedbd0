"""Compare a site config's expectations with this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuipc_doctor.model import Device, Fact, Finding, Unexpected
from gpuipc_doctor.site.config import ExpectedGpus, NodeGpus, NodeType, SiteConfig
from gpuipc_doctor.supervise.start import hides_gpus
from gpuipc_doctor.versions import Verdict


def of_gpus(
    expected: ExpectedGpus, devices: Sequence[Device], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings on the GPUs that the drivers list; GPUs that the environment hides do not count as missing."""
    fitting = [device for device in devices if expected.are(device.name)]
    values = {"expected": expected.count, "model": expected.model or "GPU", "where": expected.where}
    if len(fitting) < expected.count and not hides_gpus(environment):
        yield Finding.fail(
            "fewer-than-expected",
            "found {found} × {model}; {where} expects {expected}",
            *_counted(devices),
            remedy="check dmesg for lost GPUs; if the node never had more, correct the site config",
            found=len(fitting),
            **values,
        )
    elif expected.count and len(fitting) > expected.count:
        yield Finding.warn(
            "more-than-expected",
            "found {found} × {model}; {where} expects {expected}",
            remedy=f"correct {expected.where}",
            found=len(fitting),
            **values,
        )
    others = [device for device in devices if not expected.are(device.name)]
    if others and not (expected.count and len(fitting) < expected.count):
        yield Finding.warn(
            "other-model",
            "found {others}; {where} expects {model}",
            remedy=f"correct {expected.where}, or check whether the hardware was changed",
            others=_counted(others),
            **values,
        )


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


def of_other_gpus(intel: Sequence[str]) -> Iterator[Finding]:
    """The SKIP if the node's GPUs are from an unsupported vendor."""
    if intel:
        yield Finding.skip(
            "not-supported",
            "{gpus} found: only NVIDIA and AMD GPUs are supported",
            gpus=[f"{count} × Intel GPU ({id_})" for id_, count in Counter(intel).items()],
        )


def check_backend_gpus(
    backend: str, expected: ExpectedGpus, devices: Sequence[Device], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings as in `of_gpus`, for the GPUs of one backend. Missing GPUs may belong to another backend."""
    if not devices:  # the driver's own check reports that
        return
    for finding in of_gpus(expected, devices, environment):
        if finding.key != "fewer-than-expected":
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
                    doubt = ", which cannot be compared" if verdict is Verdict.UNKNOWN else ""
                    found = f"{fact.value} ({fact.source}){doubt}"
                    yield Unexpected(name, found, str(expected.range), expected.where, expected.why)
        if surveyed and all(fact.value is None for fact in facts if fact.name == name):
            yield Unexpected(name, "not here", str(expected.range), expected.where, expected.why)
