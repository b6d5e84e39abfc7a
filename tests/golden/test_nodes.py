"""What is installed on nodes, and what the root programs say to nft, ip, bridge and wg there, byte for byte.

``--update-golden`` rewrites them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "nodes"
CONFIGS = Path(__file__).resolve().parents[2] / "slurm-configs"
UNITS = (
    *("ffdl-network.service", "ffdl-network-check.service", "ffdl-network-check.timer"),
    *("ffdl-health.service", "ffdl-health.timer"),
)
HOOKS = tuple(f"{folder}/{name}" for folder in ("prolog.d", "epilog.d") for name in ("00-keep", "50-ffdl"))
REPORTS = ("cron/ffdl-report-faults", "systemd/ffdl-report-faults.service", "systemd/ffdl-report-faults.timer")
FILES = ("epilog.d/60-ffdl-mounts", "slurm.conf.d/ffdl.conf")
INSTALLED = (*HOOKS, *REPORTS, *FILES, *(f"systemd/{unit}" for unit in UNITS))
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ffdl_network import egress, layout, mark, settings, vxlan, wireguard
site, net = settings.load()._replace(mechanism=sys.argv[3]), "/run/ffdl/3/net"
mechanism = {"vxlan": vxlan, "wireguard": wireguard}[site.mechanism]
request = mark.read(sys.argv[2], site.mark)
job = layout.Job(4711, 1000, ("n1", "n2", "n3"), 1, request.learners)
underlay = layout.Underlay(("192.0.2.1", "192.0.2.2", "192.0.2.3"), 1500)
hosts = {"data.example.org": ["198.51.100.7", "198.51.100.8"], "203.0.113.9": ["203.0.113.9"]}
names = tuple((to.host, address) for to in request.destinations for address in hosts[to.host] if address != to.host)
pairs = tuple((address, to.port) for to in request.destinations for address in hosts[to.host])
targets = egress.Targets(names, pairs) if request.destinations else None
made = {
    "namespace.nft": mechanism.inner_rules(job, site, egress.inner_chains(targets) if targets else ""),
    "node.nft": mechanism.guard_rules(job, site, underlay),
    "namespace.ip": mechanism.address_lines(job, site),
    "network": layout.facts(
        job, site, underlay.inner_mtu(mechanism.OVERHEAD_BYTES), net, targets.names if targets else None
    ),
}
if mechanism is vxlan:
    made["device"] = " ".join(vxlan.device_argv(job, site, underlay, net)) + "\\n"
    made["namespace.bridge"] = vxlan.forwarding_lines(job, underlay)
else:
    private = [wireguard.private_key(bytes(range(32)), job, rank) for rank in range(3)]
    made["node.wg"] = wireguard.configuration(job, site, underlay, private[1], ["first=", "own=", "third="])
    made["node.ip"] = wireguard.moving_lines(3, underlay, net)
if targets:
    made["node.nft"] += egress.node_rules(job.job_id, 3, site, targets)
    made["way-out.node.ip"] = egress.node_lines(3, site, net)
    made["way-out.namespace.ip"] = egress.inside_lines(3, site, targets)
    made["forwarding.nft"] = egress.forward_rules()
print(json.dumps(made))
"""
JOB = "ffdl-batch:job/2"
EGRESS = "ffdl-batch:egress/2/data.example.org:443,203.0.113.9:8080 my own words"
NETWORKS = {
    "job": (JOB, "vxlan"),
    "egress": (EGRESS, "vxlan"),
    "wireguard-job": (JOB, "wireguard"),
    "wireguard-egress": (EGRESS, "wireguard"),
}
"""The job's comment, and the site's mechanism."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a site that changes nothing."""
    place = tmp_path_factory.mktemp("site")
    (place / "values.env").write_text("ACCOUNTING_STORAGE_HOST=slurmdb1\n")
    files = ["--values", str(CONFIGS / "values.env"), "--values", str(place / "values.env")]
    subprocess.run([sys.executable, str(CONFIGS / "render.py"), *files, "--out", str(place / "etc")], check=True)
    return place / "etc"


@pytest.mark.parametrize("name", INSTALLED)
def test_rendered_node_files_match_golden_files(rendered: Path, name: str, update_golden: bool) -> None:
    _compare(HERE / "installed" / name, (rendered / name).read_text(), update_golden)


@pytest.mark.parametrize("network", NETWORKS)
def test_node_network_commands_match_golden_files(rendered: Path, network: str, update_golden: bool) -> None:
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, str(rendered / "libexec"), *NETWORKS[network]]
    made = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    for name, text in made.items():
        _compare(HERE / network / name, text, update_golden)
    assert {path.name for path in (HERE / network).iterdir()} == set(made)


def _compare(path: Path, text: str, update_golden: bool) -> None:
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(HERE.parent)} differs; see --update-golden"
