"""A site's config, merged from the `layers` of its files.

``site-configs/generic.yaml`` documents every key with its default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from gpuipc_doctor.files import reading
from gpuipc_doctor.files.near_miss import did_you_mean
from gpuipc_doctor.files.trust import untrusted
from gpuipc_doctor.files.yamlfile import BadFile, Document, Key, Mistake, read, violations
from gpuipc_doctor.model import Json, MemoryShare, Status, Subject, Tier
from gpuipc_doctor.site import hosts, launcher, layers, policy
from gpuipc_doctor.site.layers import Find, Layers
from gpuipc_doctor.site.policy import SITE_DIRECTORIES, PrologConfig
from gpuipc_doctor.versions import BEGINNING, ORDERS, Range

if TYPE_CHECKING:
    from gpuipc_doctor.model import Device

_SCHEMA = Path(__file__).with_name("config.schema.json")

OF_FABRIC = ("fabric", "fabric-info", "fabric-small-message")
"""Checks that a site without a fabric (``fabric: none``) skips."""

SUBJECTS = frozenset(subject.value for subject in Subject)
"""Words of ``required`` that are no checks."""

_BUDGET_S = {Tier.PROLOG: policy.BUDGET_S, Tier.ACCEPTANCE: 300.0, Tier.SOAK: 3600.0}


@dataclass(frozen=True, slots=True)
class Waiver:
    """A disabled check or suppressed finding: reason, ``file:line``, last day if any."""

    reason: str
    where: str
    until: date | None = None

    def has_expired(self, today: date) -> bool:
        return self.until is not None and self.until < today


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """A value set by a site, with ``file:line`` and the reason if given."""

    value: str
    where: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class MpiConfig:
    """A site's MPI. A library or launcher that is not stated here is searched for."""

    library: str = ""
    """Path of the MPI library."""
    launcher: str = ""
    """Command that starts ranks, with ``{ranks}`` and, if wanted, ``{nodes} {ranks_per_node} {env}``."""
    where: str = ""
    """``file:line`` of the command."""
    library_where: str = ""

    def over(self, site: MpiConfig) -> MpiConfig:
        """These settings, completed with those of ``site``."""
        library, command = self if self.library else site, self if self.launcher else site
        return MpiConfig(library.library, command.launcher, command.where, library.library_where)


@dataclass(frozen=True, slots=True)
class ExpectedGpus:
    """A node's expected GPUs; empty or 0 means any."""

    model: str = ""
    """Words in the driver's name for the GPU: ``A100``."""
    count: int = 0
    where: str = ""
    capabilities: Mapping[str, Status] = field(default_factory=dict)
    """Capability that the site demands → the status of a check that finds it missing."""
    peers: int | None = 0
    """Least number of other GPUs to which each GPU has peer access; None: all GPUs of this model."""
    nvlinks: int = 0
    """Least number of active NVLinks of each GPU."""
    otherwise: Status | None = None
    """Status of a GPU that differs; None: FAIL for too few, WARN for too many and other models."""

    def are(self, name: str) -> bool:
        """Whether a GPU with this name is of the expected model."""
        return self.model.casefold() in name.casefold()


@dataclass(frozen=True, slots=True)
class ExpectedVersion:
    """Accepted versions of a component."""

    range: Range
    where: str
    why: str = ""
    otherwise: Status = Status.WARN


@dataclass(frozen=True, slots=True)
class ExpectedSetting:
    """Accepted values of an inventory fact that is no version."""

    accepted: tuple[str, ...]
    where: str
    why: str = ""
    otherwise: Status = Status.WARN


@dataclass(frozen=True, slots=True)
class ExpectedValues:
    """A section of expected values by name, and the status of a node that differs."""

    values: Mapping[str, Json] = field(default_factory=dict)
    where: str = ""
    otherwise: Status = Status.WARN


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A site's settings for all nodes or one node type: expected hardware, and how ranks start."""

    gpus: ExpectedGpus = ExpectedGpus()
    fabric: SourcedValue | None = None
    """The nodes' fabric: ``cxi``, ``verbs``, ``efa``, ``opa``, ``tcp`` or ``none``; None if not set."""
    adapters: ExpectedValues = ExpectedValues()
    """Fabric → least number of adapters that the kernel lists with an active port."""
    modules: tuple[SourcedValue, ...] = ()
    """Modules for the ranks, loaded in this order."""
    environment: Mapping[str, SourcedValue] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()
    """Variables that are set for all nodes and that this node type removes."""
    preload: Mapping[str, SourcedValue] = field(default_factory=dict)
    """Backend → library that ranks must load first."""
    mpi: MpiConfig = MpiConfig()
    collectives: SourcedValue | None = None
    """Path of the NCCL or RCCL library of the jobs."""
    least_bandwidth: ExpectedValues = ExpectedValues()
    """The site's own limits for collectives in GB/s: ``bus`` of an all-reduce, ``pair`` of two GPUs."""

    def over(self, site: NodeConfig) -> NodeConfig:
        """These settings, completed with those of ``site``."""
        return NodeConfig(
            gpus=self.gpus if self.gpus.where else site.gpus,
            fabric=self.fabric or site.fabric,
            adapters=self.adapters if self.adapters.where else site.adapters,
            modules=self.modules or site.modules,
            environment={
                name: said
                for name, said in {**site.environment, **self.environment}.items()
                if name not in self.unset
            },
            preload={**site.preload, **self.preload},
            mpi=self.mpi.over(site.mpi),
            collectives=self.collectives or site.collectives,
            least_bandwidth=self.least_bandwidth if self.least_bandwidth.where else site.least_bandwidth,
        )


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A node's GPUs, including those that its driver does not list."""

    devices: Collection[Device] = ()
    """The GPUs as the driver or the kernel lists them."""
    unlisted: Mapping[str, int] = field(default_factory=dict)
    """Backend → number of GPUs on the PCI bus that the driver does not list."""
    by_slurm: Callable[[], int] = lambda: 0
    """Reads the number of GPUs from Slurm's configuration; 0 if not set there."""

    def listed(self, expected: ExpectedGpus) -> int:
        return sum(expected.are(device.name) for device in self.devices)

    def on_bus(self, expected: ExpectedGpus) -> int:
        """Number of GPUs of the expected model on the PCI bus; unlisted GPUs count as that model."""
        backends = {device.backend for device in self.devices if expected.are(device.name)}
        return self.listed(expected) + sum(self.unlisted.get(backend, 0) for backend in backends)


@dataclass(frozen=True, slots=True)
class NodeType:
    """One type of a site's nodes, identified by node names or GPUs."""

    name: str
    hosts: tuple[str, ...]
    config: NodeConfig

    @property
    def gpus(self) -> ExpectedGpus:
        return self.config.gpus

    def fits(self, node: NodeGpus, by_slurm: int) -> bool:
        """Whether a node with these GPUs can be of this type; the number of GPUs does not count."""
        has_gpus = bool(self.gpus.model or self.gpus.count)
        if not node.devices:
            return has_gpus == bool(by_slurm)
        return has_gpus and node.listed(self.gpus) > 0


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """A site's settings; without a file, the defaults. All times are seconds."""

    hosts: tuple[str, ...] = ()
    """Node sets for which the config is meant; empty if not set."""
    hosts_where: str = ""
    """``file:line`` of ``hosts``."""
    checks_dirs: tuple[Path, ...] = ()
    known_issues_dirs: tuple[Path, ...] = ()
    disabled: Mapping[str, Waiver] = field(default_factory=dict)
    """Check id → why it is disabled."""
    suppressed: Mapping[str, Waiver] = field(default_factory=dict)
    """Key of a finding, such as ``ipc-handles.refused`` → why it is suppressed."""
    tier: Tier = Tier.ACCEPTANCE
    deadline_s: float | None = None
    """Seconds for each operation; None: the check's default."""
    start_up_s: float = 60.0
    """Seconds until a worker's first journal line."""
    budget_s: Mapping[Tier, float] = field(default_factory=lambda: dict(_BUDGET_S))
    """Seconds for a whole run of a tier."""
    options: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """Check id → the check's ``Context.options``."""
    versions: Mapping[str, ExpectedVersion] = field(default_factory=dict)
    """Component → accepted versions."""
    settings: Mapping[str, ExpectedSetting] = field(default_factory=dict)
    """Inventory fact that is no version → accepted values."""
    kernel_modules: ExpectedValues = ExpectedValues()
    """Kernel module → ``loaded`` or ``absent``."""
    shared_memory: ExpectedValues = ExpectedValues()
    """``free_gib`` → least GiB that are free in ``/dev/shm``."""
    limits: ExpectedValues = ExpectedValues()
    """Limit of a process → least value, a number or ``unlimited``."""
    required: Mapping[str, str] = field(default_factory=dict)
    """Check that must have run → ``file:line`` of the demand."""
    required_subjects: Mapping[Subject, str] = field(default_factory=dict)
    """Subject that a check must have tested → ``file:line`` of the demand."""
    node: NodeConfig = field(default_factory=NodeConfig)
    """Settings of all nodes; after `of_node`, settings of this node."""
    node_types: tuple[NodeType, ...] = ()
    prolog: PrologConfig = field(default_factory=PrologConfig)
    memory: MemoryShare = field(default_factory=MemoryShare)
    fleet: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Additional options for starting a fleet's nodes, by launcher: ``srun``, ``flux`` or ``ssh``."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """Leaf switch → node set, for `fleet pairs` without Slurm's topology."""
    files: Layers = field(default_factory=Layers, compare=False, repr=False)

    def states_budget(self, tier: Tier) -> bool:
        """Whether a file states the budget of this tier."""
        return tier.label in self.files.data.get("budget_s", {})

    @property
    def expects_nvlinks(self) -> bool:
        """Whether a number of NVLinks is expected of any node."""
        return any(node.gpus.nvlinks for node in (self.node, *(kind.config for kind in self.node_types)))

    @property
    def mpi(self) -> MpiConfig:
        return self.node.mpi

    def of_node(self, host: str, node: NodeGpus) -> SiteConfig:
        """This config for one node, with the settings of the node's type."""
        types = self.types_of(host, node)
        return replace(self, node=types[0].config.over(self.node), node_types=()) if types else self

    @property
    def gpus_before_job(self) -> int:
        """The number of GPUs without which the prolog says that one is missing; 0 if not set."""
        expected = self.node.gpus
        return self.prolog.gpus or (0 if expected.otherwise is Status.WARN else expected.count)

    def types_of(self, host: str, node: NodeGpus) -> Sequence[NodeType]:
        """The node's possible types, sorted by the number of GPUs that the node would then lack.

        A type that names the node is the only one. Otherwise the number of GPUs in Slurm's configuration or
        on the PCI bus decides. If no type has that number of GPUs, each type with at least as many GPUs as
        the driver lists is possible.
        """
        if not self.node_types:
            return []
        named = next((kind for kind in self.node_types if kind.hosts and hosts.hold(kind.hosts, host)), None)
        if named:
            return [named]
        by_slurm = node.by_slurm()
        fitting = [kind for kind in self.node_types if not kind.hosts and kind.fits(node, by_slurm)]
        fitting.sort(key=lambda kind: kind.gpus.count)
        # Without unlisted GPUs, the bus says no more than the driver.
        by_bus = [
            kind for kind in fitting if node.listed(kind.gpus) < node.on_bus(kind.gpus) == kind.gpus.count
        ]
        stated = [kind for kind in fitting if kind.gpus.count == by_slurm > 0] or by_bus
        if stated:
            return stated
        exact = any(kind.gpus.count == node.listed(kind.gpus) > 0 for kind in fitting)
        able = [
            kind
            for kind in fitting
            if kind.gpus.count >= node.listed(kind.gpus) or not (kind.gpus.count or exact)
        ]
        return able or fitting[-1:]


def load(path: Path | None = None, match: Find = lambda: None, known: Iterable[Document] = ()) -> SiteConfig:
    """Read a site config and the files that it extends. Raises `BadFile` with all mistakes in them.

    ``path``: the file of ``--config``; ``match``: see `layers.lineage`; ``known``: files already read,
    without a schema. Directories in a file are relative to it. For root, a file or directory that others can
    write is also a mistake.
    """
    found, mistakes = examine(path, match, known)
    if mistakes:
        raise BadFile(mistakes)
    data = found.data
    budgets = {Tier[name.upper()]: float(seconds) for name, seconds in data.get("budget_s", {}).items()}
    deadline = data.get("deadline_s")
    required = {word: found.where("required", number) for number, word in enumerate(data.get("required", ()))}
    return SiteConfig(
        hosts=tuple(hosts.listed(data.get("hosts"))),
        hosts_where=found.where("hosts") if "hosts" in data else "",
        checks_dirs=tuple(map(Path, data.get("checks_dirs", ()))),
        known_issues_dirs=tuple(map(Path, data.get("known_issues_dirs", ()))),
        disabled=_waivers(found, "disabled"),
        suppressed=_waivers(found, "suppressed"),
        tier=Tier[data.get("tier", "acceptance").upper()],
        deadline_s=None if deadline is None else float(deadline),
        start_up_s=float(data.get("start_up_s", SiteConfig().start_up_s)),
        budget_s={**_BUDGET_S, **budgets},
        options=data.get("options", {}),
        versions={
            name: _version(name, said, found.where("versions", name))
            for name, said in data.get("versions", {}).items()
        },
        settings={
            name: _setting(said, found.where("settings", name))
            for name, said in data.get("settings", {}).items()
        },
        kernel_modules=_values(data, "kernel_modules", found.where),
        shared_memory=_values(data, "shared_memory", found.where),
        limits=_values(data, "limits", found.where),
        required={check: where for check, where in required.items() if check not in SUBJECTS},
        required_subjects={Subject(word): where for word, where in required.items() if word in SUBJECTS},
        node=_node(found),
        node_types=tuple(
            NodeType(name, tuple(hosts.listed(said.get("hosts"))), _node(found, "node_types", name))
            for name, said in data.get("node_types", {}).items()
        ),
        prolog=PrologConfig.read(data.get("prolog", {})),
        memory=MemoryShare(**data.get("memory", {})),
        fleet=data.get("fleet", {}),
        topology=data.get("topology", {}),
        files=found,
    )


def _waivers(found: Layers, section: str) -> dict[str, Waiver]:
    waivers = {}
    for name, said in found.data.get(section, {}).items():
        where = found.where(section, name)
        waivers[name] = (
            Waiver(said, where)
            if isinstance(said, str)
            else Waiver(said["reason"], where, date.fromisoformat(said["until"]))
        )
    return waivers


def _version(component: str, said: Json, where: str) -> ExpectedVersion:
    """The config's expected version: one version, or a range with ``from``, ``to`` or ``before``."""
    if isinstance(said, str):
        return ExpectedVersion(Range(component, said, last_affected=said), where)
    expected = Range(
        component, said.get("from", BEGINNING), fixed=said.get("before", ""), last_affected=said.get("to", "")
    )
    return ExpectedVersion(expected, where, said.get("why", ""), _otherwise(said, Status.WARN))


def _setting(said: Json, where: str) -> ExpectedSetting:
    """The config's accepted values: one, a list of them, or either with ``else`` and ``why``."""
    more = said if isinstance(said, dict) else {}
    accepted = more.get("is", said)
    return ExpectedSetting(
        tuple(map(str, accepted if isinstance(accepted, list) else [accepted])),
        where,
        more.get("why", ""),
        _otherwise(more, Status.WARN),
    )


def _values(
    data: Json, section: str, where: Callable[[str], str], default: Status = Status.WARN
) -> ExpectedValues:
    """A section of values by name with an ``else`` for all of them."""
    said = data.get(section, {})
    values = {name: value for name, value in said.items() if name != "else"}
    return ExpectedValues(values, where(section), _otherwise(said, default)) if values else ExpectedValues()


def _otherwise(said: Mapping[str, Json], default: Status) -> Status:
    """The status that ``else`` states for a node that differs."""
    return Status(said["else"].upper()) if "else" in said else default


def _node(found: Layers, *within: Key) -> NodeConfig:
    """The settings for all nodes, or for the node type at the key path ``within``."""
    data: Json = found.data
    for key in within:
        data = data[key]

    def where(*keys: Key) -> str:
        section, *rest = (*within, *keys)
        return found.where(str(section), *rest)

    gpus, mpi = data.get("gpus", {}), data.get("mpi", {})
    demanded = {
        name: Status(said) if said else Status.FAIL for name, said in gpus.get("capabilities", {}).items()
    }
    return NodeConfig(
        gpus=ExpectedGpus(
            gpus.get("model", ""),
            gpus.get("count", 0),
            where("gpus"),
            demanded,
            peers=None if (peers := gpus.get("peers", 0)) == "all" else peers,
            nvlinks=gpus.get("nvlinks", 0),
            otherwise=_otherwise(gpus, Status.FAIL) if "else" in gpus else None,
        )
        if gpus
        else ExpectedGpus(),
        fabric=SourcedValue(data["fabric"], where("fabric")) if "fabric" in data else None,
        adapters=_values(data, "adapters", where, Status.FAIL),
        modules=tuple(
            SourcedValue(name, where("modules", n)) for n, name in enumerate(data.get("modules", ()))
        ),
        environment={
            name: SourcedValue(said, where("environment", name))
            if isinstance(said, str)
            else SourcedValue(said["value"], where("environment", name), said["why"])
            for name, said in data.get("environment", {}).items()
            if said is not None
        },
        unset=frozenset(name for name, said in data.get("environment", {}).items() if said is None),
        preload={
            backend: SourcedValue(said["library"], where("preload", backend), said["why"])
            for backend, said in data.get("preload", {}).items()
        },
        mpi=MpiConfig(
            **mpi,
            where=where("mpi", "launcher") if "launcher" in mpi else "",
            library_where=where("mpi", "library") if "library" in mpi else "",
        ),
        collectives=SourcedValue(library, where("collectives", "library"))
        if (library := data.get("collectives", {}).get("library"))
        else None,
        least_bandwidth=ExpectedValues(least, where("collectives", "least_gb_per_s"))
        if (least := data.get("collectives", {}).get("least_gb_per_s"))
        else ExpectedValues(),
    )


def of_nodes(found: Layers) -> Iterator[NodeConfig]:
    """A config's settings for all nodes, and for each node type."""
    yield (every := _node(found))
    yield from (_node(found, "node_types", name).over(every) for name in found.data.get("node_types", {}))


# -- mistakes -------------------------------------------------------------------------------------------


def examine(
    path: Path | None = None, match: Find = lambda: None, known: Iterable[Document] = ()
) -> tuple[Layers, list[Mistake]]:
    """The valid part of a site config and of the files that it extends, and all mistakes in them."""
    mistakes: list[Mistake] = []
    documents: list[Document] = []
    by_path = {document.path: document for document in known}

    def examined(file: Path) -> Document:
        document, wrong = _examine(file, by_path.get(file))
        mistakes.extend(wrong)
        if document is None:
            raise BadFile(())
        return document

    try:
        documents.extend(layers.lineage(path, examined, match))
    except BadFile as bad:
        mistakes.extend(bad.mistakes)
    found = Layers(tuple(documents))
    return found, [*mistakes, *_contradictions(found)]


def schema() -> dict[str, Json]:
    """The JSON Schema of a site file."""
    content: dict[str, Json] = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    return content


def _examine(path: Path, known: Document | None) -> tuple[Document | None, list[Mistake]]:
    """The valid part of one file (None if there is none) and all mistakes in it. ``known``: see `load`."""
    if wrong_name := layers.nameless(path):
        return None, [Mistake(path, 0, wrong_name)]
    if os.path.isdir(path):  # noqa: PTH112 - it raises nothing, whoever may not look
        return None, [Mistake(path, 0, reading.DIRECTORY)]
    # A user who can write a shipped file can also write the program that reads it.
    if path.parent != layers.shipped() and (reason := untrusted(path)):
        return None, [Mistake(path, 0, reason)]
    form = schema()
    try:
        document = known if known and not violations(known, form) else read(path, form)
        wrong: tuple[Mistake, ...] = ()
    except BadFile as bad:
        if bad.sound is None:
            return None, list(bad.mistakes)
        document, wrong = bad.sound, bad.mistakes
    in_directories = (mistake for key in SITE_DIRECTORIES for mistake in of_directories(document, key))
    return document, [*wrong, *_mistakes(document), *in_directories]


def unknown_checks(document: Document, check_ids: Collection[str]) -> tuple[Mistake, ...]:
    """Unknown checks in a site config, and wrong settings of known ones."""
    named: list[tuple[tuple[Key, ...], str]] = [
        ((section, name), name.partition(".")[0])
        for section in ("disabled", "options", "suppressed")
        for name in document.written(section)
        if isinstance(name, str)
    ]
    named += [(("prolog", "checks", key), id_) for key, id_ in document.written("prolog", "checks").items()]
    named += [
        (("required", key), id_) for key, id_ in document.written("required").items() if id_ not in SUBJECTS
    ]
    pattern: str = schema()["$defs"]["check"]["pattern"]
    ambiguous = (
        document.mistake(
            f"required: {word!r} is a subject and also the id of a check; rename that check", "required", key
        )
        for key, word in document.written("required").items()
        if word in SUBJECTS and word in check_ids
    )
    return (
        *ambiguous,
        *(
            document.mistake(
                f"{'.'.join(map(str, keys[:-1]))}: no check {id_!r}{did_you_mean(id_, check_ids)}", *keys
            )
            for keys, id_ in named
            if id_ not in check_ids and re.fullmatch(pattern, id_)  # otherwise the schema refuses it
        ),
    )


def bad_options(document: Document, options: Mapping[str, Mapping[str, Json]]) -> list[Mistake]:
    """Options that a check does not have or cannot use. ``options``: JSON Schemas by check and name."""
    known = {
        check: {"additionalProperties": False, "properties": dict(schemas)}
        for check, schemas in options.items()
    }
    return violations(document, {"properties": {"options": {"properties": known}}})


def unknown_keys(document: Document, keys: Mapping[str, Collection[str]]) -> Iterator[Mistake]:
    """Keys of suppressed findings that their checks never report. ``keys``: finding keys by check."""
    for name in document.written("suppressed"):
        check, _, key = str(name).partition(".")
        if check in keys and key not in keys[check]:
            text = f"suppressed: {check} has no finding {key!r}{did_you_mean(key, keys[check])}"
            yield document.mistake(text, "suppressed", name)


def directories(document: Document, key: str) -> tuple[Path, ...]:
    here = document.path.absolute().parent
    return tuple(here / name for name in document.data.get(key, ()))


def _mistakes(document: Document) -> Iterator[Mistake]:
    """Mistakes that a schema cannot describe."""
    data = document.data
    yield from _of_nodes(document, data)
    for name, said in data.get("node_types", {}).items():
        yield from _of_nodes(document, said, "node_types", name)
    for name, said in data.get("versions", {}).items():
        yield from _of_version(document, name, said)
    for section in ("disabled", "suppressed"):
        for name, said in data.get(section, {}).items():
            try:
                if isinstance(said, dict):
                    date.fromisoformat(said["until"])
            except ValueError:
                wrong = f"{section}.{name}: no such date: {said['until']}"
                yield document.mistake(wrong, section, name, "until")


def _of_nodes(document: Document, data: Json, *within: Key) -> Iterator[Mistake]:
    name = "".join(f"{key}." for key in within)
    for wrong in launcher.mistakes(data.get("mpi", {}).get("launcher", "{ranks}")):
        yield document.mistake(f"{name}mpi.launcher: {wrong}", *within, "mpi", "launcher")
    said = data.get("hosts")
    for number, text in enumerate(hosts.listed(said)):
        place: Iterable[Key] = () if isinstance(said, str) else (number,)
        try:
            hosts.expand(text)
        except hosts.BadNodes as bad:
            yield document.mistake(f"{name}hosts: {bad}; see `nodeset --help`", *within, "hosts", *place)


def _of_version(document: Document, name: str, said: Json) -> Iterator[Mistake]:
    if isinstance(said, dict) and "before" in said and "to" in said:
        yield document.mistake(f"versions.{name}: remove either 'before' or 'to'", "versions", name, "to")
    if name not in ORDERS:
        text = f"versions: no component {name!r}{did_you_mean(name, ORDERS)}"
        yield document.mistake(text, "versions", name)
    else:
        for wrong in _version(name, said, "").range.contradictions():
            yield document.mistake(f"versions.{name}: {wrong}", "versions", name)


def _contradictions(found: Layers) -> Iterator[Mistake]:
    """Demands that no node can meet, in the merged content."""
    data = found.data
    for section, within in ((data, ()), *((kind, ("node_types", name)) for name, kind in _types(data))):
        yield from _of_node_contradictions(found, {**data, **section}, within)
    for number, check in enumerate(data.get("required", ())):
        by = ""
        if check in data.get("disabled", {}):
            by = f"is disabled at {found.where('disabled', check)}"
        elif check in OF_FABRIC and data.get("fabric") == "none" and not data.get("node_types"):
            by = f"needs a fabric, and {found.where('fabric')} says that there is none"
        if by:
            yield found.mistake(f"required: {check} {by}; remove one of the two", "required", number)


def _types(data: Json) -> Iterable[tuple[str, Json]]:
    return ((name, kind) for name, kind in data.get("node_types", {}).items() if isinstance(kind, dict))


def _of_node_contradictions(found: Layers, data: Json, within: tuple[str, ...]) -> Iterator[Mistake]:
    def mistake(text: str, *keys: str) -> Mistake:
        path = (*within, *keys) if within and keys[0] in found.data["node_types"][within[1]] else keys
        return found.mistake(f"{'.'.join(path[:-1])}: {text}", *path)

    gpus, fabric = data.get("gpus", {}), data.get("fabric")
    count, peers = gpus.get("count"), gpus.get("peers")
    if isinstance(peers, int) and count and peers >= count:
        yield mistake(f"each of {count} GPUs has at most {count - 1} peers, not {peers}", "gpus", "peers")
    if count == 1 and peers == "all":
        yield mistake("a single GPU has no peers; remove 'peers', or correct 'count'", "gpus", "peers")
    for name in data.get("adapters", {}):
        if name != "else" and fabric in ("none", "tcp") and len(within) == 0:
            text = f"{name} contradicts `fabric: {fabric}` at {found.where('fabric')}; remove one of the two"
            yield mistake(text, "adapters", name)


def of_directories(document: Document, key: str) -> Iterator[Mistake]:
    """Mistakes for directories that cannot be read, or that root must not trust."""
    for number, directory in enumerate(directories(document, key)):
        try:
            files = [path for path in directory.iterdir() if path.suffix in SITE_DIRECTORIES[key]]
        except OSError as error:
            yield document.mistake(f"{key}: {directory}: {error.strerror}", key, number)
            continue
        cached = sorted((directory / "__pycache__").glob("*"))  # Python prefers these to the source files
        for path in (directory, *sorted(files), directory / "__pycache__", *cached):
            if reason := untrusted(path):
                yield document.mistake(f"{key}: {path} {reason}", key, number)
