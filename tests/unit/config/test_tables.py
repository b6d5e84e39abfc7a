"""``[[fault_policies]]``, ``[nodes]``, ``[notices]``, ``[retention]`` and ``[elastic]`` are read, and rejected with
file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.config import ConfigError
from ffdl_batch.config.settings import ElasticPool
from ffdl_batch.domain.incidents.incident import Origin
from ffdl_batch.domain.incidents.site_settings import FaultPolicy, NodeRules, NoticeSettings
from tests.unit.config.test_load import load

GOOD = '[[fault_policies]]\nname = "one"\nmatch = "x+"\nstop_retrying = true\n'


def test_fault_policy_has_values_of_its_table(tmp_path: Path) -> None:
    text = '[[fault_policies]]\nname = "fabric"\nmatch = "ncclSystemError"\nkind = "node.gpu"\nexclude_node = true\n'
    settings = load(tmp_path, f'{text}notify = ["ops@example.org", "https://chat.example.org/x"]\n{GOOD}')
    notify = ("ops@example.org", "https://chat.example.org/x")
    fabric = FaultPolicy("fabric", "ncclSystemError", "node.gpu", exclude_node=True, notify=notify)
    assert settings.fault_policies == (fabric, FaultPolicy("one", "x+", stop_retrying=True))
    assert ("fault_policies", '["fabric", "one"]', str(tmp_path / "ffdl.toml")) in settings.explain()


def test_fault_policies_of_several_files_are_joined_without_duplicates(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD.replace("one", "two"), user=GOOD)
    assert [policy.name for policy in settings.fault_policies] == ["one", "two"]
    with pytest.raises(ConfigError, match=r"ffdl\.toml: there are two fault_policies named one; give each its own"):
        load(tmp_path, GOOD)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('match = "x"\nkind = "user.x"', "name must be a name of letters, digits"),
        ('name = "a b"\nmatch = "x"\nkind = "user.x"', "name must be a name of letters, digits"),
        ('name = "a"\nkind = "user.x"', "match must be a regular expression; it is not set"),
        ('name = "a"\nmatch = "("\nkind = "user.x"', "match is not a regular expression of Python's"),
        ('name = "a"\nmatch = "x"\nkind = "theirs.x"', "kind must be origin.word, as node.gpu"),
        ('name = "a"\nmatch = "x"\nstop_retrying = "yes"', "stop_retrying must be true or false, not 'yes'"),
        ('name = "a"\nmatch = "x"\nnotify = "nobody"', "notify must be an address (mail, webhook) or a list of them"),
        ('name = "a"\nmatch = "x"\nregex = "y"', "regex is not a known key; the keys are name, match, kind"),
        ('name = "a"\nmatch = "x"', "it does nothing; give kind, exclude_node, stop_retrying or notify"),
    ],
)
def test_fault_policy_error_names_file_and_line(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{GOOD}\n# the second one\n[[fault_policies]]\n{table}\n")
    assert str(caught.value).startswith(f"{tmp_path}/ffdl.toml:7: fault_policies[2]: ")
    assert message in str(caught.value)


def test_node_rules_of_several_files_are_merged_by_key(tmp_path: Path) -> None:
    settings = load(tmp_path, "[nodes]\nhours = 12\n", user="[nodes]\nexclude_unreliable = true\nhours = 48\n")
    assert settings.nodes == NodeRules(exclude_unreliable=True, hours=12.0)
    assert load(tmp_path, "").nodes.exclude_unreliable
    shown = {key: value for key, value, _ in settings.explain()}
    assert shown["nodes"] == "exclude_unreliable = true, threshold = 4.0, hours = 12.0, percent = 5.0"


def test_node_exclusion_fault_policies_and_notices_are_off_by_default(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert (settings.nodes, settings.fault_policies) == (NodeRules(exclude_unreliable=False), ())
    assert settings.notices == NoticeSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fault_policies = 3", r"fault_policies must be tables, \[\[fault_policies\]\]"),
        ("nodes = 1", "nodes must be a table"),
        (
            "[nodes]\nthresholds = 1",
            r"nodes\.thresholds is not a known key; the keys are exclude_unreliable, threshold",
        ),
        ("[nodes]\nexclude_unreliable = 1", "exclude_unreliable must be true or false, not 1"),
        ("[nodes]\nexclude_unreliable = [{a = false}, 1.0]", r"must be true or false, not \[{a = false}, 1.0\]"),
        ("[nodes]\nthreshold = 0", "threshold must be a number from 0.1"),
        ("[nodes]\nhours = true", "hours must be a number from 0.1 to 10000"),
        ("[nodes]\npercent = 51", "percent must be a number from 0 to 50, not 51"),
        ("[nodes]\npercent = nan", "percent must be a number from 0 to 50"),
    ],
)
def test_config_error_names_invalid_fault_policies_and_node_rules(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_notice_settings_read_all_keys(tmp_path: Path) -> None:
    text = (
        '[notices]\nsmtp = "mail.example.org:587"\nfrom = "f@example.org"\nmail = ["ops@example.org"]\n'
        'webhooks = ["https://chat.example.org/x"]\norigins = ["node"]\nlogin_file = "/etc/ffdl/login"\n'
    )
    assert load(tmp_path, text).notices == NoticeSettings(
        ("ops@example.org",), ("https://chat.example.org/x",), (Origin.NODE,), "mail.example.org:587", "f@example.org",
        "/etc/ffdl/login",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('mails = ["x"]', "mails is not a known key"),
        ('mail = ["ops@example.org"]', "notices.smtp no relay"),
        ('mail = ["ops"]', "'ops' is not a mail address"),
        ('mail = "ops@example.org"', "must be a list"),
        ('webhooks = ["ftp://example.org"]', "not the address of a web server"),
        ('webhooks = ["https://"]', "not the address of a web server"),
        ('origins = ["nodes"]', "the origins are user, data"),
        ('ca_file = "ca.pem"', "must be an absolute path"),
        ("smtp = 25", "must be a text"),
    ],
)
def test_notice_settings_error_names_file_and_key(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load(tmp_path, f"[notices]\n{line}\n")
    assert str(tmp_path / "ffdl.toml") in str(refused.value)


def test_elastic_pools_have_values_of_their_tables(tmp_path: Path) -> None:
    text = '[elastic.pools.default]\ngpus = 8\n[elastic.pools.big]\ngpus = 64\npartition = "gpu"\nobjective = "fair"\n'
    settings = load(tmp_path, text)
    assert settings.elastic == {"default": ElasticPool(8), "big": ElasticPool(64, partition="gpu", objective="fair")}
    assert load(tmp_path).elastic == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[elastic]\ninterval_s = 5\n", "elastic may contain only [elastic.pools.NAME] tables"),
        ("[elastic.pools.a]\n", "elastic.pools.a must be a table with the key gpus"),
        (
            '[elastic.pools."a b"]\ngpus = 1\n',
            "elastic.pools.a b must be a table with the key gpus; its name may contain only letters",
        ),
        ("[elastic.pools.a]\ngpus = 0\n", "elastic.pools.a.gpus must be a whole number from 1 to 100000, not 0"),
        (
            "[elastic.pools.a]\ngpus = 1\nzone = 1\n",
            "elastic.pools.a.zone is not a known key; the keys are gpus",
        ),
        ("[elastic.pools.a]\ngpu = 4\n", "elastic.pools.a.gpu is not a known key; did you mean gpus?"),
        ('[elastic.pools.a]\ngpus = 1\nobjective = "x"\n', "objective must be one of completion, throughput, fair"),
        ("[elastic.pools.a]\ngpus = 1\ninterval_s = 0\n", "interval_s must be a number from 1 to 86400, not 0"),
    ],
)
def test_elastic_pool_error_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/ffdl.toml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(("site", "user", "days"), [(30, 7, 7), (30, 90, 30), (30, 0, 30), (0, 7, 7), (0, 0, 0)])
def test_user_can_shorten_retention_of_site_and_not_lengthen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: int, user: int, days: int
) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f"[retention]\ndays = {site}\n")
    monkeypatch.setattr("ffdl_batch.config.load.SITE_FILES", (file,))
    settings = load(tmp_path, f"[retention]\ndays = {user}\n")
    assert settings.retention.days == days
    origin = {key: origin for key, _, origin in settings.explain()}["retention"]
    assert origin == str(tmp_path / "ffdl.toml" if days != site else file)


@pytest.mark.parametrize("table", ["days = -1", "days = 1.5", "days = true", 'days = "30"', "weeks = 2"])
def test_retention_error_names_file_and_key(tmp_path: Path, table: str) -> None:
    with pytest.raises(ConfigError, match=r"ffdl\.toml: retention(\.days must be a whole number| must be a table)"):
        load(tmp_path, f"[retention]\n{table}\n")
