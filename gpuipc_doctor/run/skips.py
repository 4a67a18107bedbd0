"""Why a check, a device or a probe is left out of a plan: the SKIPs that stand in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuipc_doctor import surveys
from gpuipc_doctor.api import Check, Context
from gpuipc_doctor.api.allocator import installed
from gpuipc_doctor.api.capabilities import instead_of, words_of_lack
from gpuipc_doctor.knownissues import Harm
from gpuipc_doctor.model import Device, Evidence, EvidenceKind, Fact, Finding
from gpuipc_doctor.probe_types import FabricStack, Probe
from gpuipc_doctor.site.config import Waiver

UNCHECKED = "CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK"
REFUSED = "refused by the check of IOMMU and ACS"
UNSAFE = "granted only without the check of IOMMU and ACS"
"""Values of the fact ``peer-access``: the driver would grant it with that variable, or refuse it without."""

HIDDEN_PEERS = "cray-mpich-gpu-binding-hides-peers"
"""Id of the known issue of launchers that show each rank only one GPU."""


def disabled(waiver: Waiver) -> Finding:
    """The SKIP of a check that the site config disables."""
    says = "disabled at {where}: {reason}"
    return Finding.skip("disabled", says, where=waiver.where, reason=waiver.reason)


def disabling_ended(waiver: Waiver) -> Finding:
    """The WARN that a check's disabling has expired."""
    return Finding.warn(
        "disabling-ended",
        "the check was disabled at {where} until {until}, and now runs again",
        waiver.reason,
        remedy=f"remove the entry at {waiver.where}, or extend its date",
        until=str(waiver.until),
        where=waiver.where,
        reason=waiver.reason,
    )


def only_control(check: Check, of: str) -> Finding:
    """The SKIP of a control without GPU, which was not requested by name."""
    says = "this check is only a control for {of}, which needs a GPU"
    remedy = f"to run the check alone, name it: `gpuipc-doctor check {check.id}`"
    return Finding.skip("no-subject", says, remedy=remedy, of=of)


def no_fabric(fabric: FabricStack) -> Finding | None:
    """The SKIP if the site config states that there is no fabric; it names the adapters found."""
    if fabric.stated is None or fabric.stated.name != "none":
        return None
    return Finding.skip(
        "no-fabric-here",
        "{where} says this node has no fabric",
        *(f"the kernel lists {', '.join(names)} ({of})" for of, names in fabric.adapters.items() if names),
        where=fabric.stated.where,
    )


def missing_requirement(check: Check, device: Device, context: Context) -> Finding | None:
    """The SKIP for a device that the check cannot test, else None."""
    mpi = context.mpi
    if lacking := check.requires - device.capabilities:
        return _incapable(device, sorted(lacking), context.inventory)
    if check.needs_mpi and mpi is None:
        return Finding.skip(
            "no-mpi",
            "no MPI to test",
            remedy=f"see the result of {surveys.MPI_LIBRARY}, or name an MPI with --mpi-lib",
        )
    if check.needs_mpi and mpi and not mpi.starts:
        remedy = f"see the result of {surveys.RANKS}"
        return Finding.skip("no-ranks", "ranks of this MPI could not be started", remedy=remedy)
    if check.needs_mpi and mpi and device.backend not in mpi.takes:
        says = "this MPI accepts no device pointers: {why}"
        return Finding.skip("mpi-takes-no-device-pointers", says, remedy=mpi.remedy, why=mpi.why_not)
    if check.needs_allocators and not installed(context.inventory, device.backend):
        if context.simulated:
            return Finding.skip(
                "no-allocator", "no CuPy or PyTorch on a simulated node: they need a real GPU"
            )
        return Finding.skip(
            "no-allocator",
            "no CuPy or PyTorch found for this vendor's GPUs",
            remedy=device.vendor.allocators_from,
        )
    return None


def _incapable(device: Device, lacking: list[str], inventory: Sequence[Fact]) -> Finding:
    """The SKIP for a device that cannot do what a check needs."""
    mode = next((fact.value for fact in inventory if fact.name == "compute-mode" and fact.value), "")
    return Finding.skip(
        "incapable",
        "{device} {lack}",
        remedy=instead_of((device,), lacking),
        device=device.label,
        lack=words_of_lack(device.vendor, lacking, mode),
        lacking=lacking,
    )


def redirection(inventory: Sequence[Fact]) -> tuple[str, str] | None:
    """(what redirects traffic between GPUs, by the state that was read; how to end it)."""
    known = {fact.name: fact.value for fact in inventory if fact.value is not None}
    if known.get("iommu", "").startswith("translating"):
        return "the IOMMU, which translates addresses between GPUs", "boot with iommu=pt"
    if "redirects" in known.get("acs", ""):
        return f"ACS of PCIe bridges ({known['acs']})", "switch ACS off in the BIOS"
    return None


@dataclass(frozen=True, slots=True)
class PeerRefusal:
    """Why the driver refuses peer access, what shows that, and what would end it."""

    why: str
    shown_by: tuple[str, ...]
    cure: str


def refusal_of_peers(inventory: Sequence[Fact]) -> PeerRefusal | None:
    """The driver's refusal, if asking it again without its check has shown that."""
    refused = next((fact for fact in inventory if fact.name == "peer-access" and fact.value == REFUSED), None)
    if refused is None:
        return None
    words, cure = redirection(inventory) or ("", "boot with iommu=pt and switch ACS off in the BIOS")
    return PeerRefusal(
        "since CUDA 13.5 the driver refuses it where the IOMMU or ACS redirects PCIe traffic",
        (*([f"read on this node: {words}"] if words else []), f"asked again: {refused.source}"),
        f"{cure} (in a virtual machine, on its host)",
    )


def no_peer_access(check: Check, probe: Probe, inventory: Sequence[Fact]) -> Finding | None:
    """The SKIP for a pair whose importer has no peer access to the exporter's memory, else None."""
    if "legacy-ipc" not in check.requires or len(probe.devices) != 2:
        return None
    exporter, importer = probe.devices
    if exporter.label in importer.peers:
        return None
    one, other = sorted(probe.devices, key=lambda device: device.index)
    says = "no peer access between {from_device} and {to_device}"
    evidence = tuple[str, ...]()
    remedy = "if NVLink or XGMI joins these GPUs, check their links: this is a fault; on PCIe it is normal"
    if one.vendor.checks_topology and (refusal := refusal_of_peers(inventory)):
        says, evidence = f"{says}: {refusal.why}", refusal.shown_by
        remedy = (
            f"nothing to repair: NCCL and UCX copy through the host; for peer access, {refusal.cure}; the "
            "variable that ends the check switches a safety off"
        )
    values = {"from_device": one.label, "to_device": other.label}
    return Finding.skip("no-peer-access", says, *evidence, remedy=remedy, **values)


def hidden_by_launcher(probe: Probe) -> Finding | None:
    """The SKIP if ranks cannot use these devices because the launcher hides them, else None."""
    launch = probe.launch
    if launch is None or launch.nodes > 1 or not probe.devices or launch.can_use(probe.devices):
        return None
    of_backend = probe.devices[0].backend + ":"
    shows = [[label for label in sorted(labels) if label.startswith(of_backend)] for labels in launch.shows]
    each = all(len(labels) == 1 for labels in shows)
    return Finding.skip(
        "hidden-by-launcher",
        f"the launcher shows each rank {'one GPU' if each else 'some of the GPUs'}: {{shown}}",
        Evidence(
            EvidenceKind.ISSUE,
            "Slurm's GPU binding hides the other ranks' GPUs, and IPC handles cannot be opened",
            {"issue": HIDDEN_PEERS},
        ),
        remedy="to test every device and pair, set an mpi.launcher that binds no GPUs (srun --gpu-bind=none "
        "without --gpus-per-task; Intel MPI: I_MPI_OFFLOAD_PIN=0); "
        f"for jobs, see `gpuipc-doctor known-issues show {HIDDEN_PEERS}`",
        shown=[f"rank {rank} {' and '.join(labels) or 'none'}" for rank, labels in enumerate(shows)],
    )


def harmful_step(probe: Probe, harmful: Mapping[tuple[str, str], Finding]) -> Finding | None:
    """The SKIP for a probe with a harmful step, else None; ``harmful``: (step, device's label) → the SKIP."""
    steps = ((step, device.label) for step in sorted(probe.harms) for device in probe.devices)
    return next((harmful[step] for step in steps if step in harmful), None)


def would_harm(harm: Harm) -> Finding:
    """The SKIP of a probe with a step that may harm this node."""
    return Finding.skip(
        "would-harm",
        "the probe {step}, which may harm this node ({issue}: {reason})",
        Evidence(EvidenceKind.ISSUE, harm.title, {"issue": harm.issue}),
        remedy="to run it although it may harm this node, add --accept-harm",
        step=harm.step,
        issue=harm.issue,
        reason=harm.reason,
    )
