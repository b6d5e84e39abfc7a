"""The root programs of slurm-configs under Debian 11: its Python imports them, its nft and ip take what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.contract.controller_rig import ROOT
from tests.python39.conftest import PYTHON, OldNode

CONFIGS = ROOT / "slurm-configs"
PROGRAM = """
import importlib, pkgutil, subprocess, sys
sys.path.insert(0, sys.argv[1])
import ffdl_health, ffdl_mounts, ffdl_network
assert ffdl_mounts.table()
for package, least in ((ffdl_network, 15), (ffdl_health, 8)):
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    assert len(names) > least, names
    for name in names:
        importlib.import_module(package.__name__ + "." + name)
from ffdl_health import program
assert program.main(["--print"]) == 0
from ffdl_network import commands, egress, layout, settings, vxlan, wireguard
site, here = settings.load(), "/proc/self/ns/net"
job, underlay = layout.Job(7, 1000, ("a", "b"), 0, 2), layout.Underlay(("10.9.0.1", "10.9.0.2"), 1500)
targets = egress.Targets((("x", "10.0.0.1"),), (("10.0.0.1", 80), ("10.0.0.2", 443)))
for rules in (
    vxlan.inner_rules(job, site, egress.inner_chains(targets)),
    wireguard.inner_rules(job, site).replace("table inet ffdl", "table inet ffdl_wg"),
    wireguard.guard_rules(job, site, underlay),
    vxlan.guard_rules(job, site, underlay) + egress.node_rules(7, 1, site, targets) + egress.forward_rules(),
):
    commands.run(["nft", "-f", "-"], 10, rules)
commands.run(["ip", "addr", "add", "10.9.0.1/24", "dev", "lo"], 10)
commands.run(vxlan.device_argv(job, site, underlay, here), 10)
commands.run(["ip", "-batch", "-"], 10, vxlan.address_lines(job, site))
commands.run(["bridge", "-batch", "-"], 10, vxlan.forwarding_lines(job, underlay))
commands.run(["ip", "-batch", "-"], 10, egress.node_lines(1, site, here))
commands.run(["ip", "addr", "flush", "dev", egress.device(1)], 10)  # both ends are in one namespace here
commands.run(["ip", "-batch", "-"], 10, egress.inside_lines(1, site, targets))
"""


def test_root_programs_import_and_apply_network_rules_on_debian11(node: OldNode, tmp_path: Path) -> None:
    values, rendered = tmp_path / "values.env", tmp_path / "rendered"
    values.write_text("ACCOUNTING_STORAGE_HOST=db\n")
    files = ["--values", str(CONFIGS / "values.env"), "--values", str(values)]
    subprocess.run([sys.executable, str(CONFIGS / "render.py"), *files, "--out", str(rendered)], check=True)
    argv = ["unshare", "--net", PYTHON, "-I", "-S", "-W", "error", "-c", PROGRAM, str(rendered / "libexec")]
    assert node.run(*argv) == 0, node.printed
