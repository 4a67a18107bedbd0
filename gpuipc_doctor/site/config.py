"""A site's config, merged from the `layers` of its files.

``site-configs/generic.yaml`` documents every key with its default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from gpuipc_doctor.files.yamlfile import BadFile, Document, Key
from gpuipc_doctor.model import Device, Json, MemoryShare, Status, Subject, Tier
from gpuipc_doctor.site import hosts, policy
from gpuipc_doctor.site.config_mistakes import SUBJECTS, accepted_versions, examine
from gpuipc_doctor.site.layers import Find, Layers
from gpuipc_doctor.site.policy import JobConfig, PrologConfig, SweepConfig
from gpuipc_doctor.versions import Range

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
    sweep: SweepConfig = field(default_factory=SweepConfig)
    memory: MemoryShare = field(default_factory=MemoryShare)
    job: JobConfig = field(default_factory=JobConfig)
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

    def entries(section: str) -> Iterator[tuple[str, tuple[Json, str]]]:
        for name, said in data.get(section, {}).items():
            yield name, (said, found.where(section, name))

    return SiteConfig(
        hosts=tuple(hosts.listed(data.get("hosts"))),
        hosts_where=found.where("hosts") if "hosts" in data else "",
        checks_dirs=tuple(map(Path, data.get("checks_dirs", ()))),
        known_issues_dirs=tuple(map(Path, data.get("known_issues_dirs", ()))),
        disabled={name: _waiver(*said) for name, said in entries("disabled")},
        suppressed={name: _waiver(*said) for name, said in entries("suppressed")},
        tier=Tier[data.get("tier", "acceptance").upper()],
        deadline_s=None if deadline is None else float(deadline),
        start_up_s=float(data.get("start_up_s", SiteConfig().start_up_s)),
        budget_s={**_BUDGET_S, **budgets},
        options=data.get("options", {}),
        versions={name: _version(name, *said) for name, said in entries("versions")},
        settings={name: _setting(*said) for name, said in entries("settings")},
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
        sweep=SweepConfig(**data.get("sweep", {})),
        memory=MemoryShare(**data.get("memory", {})),
        job=JobConfig(**data.get("job", {})),
        fleet=data.get("fleet", {}),
        topology=data.get("topology", {}),
        files=found,
    )


def _waiver(said: Json, where: str) -> Waiver:
    if isinstance(said, str):
        return Waiver(said, where)
    return Waiver(said["reason"], where, date.fromisoformat(said["until"]))


def _version(component: str, said: Json, where: str) -> ExpectedVersion:
    found = accepted_versions(component, said)
    if isinstance(said, str):
        return ExpectedVersion(found, where)
    return ExpectedVersion(found, where, said.get("why", ""), _otherwise(said, Status.WARN))


def _setting(said: Json, where: str) -> ExpectedSetting:
    """The config's accepted values: one, a list of them, or either with ``else`` and ``why``."""
    more = said if isinstance(said, dict) else {}
    accepted = more.get("is", said)
    values = tuple(map(str, accepted if isinstance(accepted, list) else [accepted]))
    return ExpectedSetting(values, where, more.get("why", ""), _otherwise(more, Status.WARN))


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
    library, least = (data.get("collectives", {}).get(key) for key in ("library", "least_gb_per_s"))
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
        collectives=SourcedValue(library, where("collectives", "library")) if library else None,
        least_bandwidth=ExpectedValues(least, where("collectives", "least_gb_per_s"))
        if least
        else ExpectedValues(),
    )


def of_nodes(found: Layers) -> Iterator[NodeConfig]:
    """A config's settings for all nodes, and for each node type."""
    yield (every := _node(found))
    yield from (_node(found, "node_types", name).over(every) for name in found.data.get("node_types", {}))
