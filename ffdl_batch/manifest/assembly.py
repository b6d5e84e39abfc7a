"""From checked models to the domain's values, with the site's defaults where the manifest says nothing."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping as Mappings
from dataclasses import replace

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job import learner_layout, spec
from ffdl_batch.domain.job.elastic import DEFAULT_POOL, Elastic, LearningRate
from ffdl_batch.domain.job.secret_references import MOVED, reference
from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.domain.quantity import UNLIMITED_S
from ffdl_batch.domain.sbatch.values import EXPEDITE
from ffdl_batch.manifest.command import read_command
from ffdl_batch.manifest.contract import Defaults
from ffdl_batch.manifest.credentials import is_secret, keep_apart, secret_name, why_no_reference
from ffdl_batch.manifest.document.tree import Mapping, Node, Place, Scalar, Sequence, locate, path_text, walk
from ffdl_batch.manifest.finding_log import FindingLog
from ffdl_batch.manifest.models.batch import BatchBlock, ElasticBlock, IdleBlock, ManifestBlock
from ffdl_batch.manifest.models.ffdl import EvaluationMetricsBlock, FrameworkBlock, ImageLocationBlock, MetricValueBlock


def assemble(
    manifest: ManifestBlock, stores: tuple[spec.DataStore, ...], defaults: Defaults, base_dir: str
) -> spec.JobSpec:
    """The job; `sources` is left to :func:`name_sources`, secrets to :func:`move_secrets`."""
    batch = manifest.batch or BatchBlock.model_validate({})
    roles = _roles(batch)
    return spec.JobSpec(
        name=manifest.name,
        framework=_framework(manifest.framework),
        description=manifest.description,
        version=manifest.version,
        resources=spec.Resources(
            learners=manifest.learners or sum(role.learners for role in roles.values()) or defaults.learners,
            cpus=manifest.cpus or defaults.cpus,
            gpus=manifest.gpus or 0.0,
            gpu_type=manifest.gpu_type,
            memory_bytes=defaults.memory_bytes if manifest.memory is None else manifest.memory,
            storage_bytes=manifest.storage,
            gres=batch.gres,
        ),
        data_stores=stores,
        metrics=_metrics(manifest.evaluation_metrics),
        batch=replace(_batch(batch), roles=roles),
        base_dir=base_dir,
    )


def _framework(block: FrameworkBlock) -> spec.Framework:
    location: ImageLocationBlock | None = block.image_location
    return spec.Framework(
        name=block.name,
        version=block.version,
        command=read_command(block.command).text,
        image_tag=block.image_tag,
        image_location=spec.ImageLocation(location.registry, location.namespace, location.email) if location else None,
    )


def _metrics(block: EvaluationMetricsBlock | None) -> spec.EvaluationMetrics:
    if block is None:
        return spec.EvaluationMetrics()
    return spec.EvaluationMetrics(
        type=block.type,
        image_tag=block.image_tag,
        in_=block.in_,
        line_lookahead=4 if block.line_lookahead is None else block.line_lookahead,
        event_types=tuple(block.event_types),
        groups={
            name: spec.MetricGroup(
                group.regex, group.meta.time if group.meta else "", _values(group.scalars), _values(group.etimes)
            )
            for name, group in block.groups.items()
        },
    )


def _values(blocks: Mappings[str, MetricValueBlock]) -> dict[str, spec.MetricValue]:
    return {name: spec.MetricValue(block.type, block.value) for name, block in blocks.items()}


def _batch(block: BatchBlock) -> spec.BatchOptions:
    return spec.BatchOptions(
        time_s=block.time,
        profile=block.profile,
        partition=block.partition,
        account=block.account,
        qos=block.qos,
        constraint=block.constraint,
        reservation=block.reservation,
        priority=block.priority,
        preemptible=block.preemptible,
        placement=spec.Placement(block.placement),
        network=spec.NetworkLevel(block.network.level),
        egress=tuple(_destination(text) for text in block.network.allow),
        env=block.env,
        secrets=block.secrets,
        checkpoint=_checkpoint(block),
        hang_s=spec.HANG_S if block.health is None or block.health.hang_s is None else block.health.hang_s,
        idle=_idle(block.idle),
        retry=spec.Retry(**block.retry.model_dump()) if block.retry else spec.Retry(),
        restart=spec.Restart(block.restart),
        staging=spec.Staging(block.staging),
        mount=Mounting(block.mount) if block.mount else None,
        array=block.array,
        elasticity=_elasticity(block.elastic),
        notify=spec.Notify(block.notify.mail, block.notify.events, block.notify.webhook)
        if block.notify
        else spec.Notify(),
        slurm_args=block.slurm.args if block.slurm else (),
        kubernetes=block.kubernetes,
        nodelist=block.nodelist,
        exclude=block.exclude,
        dependency=block.dependency,
        begin=block.begin,
        hold=bool(block.hold),
        requeue=None if block.requeue is None else bool(block.requeue),
        expedite=block.requeue == EXPEDITE,
        signal=block.signal,
        comment=block.comment,
        output=block.output,
        slurm_environment=bool(block.slurm_environment),
    )


def _idle(block: IdleBlock | None) -> IdleLimit | None:
    if block is None or block.for_s == UNLIMITED_S:
        return None
    return IdleLimit(block.gpu_below, spec.IDLE_S if block.for_s is None else block.for_s)


def _checkpoint(block: BatchBlock) -> spec.Checkpoint:
    asked = block.checkpoint
    site = spec.Checkpoint()
    if asked is None:
        return site
    return spec.Checkpoint(
        signal=asked.signal or site.signal,
        grace_s=site.grace_s if asked.grace_s is None else asked.grace_s,
        lead_s=asked.lead_s,
        shared=bool(asked.shared),
        saved_by=spec.SavedBy(asked.saved_by),
    )


def _elasticity(block: ElasticBlock | None) -> Elastic | None:
    if block is None:
        return None
    batch = block.batch
    return Elastic(
        min_learners=block.min_learners or 1,
        max_learners=block.max_learners,
        batch_min=batch.min,
        batch_max=batch.max,
        per_gpu_max=batch.per_gpu_max,
        start=batch.start or batch.min,
        weight=1.0 if block.weight is None else block.weight,
        pool=block.pool or DEFAULT_POOL,
        learning_rate=LearningRate(block.learning_rate),
        in_place=bool(block.in_place),
    )


def _roles(block: BatchBlock) -> dict[str, spec.Role]:
    return {
        name: spec.Role(
            learners=role.learners or 1,
            cpus=role.cpus,
            gpus=role.gpus,
            memory_bytes=role.memory,
            command=read_command(role.command).text,
            service=name == learner_layout.PARAMETER_SERVER if role.service is None else role.service,
        )
        for name, role in block.roles.items()
    }


def _destination(text: str) -> spec.Egress:
    host, _, port = text.rpartition(":")
    return spec.Egress(host.strip("[]"), int(port))


def move_secrets(
    job: spec.JobSpec, manifest: ManifestBlock, secrets: dict[str, str], taken: Collection[str], log: FindingLog
) -> spec.JobSpec:
    """Credentials outside the data stores: the image's token, and literal values under `batch.secrets`. `taken` are
    secrets that the manifest names."""
    job = replace(job, framework=_with_credentials(job.framework, manifest.framework, secrets, taken, log))
    moved: dict[str, str] = {}
    for variable, value in job.batch.secrets.items():
        moved[variable] = value
        why = why_no_reference(value) if value else "the variable has no value"
        if why:
            log.error(("batch", "secrets", variable), why, "write ${secret:NAME}, ${env:NAME} or ${file:PATH}")
        elif is_secret("password", value):
            name = keep_apart(secret_name("env", variable), value, secrets, taken)
            moved[variable] = f"${{secret:{name}}}"
            log.warning(
                ("batch", "secrets", variable),
                f"the value stands in the manifest; it is {MOVED}",
                "write ${secret:NAME}, ${env:NAME} or ${file:PATH}",
            )
    return replace(job, batch=replace(job.batch, secrets=moved))


def _with_credentials(
    framework: spec.Framework,
    block: FrameworkBlock,
    secrets: dict[str, str],
    taken: Collection[str],
    log: FindingLog,
) -> spec.Framework:
    """With references to the credentials of the image's registry; their values go to `secrets`."""
    location, given = framework.image_location, block.image_location
    if location is None or given is None:
        return framework
    found: dict[str, str] = {}
    for key in ("user_name", "access_token"):
        value: str = getattr(given, key)
        place: Place = ("framework", "image_location", key)
        if why := why_no_reference(value):
            log.error(place, why, "write ${secret:NAME}, ${env:NAME} or ${file:PATH}")
        elif is_secret(key, value):
            name = keep_apart(secret_name("image", key.replace("_", "-")), value, secrets, taken)
            log.warning(place, f"a credential stands in the manifest; it is {MOVED}", "write ${secret:NAME}")
            value = reference(name)
        found[key] = value
    return replace(framework, image_location=replace(location, **found))


def name_sources(root: Mapping, manifest: ManifestBlock) -> dict[str, str]:
    """Dotted path → where the value came from, for every value that was given and for the site's defaults."""
    sources = {name: spec.SITE_DEFAULT for name in ("cpus", "learners", "memory") if getattr(manifest, name) is None}
    for key in ManifestBlock.model_fields:
        node = root.get(key)
        if node is None:
            continue
        if not isinstance(node, Mapping):
            sources.setdefault(key, str(node.origin))
            if key == "data_stores" and isinstance(node, Sequence):
                for i, store in enumerate(node.items):
                    sources |= _sources_below(f"{key}[{i}]", store)
            continue
        for inner, entry in node.entries.items():
            sources[f"{key}.{inner}"] = _source(entry.key.origin, entry.value)
    if manifest.learners is None and manifest.batch is not None and manifest.batch.roles:
        sources["learners"] = sources["batch.roles"]  # their sum
    return sources


def name_lines(root: Mapping) -> dict[str, int | str]:
    """Return the line of each value by its place, or the option that gives it; 0 for a block that an option begins.
    Elements of a sweep are left out."""
    found: dict[str, int | str] = {}
    for node, place in walk(root):
        if place and place[:2] != ("batch", "sweep"):
            origin = locate(root, place)[0]
            option = origin.option if isinstance(node, Scalar) else 0
            found[path_text(place)] = option if origin.option else origin.mark.line
    return found


def _sources_below(path: str, node: Node) -> dict[str, str]:
    """Of a mapping and all that is in it."""
    if not isinstance(node, Mapping):
        return {}
    found = {path: str(node.origin)}
    for key, entry in node.entries.items():
        found[f"{path}.{key}"] = _source(entry.key.origin, entry.value)
        found |= _sources_below(f"{path}.{key}", entry.value)
    return found


def _source(key: object, value: object) -> str:
    """A block that options wrote into comes from its first option; else the line of its key counts."""
    if isinstance(value, Mapping):
        for entry in value.entries.values():
            if entry.value.origin.option:
                return str(entry.value.origin)
        return str(key)
    origin = getattr(value, "origin", key)
    return str(origin)
