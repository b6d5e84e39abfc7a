"""Sentences about why a job waits, one for each kind of reason, and what its owner can do about it. Pure."""

from __future__ import annotations

from ffdl_batch.domain.pending.explanation import Limit, Measure, Per, Reason, WaitKind

_ASK_SITE = "ask who runs the site"
SENTENCES: dict[WaitKind, tuple[str, tuple[str, ...]]] = {
    WaitKind.UNCONSIDERED: (
        "the scheduler has not come to it yet in its present round",
        ("ask again in a minute: where the reason stays empty, jobs with more priority fill the rounds",),
    ),
    WaitKind.RESOURCES: (
        "it is the next one, and waits until what it asks for is free",
        ("wait, or ask for less: fewer GPUs, fewer learners, another type or a shorter time",),
    ),
    WaitKind.PRIORITY: (
        "jobs with higher priority are ahead of it",
        ("wait, or ask for what fits into a gap: fewer GPUs or a shorter time let it start before them",),
    ),
    WaitKind.TURN: (
        "other jobs were submitted earlier, and start before it",
        ("wait: jobs start in the order in which they came here, whatever they ask for",),
    ),
    WaitKind.DEPENDENCY: (
        "it waits for other jobs that it depends on",
        ("look at those jobs; where one will not happen, cancel this one and submit it without the dependency",),
    ),
    WaitKind.DEPENDENCY_NEVER: (
        "what it depends on can never happen any more, so it will never start",
        ("cancel it, and submit it without the dependency, or with another one",),
    ),
    WaitKind.BEGIN_TIME: (
        "its begin time has not come",
        ("wait, or cancel it and submit it without begin",),
    ),
    WaitKind.HELD_BY_USER: (
        "it is on hold, by you or a coordinator of your account",
        ("release it with the scheduler's own command, or cancel it and submit it without hold",),
    ),
    WaitKind.HELD_BY_ADMIN: (
        "an administrator has put it on hold: only an administrator can release it",
        (_ASK_SITE,),
    ),
    WaitKind.HELD_AFTER_FAILURES: (
        "the scheduler could not start it, and has put it on hold",
        ("nothing: it is taken back, and the next attempt is made, as far as batch.retry allows",),
    ),
    WaitKind.NODES_AWAY: (
        "nodes that it needs are down, drained, or kept for something else",
        (
            "wait until they are back; or name no nodes, another partition or type, or a time that ends before the "
            "reservation begins",
        ),
    ),
    WaitKind.RESERVATION: (
        "its reservation has not begun, or has no room left",
        ("wait for the reservation, or submit it without one",),
    ),
    WaitKind.RESERVATION_GONE: (
        "its reservation is gone or may not be used, so it will not start",
        ("cancel it, and submit it without the reservation or with one that is there",),
    ),
    WaitKind.PARTITION_CLOSED: (
        "its partition starts no jobs now",
        ("wait until it is open again, or name another partition",),
    ),
    WaitKind.PARTITION_SIZE: (
        "it asks for more or fewer nodes than its partition gives to one job, or for nodes that are down there",
        ("change the number of learners or their placement, or name another partition",),
    ),
    WaitKind.PARTITION_TIME: (
        "its time limit is longer than its partition allows",
        ("cancel it, and submit it with a shorter time or in another partition",),
    ),
    WaitKind.PARTITION_RULE: (
        "it breaks a rule of its partition",
        (f"name another partition, or {_ASK_SITE} what that partition takes",),
    ),
    WaitKind.IMPOSSIBLE: (
        "no node of the cluster can ever hold what it asks for",
        ("cancel it, and ask for less or for resources that the cluster has",),
    ),
    WaitKind.CONSTRAINTS: (
        "no node that has what it asks for can be used now",
        ("wait for such a node, or ask for fewer features",),
    ),
    WaitKind.LICENSES: (
        "licenses that it asks for are in use",
        ("wait until running jobs return them, or ask for fewer",),
    ),
    WaitKind.NOT_ALLOWED: (
        "its account or QOS is not there, or may not be used in its partition",
        (f"cancel it, and submit it with another account or qos; {_ASK_SITE} which are yours",),
    ),
    WaitKind.ARRAY_LIMIT: (
        "as many elements of its array run as may run at once",
        ("wait, or submit the array with a higher limit (%N)",),
    ),
    WaitKind.CLEANING: (
        "what its run before left on the nodes is being cleaned up",
        ("wait: it is a matter of minutes",),
    ),
    WaitKind.STARTING: ("it has its nodes, which are being prepared", ("wait: it is a matter of minutes",)),
    WaitKind.DEADLINE: (
        "it cannot be done before its deadline any more",
        ("cancel it, and submit it with a later deadline or a shorter time",),
    ),
    WaitKind.BURST_BUFFER: (
        "the burst buffer has no room for it, or is being filled",
        (f"wait; where it stays so, {_ASK_SITE}",),
    ),
    WaitKind.FEDERATION: ("the clusters of the federation agree which of them takes it", ("wait",)),
    WaitKind.DEVICE_CHANNELS: (
        "all channels by which GPUs of several nodes share memory (IMEX) are in use",
        ("wait until other jobs of several nodes end",),
    ),
    WaitKind.PORTS: ("all ports that the site keeps for MPI are in use", ("wait until other jobs end",)),
    WaitKind.POWER: (
        "as many nodes are switched on as the site allows",
        ("wait until other jobs end",),
    ),
    WaitKind.DEFERRED: (
        "the scheduler starts nothing at submission here: it does so in its rounds",
        ("wait: it is a matter of minutes",),
    ),
    WaitKind.BROKEN: (
        "the scheduler failed to start it",
        (f"look at the job's log and its directory; where nothing is wrong there, {_ASK_SITE}",),
    ),
    WaitKind.ENDED: ("its run has ended, and the scheduler is putting it back into the queue", ("wait",)),
    WaitKind.NO_CAPACITY: (
        "no node has room for it now",
        ("wait until running jobs end, or ask for less: fewer GPUs, CPUs or learners, less memory, another type",),
    ),
    WaitKind.TOO_MUCH: (
        "the nodes of the cluster cannot hold it, even if nothing else runs",
        ("cancel it, and ask for less; or wait, if the cluster adds nodes by itself",),
    ),
    WaitKind.NODES_CLOSED: (
        "the nodes that it could have take nothing now: they are cordoned or not ready",
        ("wait until they are back, or ask who runs the cluster",),
    ),
    WaitKind.KEPT_FOR_OTHERS: (
        "the nodes that could hold it have taints that it does not tolerate",
        ("name a profile that tolerates them, or have tolerations set in [backend.kubernetes]",),
    ),
    WaitKind.WRONG_LABELS: (
        "no node has the labels that it asks for",
        ("correct gpu_type, node_selector or the profile",),
    ),
    WaitKind.QUEUE: (
        "its queue has not admitted it",
        ("wait until running jobs of the queue end, ask for less, or name another queue",),
    ),
    WaitKind.QUEUE_CLOSED: (
        "its queue does not take it, or has put it aside",
        ("ask who runs the queue, or name another one",),
    ),
    WaitKind.IMAGE: ("its image cannot be had", ("correct the image's name, or give credentials for its registry",)),
    WaitKind.VOLUME: (
        "a volume that it needs is not there, or bound to other nodes",
        (f"correct claim or volumes in the settings, or {_ASK_SITE}",),
    ),
    WaitKind.REFUSED: (
        "its pods are refused by a rule of the cluster",
        ("correct what the rule names; where it is the cluster's own, ask who runs it",),
    ),
    WaitKind.OURS: ("it waits here, and no scheduler has it yet", ("wait",)),
    WaitKind.OTHER: (
        "the scheduler gives a reason that this release does not know",
        (f"{_ASK_SITE} what it means",),
    ),
}
"""All kinds except LIMIT, whose sentence has its figures."""


def sentence_of(reason: Reason) -> str:
    """Return one plain sentence, followed by the scheduler's own word."""
    plain = limit_sentence(reason.limit) if reason.limit is not None else SENTENCES[reason.kind][0]
    said = ": ".join(dict.fromkeys(part for part in (reason.code, reason.detail) if part and part != "None"))
    return f"{plain} ({said})" if said else plain


def actions_of(reason: Reason) -> tuple[str, ...]:
    """Return what the owner can do."""
    if reason.limit is None:
        return SENTENCES[reason.kind][1]
    limit = reason.limit
    if limit.cure:
        return (limit.cure,)
    if limit.least:
        return (f"ask for at least as much as {_owner(limit)} wants, or use another one",)
    if limit.measure is Measure.MINUTES and limit.is_shared:
        reset = f"wait until the use of {_owner(limit)} is reset"
        return (f"{reset}, use another account or qos, or {_ASK_SITE} for more",)
    if limit.passes:
        return (f"wait until other jobs that count for it end, ask for fewer, or {_elsewhere(limit)}",)
    return (f"it will never start like this: ask for less, or {_elsewhere(limit)}",)


def limit_sentence(limit: Limit) -> str:
    """Return the sentence about a limit with its figures, as far as they are known."""
    what = {
        Measure.AMOUNT: limit.resource,
        Measure.MINUTES: f"minutes of {limit.resource}",
        Measure.RUN_MINUTES: f"minutes of {limit.resource} that running jobs may still use",
        Measure.SUBMITTED: f"{limit.resource}, waiting ones included",
    }[limit.measure]
    per = {Per.ALL: "", Per.JOB: " a job", Per.NODE: " a node", Per.USER: " a user", Per.ACCOUNT: " an account"}
    unit = " min" if limit.resource == "time" else ""
    figures = [f"the limit is {limit.most}{unit}"] if limit.most else []
    figures += [f"{limit.used}{unit} in use"] if limit.used else []
    figures += [f"it asks for {limit.asked}"] if limit.asked else []
    known = f": {', '.join(figures)}" if figures else ""
    if limit.least:
        return f"{_owner(limit)} takes no job with so little {what}{known}"
    if limit.passes:
        return f"{_owner(limit)} has used up its {what}{per[limit.per]}{known}"
    return f"it asks for more {what} than {_owner(limit)} gives{per[limit.per]}{known}"


def _owner(limit: Limit) -> str:
    return f"the {limit.owner} {limit.name}" if limit.name else f"its {limit.owner}"


def _elsewhere(limit: Limit) -> str:
    if limit.owner == "quota":
        return "ask who runs the cluster for a larger quota"
    return f"use another {_other(limit)}"


def _other(limit: Limit) -> str:
    return {"QOS": "qos", "association": "account", "partition": "partition"}.get(limit.owner, limit.owner)


def span_text(seconds: float) -> str:
    """Return a rounded duration: ``40 s``, ``12 min``, ``3.5 h``, ``2 days``."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h".replace(".0 h", " h")
    return f"{round(seconds / 86400)} days"
