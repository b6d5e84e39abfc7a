"""A pod's status from its containers'."""

from __future__ import annotations

from tests.fakes.kubernetes.conditions import set_condition
from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.kubelet.slot import Slot

_MESSAGES_BYTES = 12 * 1024


def phase_of(inits: list[Slot], mains: list[Slot], *, over: bool, failed: bool) -> str:
    """`over`: everything has ended for good; `failed`: whatever its containers say."""
    if over:
        return "Failed" if failed or any(slot.code != 0 for slot in mains) else "Succeeded"
    begun = [slot for slot in mains if "waiting" not in slot.state or slot.restarts]
    return "Running" if begun else "Pending"


def fill(
    pod: Obj,
    inits: list[Slot],
    mains: list[Slot],
    *,
    over: bool,
    failed: bool,
    address: str,
    reason: str = "",
    message: str = "",
) -> None:
    """Write the status into the pod."""
    status = pod["status"]
    room = min(4096, _MESSAGES_BYTES // max(len(inits) + len(mains), 1))
    status["phase"] = phase_of(inits, mains, over=over, failed=failed)
    status["containerStatuses"] = [slot.status(room) for slot in mains]
    if inits:
        status["initContainerStatuses"] = [slot.status(room) for slot in inits]
    if address:
        status.update(podIP=address, podIPs=[{"ip": address}], hostIP="127.0.0.1", hostIPs=[{"ip": "127.0.0.1"}])
    for key, value in (("reason", reason), ("message", message)):
        if value:
            status[key] = value
    _conditions(pod, inits, mains, over=over, address=address)


def _conditions(pod: Obj, inits: list[Slot], mains: list[Slot], *, over: bool, address: str) -> None:
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(pod["status"]["phase"], "") if over else ""
    set_condition(pod, "PodReadyToStartContainers", "True" if address and not over else "False")
    undone = [slot.name for slot in inits if not _initialized(slot)]
    if not undone or (over and any("waiting" not in slot.state for slot in mains)):
        set_condition(pod, "Initialized", "True", ended if ended == "PodCompleted" else "")
    else:
        set_condition(
            pod,
            "Initialized",
            "False",
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(undone)}]",
        )
    unready = [slot.name for slot in [*[one for one in inits if one.sidecar], *mains] if not slot.ready]
    for name in ("Ready", "ContainersReady"):
        if ended:
            set_condition(pod, name, "False", ended)
        elif unready:
            set_condition(
                pod, name, "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
            )
        else:
            set_condition(pod, name, "True")


def _initialized(slot: Slot) -> bool:
    if slot.sidecar:
        return slot.started or slot.went_up.is_set()
    return slot.code == 0
