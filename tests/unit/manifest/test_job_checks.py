"""What the owner of a job of several learners may not have meant."""

from __future__ import annotations

import pytest

from tests.unit.manifest.samples import MINIMAL, notes, parse, warnings

BEGIN = "name: job\nmemory: 1GB\n"


def said(command: str, rest: str = "", options: dict[str, str] | None = None) -> list[str]:
    text = f"{BEGIN}framework: {{name: custom, version: image, command: '{command}'}}\n{rest}"
    parsed = parse(text, options)
    assert parsed.spec is not None
    return warnings(parsed)


@pytest.mark.parametrize(
    ("asked", "made"), [("9", 3), ("4", 3), ("x", 0), ("0", 0), ("-1", 0), ("", 0), ("$N", 0), ("1.5", 1), ("²", 0)]
)
def test_ps_hosts_count_warns_if_job_cannot_have_that_many_parameter_servers(asked: str, made: int) -> None:
    (line,) = said(f"PS_HOSTS_COUNT={asked} run", "learners: 4\n")
    message = f"framework.command: PS_HOSTS_COUNT={asked} makes {made} of 4 learners parameter servers"
    assert line.startswith(f"m.yml:3:52: warning: {message}")


@pytest.mark.parametrize(
    "command", ["PS_HOSTS_COUNT=3 run", "PS_HOSTS_COUNT=02&&run", 'export PS_HOSTS_COUNT="2"; run', "run"]
)
def test_ps_hosts_count_does_not_warn_if_valid_or_absent(command: str) -> None:
    assert said(command, "learners: 4\n") == []


@pytest.mark.parametrize("asked", ["9" * 30, "9" * 5000])
def test_ps_hosts_count_of_any_length_leaves_one_learner_that_trains(asked: str) -> None:
    (line,) = said(f"PS_HOSTS_COUNT={asked} run", "learners: 4\n")
    assert f"PS_HOSTS_COUNT={asked[:60]} makes 3 of 4 learners parameter servers" in line


def test_ps_hosts_count_is_checked_in_env_and_for_one_learner_but_not_with_roles() -> None:
    (line,) = said("run", "learners: 2\nbatch: {env: {PS_HOSTS_COUNT: 2}}\n")
    assert "batch.env.PS_HOSTS_COUNT: PS_HOSTS_COUNT=2 makes 1 of 2 learners" in line
    (line,) = said("PS_HOSTS_COUNT=1 run")
    assert "makes 0 of 1 learners" in line
    assert said("PS_HOSTS_COUNT=9 run", "batch: {roles: {a: {}, b: {}}}\n") == []


def test_network_level_none_warns_if_job_has_several_learners() -> None:
    words = "warning: batch.network: at level none the 2 learners cannot reach each other"
    (line,) = said("run", "learners: 2\nbatch: {network: none}\n")
    assert line.startswith(f"m.yml:5:18: {words}")
    (line,) = said("run", "learners: 2\nbatch: {network: {level: none}}\n")
    assert line.startswith("m.yml:5:26: warning: batch.network.level: at level none")
    (line,) = said("run", "learners: 2\n", {"network": "none"})
    assert line.startswith("warning: --network: at level none")
    assert said("run", "batch: {network: none}\n") == said("run", "learners: 2\n") == []


@pytest.mark.parametrize(
    ("batch", "runs"),
    [
        ("{restart: learner, retry: {failures: 2}}", 9),
        ("{restart: learner, retry: {failures: 0}}", 0),
        ("{restart: learner}", 0),
        ("{retry: {failures: 2}}", 0),
    ],
)
def test_learner_restart_notes_total_runs_when_combined_with_retries(batch: str, runs: int) -> None:
    framework = "framework: {name: custom, version: image, command: run}\n"
    found = [one for one in notes(parse(f"{BEGIN}{framework}batch: {batch}\n")) if "retry.failures" in one]
    assert len(found) == bool(runs)
    assert all(f"a learner that always fails runs {runs} times" in one for one in found)


@pytest.mark.parametrize(
    ("option", "kind", "batch", "words"),
    [
        ("staging", "mount_cos", "{staging: ahead}", ""),
        ("staging", "mount_cos", "{staging: inline, array: 0-3}", ""),
        ("staging", "mount_cos", "{staging: ahead, array: 0-3}", "elements of an array bring their data"),
        ("staging", "inmem_datastore", "{staging: inline}", ""),
        ("staging", "directory", "{staging: ahead}", "nothing to bring ahead"),
        ("mount", "mount_cos", "{mount: always}", ""),
        ("mount", "mount_cos", "{mount: never, staging: ahead}", ""),
        ("mount", "mount_cos", "{mount: always, staging: ahead}", "staged ahead are not mounted"),
        ("mount", "s3_datastore", "{mount: always}", "of a type that is mounted"),
        ("mount", "directory", "{mount: auto}", "of a type that is mounted"),
    ],
)
def test_staging_or_mount_option_produces_note_only_if_it_has_no_effect(
    option: str, kind: str, batch: str, words: str
) -> None:
    connection = "{auth_url: 'https://s3.example.org', path: /d}"
    store = f"data_stores:\n- {{type: {kind}, training_data: {{container: c}}, connection: {connection}}}\n"
    found = [one for one in notes(parse(f"{MINIMAL}{store}batch: {batch}\n")) if f"batch.{option}" in one]
    assert (len(found), words in str(found)) == (1 if words else 0, True), found


@pytest.mark.parametrize(
    ("store", "warns"),
    [
        ("", True),
        (
            "type: s3_datastore, training_results: {container: r}, connection: {auth_url: 'https://s3.example.org'}",
            True,
        ),
        ("type: directory, training_data: {container: r}, connection: {path: /d}", True),
        ("type: directory, training_results: {container: r}, connection: {path: /d}", False),
        ("type: mount_cos, training_results: {container: r}, connection: {auth_url: 'https://s3.example.org'}", False),
    ],
)
def test_shared_checkpoints_warn_without_mounted_store_of_results(store: str, warns: bool) -> None:
    stores = f"data_stores:\n- {{id: a, {store}}}\n" if store else ""
    found = said("true", f"{stores}batch: {{checkpoint: {{shared: true}}}}\n")
    assert ["batch.checkpoint.shared: has no effect" in line for line in found] == [True] * warns
