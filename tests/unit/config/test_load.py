"""Configuration: precedence, origins, and errors that name file and key."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ffdl_batch.config import ConfigError, Settings, load_settings
from ffdl_batch.config.fingerprint import find_differences, named_clusters, take_fingerprints
from ffdl_batch.config.images import UnknownImage, known_frameworks, resolve_image, resolve_oci_image
from ffdl_batch.domain.job.spec import Framework, ImageLocation, NetworkLevel


def load(tmp_path: Path, text: str = "", *, user: str = "", **environ: str) -> Settings:
    """Return the settings of a named file with this text, of the user's file below $HOME, and of the environment."""
    (tmp_path / "ffdl.toml").write_text(text)
    if user:
        (tmp_path / ".config/ffdl").mkdir(parents=True)
        (tmp_path / ".config/ffdl/config.toml").write_text(user)
    named = {"HOME": str(tmp_path), "FFDL_CONFIG": str(tmp_path / "ffdl.toml")}
    return load_settings(cwd=tmp_path, environ={**named, **environ})


def test_settings_place_jobs_of_site_daemon_below_home_unless_configured(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "FFDL_STATE_DIR": "/var/lib/ffdl/1000/state"}
    settings = load_settings(cwd=tmp_path, environ=environ, site=True)
    assert (settings.state_dir, settings.jobs_dir) == (environ["FFDL_STATE_DIR"], f"{tmp_path}/.local/state/ffdl-site")
    settings = load_settings(cwd=tmp_path, environ={**environ, "FFDL_JOBS_DIR": "/scratch/me"}, site=True)
    assert settings.jobs_dir == "/scratch/me"


def test_egress_bounds_daemons_of_site_and_only_site_file_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.toml"
    monkeypatch.setattr("ffdl_batch.config.load.SITE_FILES", (file,))
    environ = {"HOME": str(tmp_path)}
    assert load_settings(cwd=tmp_path, environ=environ, site=True).egress == ()
    assert load_settings(cwd=tmp_path, environ=environ).egress is None
    file.write_text('egress = ["192.0.2.0/24"]\n')
    settings = load_settings(cwd=tmp_path, environ=environ, site=True)
    assert settings.egress == ("192.0.2.0/24",)
    assert ("egress", '["192.0.2.0/24"]', str(file)) in settings.explain()
    for value in ('["10.0.0.1/8"]', '"192.0.2.0/24"', "[1]"):
        file.write_text(f"egress = {value}\n")
        with pytest.raises(ConfigError, match=re.escape(f"{file}: egress must be a list of networks, as 192.0.2.0/24")):
            load_settings(cwd=tmp_path, environ=environ)
    file.unlink()
    for text, variables in (("egress = []\n", {}), ("", {"FFDL_EGRESS": "0.0.0.0/0"})):
        with pytest.raises(ConfigError, match=r"only .*site\.toml may set egress"):
            load(tmp_path, text, **variables)


def test_only_site_file_makes_daemons_trust_sessions_of_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "site.toml", tmp_path / "xdg.toml"
    monkeypatch.setattr("ffdl_batch.config.load.SITE_FILES", (file, other))
    assert load(tmp_path).trust_hub_sessions is False
    file.write_text("trust_hub_sessions = true\n")
    assert load(tmp_path).trust_hub_sessions is True
    file.write_text("trust_hub_sessions = 1\n")
    with pytest.raises(ConfigError, match="trust_hub_sessions must be true or false, not 1"):
        load(tmp_path)
    file.unlink()
    other.write_text("trust_hub_sessions = true\n")
    with pytest.raises(ConfigError, match=r"xdg\.toml: only .*site\.toml may set trust_hub_sessions"):
        load(tmp_path)
    other.unlink()
    for files in ({"user": "trust_hub_sessions = true\n"}, {"FFDL_TRUST_HUB_SESSIONS": "true"}):
        with pytest.raises(ConfigError, match=r"only .*site\.toml may set trust_hub_sessions"):
            load(tmp_path, "", **files)


def test_settings_place_default_paths_below_home_and_find_it_without_environment(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.state_dir == str(tmp_path / ".local/state/ffdl")
    assert settings.jobs_dir == settings.state_dir
    assert settings.database == f"sqlite:///{settings.state_dir}/ffdl.sqlite3"
    assert Path(load_settings(cwd=tmp_path, environ={}).state_dir).is_absolute()


def test_settings_prefer_environment_over_files_and_name_origin(tmp_path: Path) -> None:
    user = "lease_s = 1\nwatch_interval_s = 1\nidle_exit_s = 1\n"
    settings = load(tmp_path, "watch_interval_s = 2\nidle_exit_s = 2\n", user=user, FFDL_IDLE_EXIT_S="3")
    assert (settings.lease_s, settings.watch_interval_s, settings.idle_exit_s) == (1, 2, 3)
    origins = {key: origin for key, _, origin in settings.explain()}
    assert origins["lease_s"].endswith("config.toml")
    assert origins["watch_interval_s"].endswith("ffdl.toml")
    assert origins["idle_exit_s"] == "environment FFDL_IDLE_EXIT_S"
    assert origins["backend"] == "default"


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql+psycopg://ada:geheim@db/ffdl", "postgresql+psycopg://ada:***@db/ffdl"),
        ("postgresql+psycopg://ada@db/ffdl?password=geheim&x=y", "postgresql+psycopg://ada@db/ffdl?password=***&x=y"),
        ("postgresql+psycopg://ada@db:5432/ffdl", "postgresql+psycopg://ada@db:5432/ffdl"),
        ("sqlite:////home/a:b@c/jobs.db", "sqlite:////home/a:b@c/jobs.db"),
    ],
)
def test_settings_explain_masks_database_password(tmp_path: Path, url: str, printed: str) -> None:
    settings = load(tmp_path, FFDL_DATABASE_URL=url)
    assert settings.database == url
    values = {key: value for key, value, _ in settings.explain()}
    assert (values["database_url"], values["database"]) == (printed, printed)


def test_settings_explain_writes_values_as_toml_without_python_objects(tmp_path: Path) -> None:
    text = """
    [notices]
    mail = ["ops@example.org"]
    smtp = "mail:25"
    origins = ["node"]
    [backend.kubernetes]
    tolerations = ["a=b:NoSchedule", "c"]
    gpu_types = {a100 = "NVIDIA-A100", l4 = "NVIDIA-L4"}
    queue_limits = {}
    [backend.kubernetes.profiles.big]
    tolerations = ["x"]
    """
    values = {key: value for key, value, _ in load(tmp_path, text).explain()}
    assert values["notices"] == 'mail = ["ops@example.org"], origins = ["node"], smtp = mail:25'
    assert values["data_mount"] == "auto"
    assert values["backend.kubernetes.tolerations"] == '["a=b:NoSchedule", "c"]'
    assert values["backend.kubernetes.gpu_types"] == "a100 = NVIDIA-A100, l4 = NVIDIA-L4"
    assert (values["backend.kubernetes.profiles"], values["backend.kubernetes.queue_limits"]) == ("big", "none")
    assert not [value for value in values.values() if re.search(r"\w\(|<\w|\bNone\b", value)]


@pytest.mark.parametrize("name", ["FFDL_STATE_DIR", "FFDL_LEASE_S", "FFDL_CHECK_IMAGES", "FFDL_IMAGES_DIRS"])
def test_settings_treat_empty_variable_as_unset(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, **{name: ""}) == load(tmp_path)


@pytest.mark.parametrize("size", [2**20 + 1, 2**40])
def test_settings_refuse_huge_file_without_reading_it_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(size)
    with pytest.raises(ConfigError, match=r"huge\.toml: it has more than 1048576 bytes; name a configuration file"):
        load(tmp_path, FFDL_CONFIG=str(path))


def test_settings_read_file_with_byte_order_mark_and_dos_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "dos.toml"
    path.write_bytes(b"\xef\xbb\xbflease_s = 7\r\nlog_files = 2\r\n")
    settings = load(tmp_path, FFDL_CONFIG=str(path))
    assert (settings.lease_s, settings.log_files) == (7.0, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FFDL_LOG_FILES", "9" * 5000, "log_files must be a whole number from 1 to 1000, not '99999"),
        ("FFDL_METRICS_PORT", "²", "metrics_port must be a whole number from 0 to 65535, not '²'"),
        ("FFDL_LOG_FILES", "٣", "log_files must be a whole number"),
        ("FFDL_CACHE_BYTES", "9" * 5000, "cache_bytes"),
        ("FFDL_DEFAULT_CPUS", "inf", "default_cpus must be a number above 0"),
        ("FFDL_IDLE_EXIT_S", "1e400", "idle_exit_s must be a number above 0"),
        ("FFDL_LEASE_S", "x" * 5000, "'xxx.*[.][.][.] is not a number"),
        ("FFDL_CHECK_IMAGES", "x" * 5000, "is neither true nor false"),
    ],
)
def test_settings_refuse_wrong_variable_with_short_message(tmp_path: Path, name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        load(tmp_path, **{name: value})
    assert name in str(refused.value) and len(str(refused.value)) < 300


def test_settings_read_backend_tables_and_default_backend(tmp_path: Path) -> None:
    settings = load(tmp_path, '[backend]\ndefault = "slurm"\n[backend.slurm]\ngateway = "cli"\n')
    assert settings.backend == "slurm"
    assert settings.backend_settings("slurm") == {"gateway": "cli"}
    assert settings.backend_settings("local") == {}
    assert settings.backend_origins("slurm") == (str(tmp_path / "ffdl.toml"),)
    assert settings.backend_origins("local") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leese_s = 1", r"ffdl\.toml: unknown key 'leese_s'; did you mean lease_s\?"),
        ("lease_s = 'x'", "lease_s must be a number above 0, up to 1000000000"),
        ("lease_s = 0", "above 0"),
        ("lease_s = inf", "lease_s must be a number above 0, up to 1000000000, not inf"),
        ("watch_interval_s = 1e300", "watch_interval_s must be a number above 0, up to 1000000000"),
        ("silent_s = nan", "silent_s must be a number from 0 to 1000000000, not nan"),
        ("default_cpus = inf", "default_cpus must be a number above 0"),
        ("silent_s = -1", "silent_s must be a number from 0 to 1000000000"),
        ("silent_s = true", "silent_s must be a number"),
        ("state_dir = 'relative'", "absolute path"),
        ("default_memory = '8'", "default_memory"),
        ("log_file_size = '10KB'", "log_file_size must be 65536 bytes at least"),
        ("log_rate = '1'", "log_rate"),
        ("log_files = 0", "log_files must be a whole number from 1 to 1000"),
        ("log_files = true", "log_files must be a whole number from 1 to 1000"),
        ("network_minimum = 'moon'", "one of none, job, egress, host"),
        ("network_minimum = 'auto'", "one of none, job, egress, host"),
        ("data_mount = 'yes'", r"ffdl.toml: data_mount must be one of auto, always, never, not 'yes'"),
        ("cache_bytes = -1", r"ffdl.toml: cache_bytes"),
        ("cache_bytes = 'many'", r"ffdl.toml: cache_bytes"),
        ("cache_bytes = true", r"ffdl.toml: cache_bytes"),
        ("cache_bytes = 1.5", r"ffdl.toml: cache_bytes"),
        ("[frameworks.pytorch.oci]\ndebian = 1", r"frameworks\.pytorch takes tables `versions` and `oci` of texts"),
        ("= 1", r"ffdl\.toml"),
        ("[frameworks.x]\nversion = '1'", "tables `versions`"),
        ("[frameworks]\nx = 1", "must be tables"),
        ("images_dirs = 'x'", "list of paths"),
        ("rates = 1", "rates must be a table"),
        (
            "[rates]\ngpu_hours = 1",
            r"ffdl\.toml: rates\.gpu_hours is not a known key; the keys are currency, gpu_hour, cpu_hour",
        ),
        ("[rates]\ngpu_hour = -1", r"ffdl\.toml: rates\.gpu_hour must be the price of an hour, 0 or above, not -1"),
        ("[rates]\ncpu_hour = true", "rates.cpu_hour must be the price .*, not true"),
        ("[rates]\ncpu_hour = nan", "rates.cpu_hour must be the price"),
        ("[rates]\ncurrency = 3", "rates.currency must be a short text"),
        ("[rates]\ngpu_types = 3", "rates.gpu_types must be a table of GPU types"),
        ("[rates]\ngpu_types = { a100 = '3' }", "rates.gpu_types.a100 must be the price"),
        ("[rates]\ngpu_types = { a100 = 3, A100 = 4 }", "names a GPU type twice"),
        ("[rates]\ngpu_parts = 0.5", "rates.gpu_parts must be a table of GPU types"),
        ("[rates]\ngpu_parts = { shared = 0 }", "rates.gpu_parts.shared must be a part of a GPU"),
        ("[rates]\ngpu_parts = { shared = 2 }", "rates.gpu_parts.shared must be a part of a GPU"),
    ],
)
def test_config_error_names_file_or_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FFDL_LEASE_S", "soon", "FFDL_LEASE_S"),
        ("FFDL_CHECK_IMAGES", "maybe", "FFDL_CHECK_IMAGES"),
        ("FFDL_LOG_FILES", "many", "log_files must be a whole number"),
        ("FFDL_CONFIG", "/no/such.toml", "FFDL_CONFIG"),
    ],
)
def test_config_error_names_environment_variable_or_key(tmp_path: Path, name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("silent_s", "", 900.0),
        ("silent_s", "silent_s = 0", 0.0),
        ("silent_s", "silent_s = 60", 60.0),
        ("log_file_size", "", "64MiB"),
        ("log_rate", "log_rate = '2MB'", "2MB"),
        ("network_minimum", 'network_minimum = "none"', NetworkLevel.NONE),
        ("data_mount", "", "auto"),
        ("data_mount", 'data_mount = "never"', "never"),
        ("cache_dir", "", ""),
        ("cache_dir", 'cache_dir = ""', ""),
        ("cache_dir", 'cache_dir = "/var/cache/ffdl"', "/var/cache/ffdl"),
        ("cache_bytes", "", 0),
        ("cache_bytes", "cache_bytes = 0", 0),
        ("cache_bytes", "cache_bytes = 4096", 4096),
        ("cache_bytes", 'cache_bytes = "500GB"', 500 * 10**9),
    ],
)
def test_setting_is_read_from_file_or_has_its_default(tmp_path: Path, key: str, text: str, value: object) -> None:
    assert getattr(load(tmp_path, text), key) == value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("silent_s", "7.5", 7.5),
        ("log_files", "2", 2),
        ("data_mount", "always", "always"),
        ("cache_bytes", "500GB", 500 * 10**9),
        ("cache_bytes", "4096", 4096),
        ("cache_bytes", "0", 0),
    ],
)
def test_setting_is_read_from_environment(tmp_path: Path, key: str, text: str, value: object) -> None:
    assert getattr(load(tmp_path, "silent_s = 60", **{f"FFDL_{key.upper()}": text}), key) == value


def framework(name: str, version: str) -> Framework:
    return Framework(name, version, "true")


def test_resolve_image_finds_sif_files_and_registry_images(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "custom.sif").touch()
    settings = load(
        tmp_path,
        f'images_dirs = ["{images}"]\n[frameworks.pytorch.versions]\n"2.6" = "custom"\n'
        '[frameworks.mxnet.versions]\n"1" = "docker://mx/net:1"\n',
    )
    sif = str(images / "custom.sif")
    plain = ("Host.example.org/net:V1", "localhost/net", "R:5000/a/b", f"a/b@sha256:{'0' * 64}", "ubuntu:22.04")
    expected = {
        **{("custom", version): sif for version in ("python-numpy", sif, "custom.sif")},
        **{("custom", version): f"docker://{version}" for version in (*plain, "tomcli/pytorch:1")},
        ("custom", "oras://x/y"): "oras://x/y",
        ("pytorch", "2.6"): sif,
        ("pytorch", "v0.2"): "docker://pytorch/pytorch:v0.2",
        ("mxnet", "1"): "docker://mx/net:1",
    }
    assert {named: resolve_image(settings, framework(*named)) for named in expected} == expected
    assert known_frameworks(settings)["mxnet"] == ("1",)
    assert "*" in known_frameworks(settings)["custom"]


def test_resolve_image_uses_image_location(tmp_path: Path) -> None:
    settings = load(tmp_path)
    expected = {
        ("my-image", "v1", "r.example.org", "team"): "docker://r.example.org/team/my-image:v1",
        ("my-image", "v1", "r.example.org", ""): "docker://r.example.org/my-image:v1",
        ("pytorch", "v0.2", "", "team"): "docker://pytorch/pytorch:v0.2",
    }
    for (name, version, *place), image in expected.items():
        located = Framework(name, version, "true", image_location=ImageLocation(*place))
        assert resolve_image(settings, located) == image


@pytest.mark.usefixtures("bound_by_modes", "joined_later")
def test_resolve_image_explains_closed_directory_of_image(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir(0)
    image = tmp_path / "project/net.sif"
    with pytest.raises(
        UnknownImage, match=f"{image} cannot be reached: Permission denied; .*; chmod u.rwx {image.parent}$"
    ):
        resolve_image(load(tmp_path), framework("custom", str(image)))


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("theano", "1", "known are caffe, "),
        ("jax", "9", "known are debian"),
        ("custom", "nothing-here", "make images"),
        ("custom", "/no/such.sif", "does not exist"),
        ("custom", "no-such.sif", "is in none of"),
        ("custom", "..", "make images"),
        ("custom", "oci:/data/layout:v1", "apptainer build NAME.sif oci:/data/layout:v1"),
        ("custom", "docker-archive:/data/image.tar", "not in a registry"),
        ("custom", "Team/Net:v1", "lower case"),
        ("custom", "docker://r.example.org/Team/net", "lower case"),
        ("custom", "team/my net:v1", "without spaces"),
    ],
)
def test_resolve_image_explains_unknown_or_invalid_image(tmp_path: Path, name: str, version: str, message: str) -> None:
    with pytest.raises(UnknownImage, match=message):
        resolve_image(load(tmp_path), framework(name, version))


def test_effective_backend_depends_on_sbatch_on_path(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    settings = load(tmp_path)
    assert settings.effective_backend({"PATH": str(tmp_path)})[0] == "local"  # it cannot be run
    (tmp_path / "sbatch").chmod(0o755)
    assert settings.effective_backend({"PATH": f":/nonexistent:{tmp_path}"}) == ("slurm", "sbatch is on the PATH")
    assert settings.effective_backend({"PATH": "/nonexistent"}) == ("local", "no sbatch on the PATH")
    assert load(tmp_path, 'backend = "x"').effective_backend({"PATH": str(tmp_path)}) == ("x", "")


def test_find_differences_names_changed_settings_without_values(tmp_path: Path) -> None:
    environ = {"PATH": "/nonexistent"}
    taken = take_fingerprints(load(tmp_path), environ)
    settings = {field.name for field in fields(Settings)} - {"origins", "host", "host_program", "hub_url"}
    assert set(taken) == settings | {"KUBECONFIG"}
    assert "sqlite" not in str(taken)
    text = 'images_dirs = ["/i"]\n[frameworks.custom]\ntemplate = "t"\n[backend.slurm]\nsince = 2027-01-20\n'
    changed = load(tmp_path, text, FFDL_DATABASE_URL="postgresql://me:secret@db/x")
    file = tmp_path / "ffdl.toml"
    assert find_differences(changed, environ, taken) == (
        f"backends ({file})",
        "database_url (environment FFDL_DATABASE_URL)",
        f"frameworks ({file})",
        f"images_dirs ({file})",
    )
    assert find_differences(load(tmp_path), environ, taken | {"newer": "x"}) == ()
    assert find_differences(load(tmp_path), environ, {}) == ()
    (tmp_path / "sbatch").touch(0o755)
    assert find_differences(load(tmp_path), {"PATH": str(tmp_path)}, taken) == ("backend (sbatch is on the PATH)",)


@pytest.mark.parametrize(
    ("text", "named", "differs"),
    [
        ('backend = "kubernetes"', "/other", True),
        ('[backend.kubernetes]\nnamespace = "a"', "/other", True),
        ('backend = "kubernetes"', "/one", False),
        ('backend = "kubernetes"', "", False),  # whoever names none takes what there is
        ('backend = "slurm"', "/other", False),
        ('[backend.kubernetes]\nkubeconfig = "/k"', "/other", False),
    ],
)
def test_find_differences_reports_kubeconfig_only_if_used(tmp_path: Path, text: str, named: str, differs: bool) -> None:
    settings = load(tmp_path, text)
    taken = take_fingerprints(settings, {"PATH": "/nonexistent", "KUBECONFIG": "/one"})
    found = find_differences(settings, {"PATH": "/nonexistent", "KUBECONFIG": named}, taken)
    assert found == (("KUBECONFIG (environment)",) if differs else ())


def test_named_clusters_makes_kubeconfig_paths_absolute() -> None:
    assert named_clusters({"KUBECONFIG": "/a/b::c"}) == f"/a/b:{Path.cwd() / 'c'}"
    assert named_clusters({}) == ""


def test_resolve_oci_image_returns_registry_image(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[frameworks.pytorch.oci]\ndebian = "registry.example.org/pytorch:debian"\n'
        '[frameworks.custom.oci]\npython-numpy = "numpy:1"\n[frameworks.mxnet.versions]\n"1" = "docker://mx/net:1"\n',
    )
    expected = {
        ("pytorch", "debian"): "registry.example.org/pytorch:debian",
        ("pytorch", "v0.2"): "pytorch/pytorch:v0.2",
        ("custom", "python-numpy"): "numpy:1",
        ("custom", "tomcli/pytorch:1"): "tomcli/pytorch:1",
        ("mxnet", "1"): "mx/net:1",
    }
    assert {named: resolve_oci_image(settings, framework(*named)) for named in expected} == expected
    mine = Framework("my-image", "v1", "true", image_location=ImageLocation("r.example.org", "team"))
    assert resolve_oci_image(settings, mine) == "r.example.org/team/my-image:v1"


@pytest.mark.parametrize("version", ["mine", "/scratch/mine.sif", "mine.sif", "oras://registry/mine:1"])
def test_resolve_oci_image_rejects_image_that_kubernetes_cannot_pull(tmp_path: Path, version: str) -> None:
    with pytest.raises(UnknownImage, match="not one that Kubernetes can pull") as error:
        resolve_oci_image(load(tmp_path), framework("custom", version))
    assert f'"{version}" = "registry/name:tag" in [frameworks.custom.oci]' in str(error.value)
    with pytest.raises(UnknownImage, match="is not known here"):
        resolve_oci_image(load(tmp_path), framework("nothing", "1"))


def test_rates_of_several_files_are_merged_by_key(tmp_path: Path) -> None:
    user = '[rates]\ncurrency = "EUR"\ngpu_hour = 1\ncpu_hour = 0.5\n'
    settings = load(tmp_path, "[rates]\ngpu_hour = 2\ngpu_types = { A100 = 3 }\n", user=user)
    rates = settings.rates
    assert (rates.currency, rates.gpu_hour, rates.cpu_hour) == ("EUR", 2.0, 0.5)
    assert (rates.of_gpu("a100"), rates.of_gpu("v100"), rates.of_gpu("")) == (3.0, 2.0, 2.0)
    assert rates.cost(gpu_seconds=7200, cpu_seconds=3600, gpu_type="A100") == 6.5
    explained = {key: (value, origin) for key, value, origin in settings.explain()}["rates"]
    assert explained == ("GPU 2, CPU 0.5, A100 3 EUR an hour", str(tmp_path / "ffdl.toml"))


def test_rates_cost_nothing_by_default_and_changed_rates_are_a_difference(tmp_path: Path) -> None:
    before, after = load(tmp_path), load(tmp_path, "[rates]\ngpu_hour = 2\n")
    assert not before.rates.is_set
    assert (before.rates.cost(gpu_seconds=3600, cpu_seconds=3600), str(before.rates)) == (0.0, "none")
    assert find_differences(after, {}, take_fingerprints(before, {})) == (f"rates ({tmp_path / 'ffdl.toml'})",)
