"""GPUs, shares of a GPU, MIG devices and other generic resources: what Slurm is asked for, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.domain.job.spec import BatchOptions, Placement, Resources, Role
from ffdl_batch.domain.launch.devices import DEVICE_OPTIONS, Devices
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_slurm.planning.gres import shares_per_gpu
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.settings import SlurmSettings, read_settings
from tests.unit.slurm.test_plan import FACTS, options, request

GIB = 1024**3
NODES = (
    NodeShape("n[1-2]", 8, 64 * GIB, {"a100": 4}, ("main",), gres={"shard": 16}),
    NodeShape("p1", 8, 64 * GIB, {"v100": 2}, ("main",), gres={"mps": 200}),
    NodeShape("m1", 8, 64 * GIB, {"a100_1g.10gb": 7, "a100_3g.40gb": 1}, ("mig",)),
    NodeShape("u1", 8, 64 * GIB, {}, ("npu",), gres={"npu:910b": 4, "npu:310": 2, "nic": 3}),
    NodeShape("x1", 8, 64 * GIB, {"h100": 2}, ("typed",), gres={"shard:h100": 20}),
    NodeShape("x2", 8, 64 * GIB, {"l40": 4}, ("typed",), gres={"shard:l40": 8}),
    NodeShape("p2", 8, 64 * GIB, {"v100": 2}, ("mps",), gres={"mps": 200}),
)
NAMES = ("main", "mig", "npu", "typed", "mps")
SHOP = replace(FACTS, nodes=NODES, partitions=tuple(PartitionShape(name, name == "main") for name in NAMES))
ONE = Resources(cpus=1, memory_bytes=10**6)
PACK = BatchOptions(placement=Placement.PACK)


def made(partition: str, batch: BatchOptions | None = None, facts: BackendFacts = SHOP, **wanted: Any) -> LaunchRequest:
    resources = replace(ONE, **wanted)
    return request(resources, replace(batch or BatchOptions(), partition=partition), facts=facts)


def plan(partition: str, batch: BatchOptions | None = None, facts: BackendFacts = SHOP, **wanted: Any) -> LaunchPlan:
    return make_plan(made(partition, batch, facts, **wanted), SlurmSettings())


@pytest.mark.parametrize(
    ("partition", "wanted", "gres"),
    [
        ("main", {"gpus": 0.5, "gpu_type": "a100"}, "shard:2"),
        ("main", {"gpus": 0.3, "gpu_type": "a100"}, "shard:2"),
        ("mps", {"gpus": 0.25}, "mps:25"),
        ("mps", {"gres": {"mps": 60}}, "mps:60"),
        ("typed", {"gpus": 0.5, "gpu_type": "H100"}, "shard:h100:5"),
        ("typed", {"gpus": 0.5}, "shard:5"),
        ("typed", {"gres": {"shard:l40": 2}}, "shard:l40:2"),
        ("mig", {"gpus": 1, "gpu_type": "1g.10gb"}, "gpu:a100_1g.10gb:1"),
        ("mig", {"gpus": 1, "gpu_type": "a100-3g.40gb"}, "gpu:a100_3g.40gb:1"),
        ("npu", {"gres": {"npu": 6}}, "npu:6"),
        ("npu", {"gres": {"npu:910b": 2, "nic": 1, "ssd": 0}}, "nic:1,npu:910b:2"),
        ("main", {"gpus": 2, "gpu_type": "v100"}, "gpu:v100:2"),
    ],
)
def test_plan_requests_gpu_share_mig_and_gres_by_slurm_name(partition: str, wanted: dict[str, Any], gres: str) -> None:
    assert options(made(partition, **wanted))["gres"] == gres
    assert f"--gres={gres}" in plan(partition, **wanted).launch.step


def test_plan_warns_if_gpu_share_is_rounded_up_and_counts_shares_for_gpu_hours() -> None:
    assert "gpus: 0.3 is rounded up to 2 of the 4 shard of a GPU" in plan("main", gpus=0.3, gpu_type="a100").warnings
    assert not [warning for warning in plan("mps", gpus=0.5).warnings if warning.startswith("gpus")]
    succession = plan("mps", PACK, gpus=0.25, learners=2).launch.succession
    assert succession is not None and succession.gpus == 0.5


def test_shares_per_gpu_are_known_only_if_all_nodes_agree() -> None:
    assert shares_per_gpu(NODES[:3]) == {"shard": 4.0, "mps": 100.0}
    assert shares_per_gpu(NODES) == {"mps": 100.0}


def test_plan_packs_only_learners_that_share_one_gpu_of_node() -> None:
    """Slurm gives a job the shares of one GPU on each node: no more learners are laid on a node than that has."""
    four = plan("main", PACK, gpus=0.25, gpu_type="a100", learners=4).launch
    assert (four.nodes, four.devices.gpus, four.devices.shared) == (1, 1, True)
    assert [(seat.node, seat.gpus) for seat in four.seats] == [(0, 1)] * 4
    five = plan("main", PACK, gpus=0.25, gpu_type="a100", learners=5).launch
    assert (five.nodes, "--gres=shard:3" in five.step) == (2, True)
    with pytest.raises(InvalidRequest, match="9 learners need more nodes than there are"):
        plan("main", PACK, gpus=0.25, gpu_type="a100", learners=9)


def test_plan_multiplies_gres_by_learners_on_node() -> None:
    two = plan("npu", PACK, gres={"npu": 2, "nic": 1}, learners=3).launch
    assert (two.nodes, "--gres=nic:3,npu:6" in two.step) == (1, True)
    with pytest.raises(InvalidRequest, match="4 learners need more nodes"):
        plan("npu", PACK, gres={"npu": 2}, learners=4)


def test_plan_passes_gres_unchecked_but_rejects_gpu_shares_without_node_facts() -> None:
    unknown = replace(SHOP, nodes=())
    assert options(made("", facts=unknown, gres={"npu": 1}, gpus=1, learners=2))["gres"] == "gpu:1,npu:1"
    with pytest.raises(InvalidRequest, match="no node here offers shares"):
        plan("", facts=unknown, gpus=0.5)


@pytest.mark.parametrize(
    ("partition", "wanted", "field", "words"),
    [
        ("npu", {"gpus": 0.5}, "gpus", "no node here offers shares of a GPU .*; known: nic, npu:310, npu:910b"),
        ("mig", {"gpus": 0.5}, "gpus", "no node here offers shares"),
        ("main", {"gres": {"shard": 5}}, "batch.gres", "5 shard per learner, but no GPU here has more than 4"),
        ("main", {"gres": {"shard": 17}}, "batch.gres", "but no node here has more than 16"),
        ("mig", {"gpus": 1, "gpu_type": "2g.20gb"}, "gpu_type", "known: a100_1g.10gb, a100_3g.40gb"),
        ("main", {"gres": {"npu": 1}}, "batch.gres", "no node here has 'npu'; known: gpu:a100, gpu:v100, mps, shard"),
        ("npu", {"gres": {"npu:910": 1}}, "batch.gres", "no node here has 'npu:910'"),
        ("npu", {"gres": {"npu:310": 3}}, "batch.gres", "3 npu:310 per learner, but no node here has more than 2"),
        ("npu", {"gres": {"npu": 1}, "cpus": 9}, "cpus", "no node here has more than 8"),
    ],
)
def test_plan_rejects_gres_that_no_node_offers(partition: str, wanted: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        plan(partition, **wanted)
    assert [(finding.path, finding.code) for finding in error.value.findings] == [(field, "C104")]


def test_plan_requests_gpu_shares_only_for_roles_that_have_some() -> None:
    shared = {"a": Role(1, gpus=0), "b": Role(2, gpus=0.25)}
    launch = plan("mps", replace(PACK, roles=shared), learners=3).launch
    assert [seat.gpus for seat in launch.seats] == [0, 1, 1]
    assert "--gres=mps:50" in launch.step


def test_plan_rejects_gpu_share_of_type_if_nodes_mix_gpu_types_unless_constraint_selects_one() -> None:
    mixed = replace(SHOP, nodes=(*NODES, NodeShape("n9", 8, 64 * GIB, {"v100": 4}, ("main",), gres={"shard": 8})))
    with pytest.raises(InvalidRequest, match="shard of a100 cannot be distinguished from shard of other GPUs here"):
        plan("main", facts=mixed, gpus=0.5, gpu_type="a100")
    old, new = (replace(NODES[0], name=name, features=(name,)) for name in ("old", "new"))
    both = replace(SHOP, nodes=(replace(old, gpus={"v100": 4}), new))
    with pytest.raises(InvalidRequest, match="cannot be distinguished"):
        plan("main", facts=both, gpus=0.5, gpu_type="a100")
    assert options(made("main", BatchOptions(constraint="new"), both, gpus=0.5, gpu_type="a100"))["gres"] == "shard:2"


NV, ROCM = ("--nv",), ("--rocm",)


@pytest.mark.parametrize(
    ("raw", "gpus", "words", "chosen"),
    [
        ({}, 1, (DEVICE_OPTIONS,), {"nvidia": NV, "amd": ROCM, "intel": ()}),
        ({"gpu_flag": "nv"}, 1, NV, {}),
        ({"gpu_flag": "rocm"}, 1, ROCM, {}),
        ({"gpu_flag": "none"}, 1, (), {}),
        ({"gpu_devices": {}}, 1, ROCM, {}),
        ({"gpu_devices": {"amd": ["/dev/x[0-9]"]}}, 1, (DEVICE_OPTIONS,), {"amd": ROCM}),
        ({}, 0, (), {}),
    ],
)
def test_plan_leaves_container_gpu_option_to_node_unless_configured(
    raw: dict[str, object], gpus: int, words: tuple[str, ...], chosen: dict[str, tuple[str, ...]]
) -> None:
    """The setting wins over it; without device files to look at, the name of the type says whose GPUs they are."""
    launch = make_plan(request(replace(ONE, gpus=gpus), BatchOptions(partition="amd")), read_settings(raw)).launch
    found = tuple(word for word in launch.learner.argv if word in (*NV, *ROCM, DEVICE_OPTIONS))
    assert (found, launch.devices.options) == (words, chosen)
    assert set(launch.devices.gpu_files) == (set(read_settings(raw).gpu_devices) if gpus else set())


def test_launch_file_lists_device_files_of_other_resources() -> None:
    settings = read_settings({"gres_devices": {"npu": ["/dev/npu[0-9]*"], "tpu": ["/dev/accel*"]}, "gpu_flag": "none"})
    launch = make_plan(made("npu", PACK, gres={"npu:910b": 1, "npu:310": 1, "nic": 1}, learners=2), settings).launch
    assert launch.devices == Devices(each={"npu": 2, "nic": 1}, learners=2, gres_files={"npu": ("/dev/npu[0-9]*",)})
    assert DEVICE_OPTIONS in launch.learner.argv


@pytest.mark.parametrize(
    ("files", "told"), [({}, ["nic", "npu"]), ({"npu": ["/dev/npu[0-9]*"]}, ["nic"]), ({"npu": [], "nic": []}, [])]
)
def test_plan_warns_about_gres_without_known_device_file(files: dict[str, list[str]], told: list[str]) -> None:
    settings = read_settings({"gres_devices": files})
    warnings = make_plan(made("npu", PACK, gres={"npu:910b": 1, "nic": 1}, learners=2), settings).warnings
    found = [text for text in warnings if "no device file of it gets into containers" in text]
    assert [text.split()[1] for text in found] == told
    assert "npu" in files or any("gres_devices.npu of [backend.slurm]" in text for text in found)
