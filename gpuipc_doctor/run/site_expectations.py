"""What a site expects of its nodes, held against what was found on this one."""

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
    """What to say of the GPUs that the drivers list; those that the environment hides are not missed."""
    fitting = [device for device in devices if expected.are(device.name)]
    values = {"expected": expected.count, "model": expected.model or "GPU", "where": expected.where}
    if len(fitting) < expected.count and not hides_gpus(environment):
        yield Finding.fail(
            "fewer-than-expected",
            "{found} of the {expected} × {model} that {where} expects",
            *_counted(devices),
            remedy="see the kernel's log (dmesg) for lost GPUs; if the node has no more, correct that line",
            found=len(fitting),
            **values,
        )
    elif expected.count and len(fitting) > expected.count:
        yield Finding.warn(
            "more-than-expected",
            "{found} × {model}, and {where} expects {expected}",
            remedy="correct that line",
            found=len(fitting),
            **values,
        )
    others = [device for device in devices if not expected.are(device.name)]
    if others and not (expected.count and len(fitting) < expected.count):
        yield Finding.warn(
            "other-model",
            "found {others}; {where} expects {model}",
            remedy="correct that line, or see who changed the hardware",
            others=_counted(others),
            **values,
        )


def of_types(types: Sequence[NodeType], node: NodeGpus, environment: Mapping[str, str]) -> Iterator[Finding]:
    """That more than one of a site's node types fits: GPUs may be lost that are not known of."""
    if len(types) < 2 or not types[0].gpus.where or hides_gpus(environment):
        return
    lost = [max(kind.gpus.count - node.listed(kind.gpus), 0) for kind in types]
    fitting = [
        f"{kind.name} with {number} lost" if number else kind.name
        for kind, number in zip(types, lost, strict=True)
    ]
    yield Finding.warn(
        "node-type-unclear",
        "{gpus} can be more than one node type of {where}: {types}",
        remedy="name the nodes of each type with `hosts:`",
        gpus=_counted(node.devices) or "no GPU",
        types=", or ".join(fitting),
        where=types[0].gpus.where,
    )


def of_other_gpus(intel: Sequence[str]) -> Iterator[Finding]:
    """That the node's GPUs are of a vendor that is not supported."""
    if intel:
        yield Finding.skip(
            "not-supported",
            "{gpus} found: not supported, only NVIDIA and AMD GPUs are",
            gpus=[f"{count} × Intel GPU ({id_})" for id_, count in Counter(intel).items()],
        )


def check_backend_gpus(
    backend: str, expected: ExpectedGpus, devices: Sequence[Device], environment: Mapping[str, str]
) -> Iterator[Finding]:
    """As `of_gpus` for one backend: GPUs missing from its list may belong to the other vendor."""
    if not devices:  # of which the driver has told
        return
    for finding in of_gpus(expected, devices, environment):
        if finding.key != "fewer-than-expected":
            continue
        if expected.model and finding.values["found"]:
            yield finding
        else:
            yield Finding.skip(
                "not-counted",
                "{where} expects {expected} × {model}, and --backend {backend} asks no other",
                remedy="leave --backend out to have them counted",
                backend=backend,
                expected=expected.count,
                model=expected.model or "GPU",
                where=expected.where,
            )


def _counted(devices: Iterable[Device]) -> list[str]:
    return [f"{count} × {name}" for name, count in Counter(device.name for device in devices).items()]


def of_versions(site: SiteConfig, facts: Iterable[Fact], *, surveyed: bool) -> Iterator[Unexpected]:
    """The versions that are otherwise than a site expects.

    ``surveyed``: whether drivers and libraries were asked; if not, what is not in files is not missed.
    """
    facts = tuple(facts)
    for name, expected in site.versions.items():
        for fact in facts:
            if fact.name == name and fact.value is not None:
                verdict = expected.range.judge(fact.value)
                if verdict is not Verdict.BAD:  # the range is of those that are right
                    doubt = ", of which it cannot be told" if verdict is Verdict.UNKNOWN else ""
                    found = f"{fact.value} ({fact.source}){doubt}"
                    yield Unexpected(name, found, str(expected.range), expected.where, expected.why)
        if surveyed and all(fact.value is None for fact in facts if fact.name == name):
            yield Unexpected(name, "not here", str(expected.range), expected.where, expected.why)
