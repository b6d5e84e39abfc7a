"""Data stores: blocks, types, paths, credentials."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.data.store_kinds import FSSPEC_PROTOCOLS
from ffdl_batch.domain.job.spec import StoreType
from tests.unit.manifest.samples import MINIMAL, errors, notes, parse, read, warnings


def store(text: str) -> str:
    return f"{MINIMAL}data_stores:\n  - {text}\n"


HOST = "{id: a, type: mount_volume, training_data: {container: in}, training_results: {container: out}, connection: %s}"


def test_data_stores_may_be_absent_or_empty() -> None:
    assert read(MINIMAL).data_stores == read(MINIMAL + "data_stores: []\n").data_stores == ()


def test_host_mount_store_reads_containers_and_path() -> None:
    (one,) = read(store(HOST % "{type: host_mount, name: n, path: /data/x/}")).data_stores
    assert (one.type, one.effective_type) == (StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT)
    assert (one.training_data, one.training_results, one.connection["path"]) == ("in", "out", "/data/x")
    assert not one.is_copied


@pytest.mark.parametrize(
    ("path", "absolute"),
    [("data", "/base/data"), ("./a/../b", "/base/b"), ("../c", "/c"), (".", "/base"), ("/x", "/x")],
)
def test_store_path_is_resolved_relative_to_manifest(path: str, absolute: str) -> None:
    (one,) = read(store(HOST % f"{{type: host_mount, path: {path}}}")).data_stores
    assert one.connection["path"] == absolute


def test_store_path_rejects_relative_path_without_base_directory() -> None:
    assert errors(parse(store(HOST % "{type: host_mount, path: data}"), base_dir=""))


def test_mount_volume_store_warns_without_host_mount() -> None:
    (line,) = warnings(parse(store(HOST % "{path: /data}")))
    assert "FfDL mounts nothing for mount_volume alone" in line
    assert "connection: {type: host_mount, path: /a/directory}" in line


@pytest.mark.parametrize("mode", ["mount", "copy"])
def test_directory_store_supports_mount_and_copy_modes(mode: str) -> None:
    text = f"{{id: d, type: directory, training_data: {{container: in}}, connection: {{path: x, mode: {mode}}}}}"
    (one,) = read(store(text)).data_stores
    assert (one.effective_type, one.connection["path"], one.is_copied) == (
        StoreType.DIRECTORY,
        "/base/x",
        mode == "copy",
    )


def test_directory_store_warns_about_copy_mode_without_training_data() -> None:
    results = "{id: d, type: directory, training_results: {}, connection: {path: /x%s}}"
    (line,) = warnings(parse(store(results % ", mode: copy")))
    assert "connection.mode: mode copy is for training_data, and there is none: nothing is copied" in line
    assert "write training_data: {container: NAME}, or leave the mode out" in line
    assert line.startswith("m.yml:"), line
    assert not warnings(parse(store(results % "")))


@pytest.mark.parametrize(
    "words",
    [
        "type: mount_cos, connection: {auth_url: 'https://s3.example.org'}",
        "type: s3_datastore, connection: {region: eu-west-1}",
        "type: swift_datastore, connection: {auth_url: 'https://id.example.org/v3'}",
        "type: mount_volume, connection: {type: host_mount, path: /x}",
    ],
)
def test_data_store_accepts_results_without_training_data(words: str) -> None:
    parsed = parse(store(f"{{id: a, {words}, training_results: {{container: out}}}}"))
    assert [str(found) for found in parsed.findings if "data_stores" in str(found)] == []
    assert parsed.spec is not None
    (one,) = parsed.spec.data_stores
    assert (one.training_data, one.training_results) == ("", "out")


def test_directory_store_uses_its_path_for_results_without_container() -> None:
    (one,) = read(store("{id: d, type: directory, training_results: {}, connection: {path: /x}}")).data_stores
    assert (one.training_data, one.training_results) == ("", ".")


@pytest.mark.parametrize(("text", "parts"), [
    ("{id: a, training_data: {container: c}, connection: {}}", ["[0].type: Data store type is not set"]),
    ("{id: a, type: mount_cos, training_data: {container: c}, connection: {type: nfs}}",
     ["[0].connection.type: 'nfs' is not a type of data store"]),
    ("just text", ["data_stores[0]: a mapping is needed here, not a single value"]),
    ("~", ["data_stores[0]: a mapping is needed here, not nothing"]),
    (HOST % "[a]", ["[0].connection: a mapping is needed here, not a list"]),
    *((HOST % f"{{type: host_mount, path: {path}}}", ["[0].connection.path: a host_mount store needs a path"])
      for path in ("~", "''")),
    (HOST % "{type: host_mount, path: ~/data}", ["~ means nothing here"]),
    ("{id: d, type: directory, training_data: {container: in}, connection: {path: x, mode: link}}",
     ["[0].connection.mode: 'link' is not a mode (write mount or copy)"]),
    ("{type: http_datastore, training_data: {container: a}, training_results: {container: b}, connection: "
     "{auth_url: http://w}}", ["[0].training_results: results cannot be stored on a web server"]),
    (HOST % "{path: [a]}", ["[0].connection.path: one text is needed here, not a list"]),
    (HOST.replace("container: in", "container: ../x") % "{type: host_mount, path: /x}", ["leads out of the store"]),
    (HOST.replace("container: in", "container: /x") % "{type: host_mount, path: /x}", ["leads out of the store"]),
])  # fmt: skip
def test_data_stores_reject_missing_or_wrong_field_at_its_line(text: str, parts: list[str]) -> None:
    lines = errors(parse(store(text)))
    assert len(lines) == len(parts)
    for line, part in zip(lines, parts, strict=True):
        assert part in line and line.startswith("m.yml:5:")


@pytest.mark.parametrize("address", ["https://[::1", "https://[zz]:9", "https://a]b", "https://a[b", "https://\u2100"])
@pytest.mark.parametrize("kind", ["s3", "swift", "gcs", "http", "softlayer"])
def test_data_store_reports_malformed_address_at_its_line(kind: str, address: str) -> None:
    kind += "_objectstore" if kind == "softlayer" else "_datastore"
    text = f"{{id: a, type: {kind}, training_data: {{container: c}}, connection: {{auth_url: '{address}'}}}}"
    (line,) = warnings(parse(store(text)))
    assert line.startswith("m.yml:5:") and "connection.auth_url: no job is taken with this: " in line
    assert line.endswith("is not the address of a store (write auth_url: https://HOST[:PORT])")


ACCOUNT = '{"client_email": "a@b", "private_key": "k", "token_uri": "https://t"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{not json", "service_account is not JSON"),
        ("[1]", "it has no client_email, private_key, token_uri"),
        ("7", "it has no client_email, private_key, token_uri"),
        (ACCOUNT.replace("private", "public"), "it has no private_key"),
        (ACCOUNT.replace('"k"', "5"), "it has no private_key"),
    ],
)
def test_gcs_store_rejects_literal_service_account_without_quoting_it(text: str, words: str) -> None:
    form = "{{id: a, type: gcs_datastore, training_data: {{container: c}}, connection: {{service_account: '{}'}}}}"
    (line,) = errors(parse(store(form.format(text))))
    assert line.startswith("m.yml:5:") and words in line and "write ${file:PATH}" in line
    assert "not json" not in line and "a@b" not in line
    for right in (ACCOUNT, "${file:/key.json}", "${secret:account}"):
        assert errors(parse(store(form.format(right)))) == []


@pytest.mark.parametrize(
    "kind", ["mount_cos", "swift_datastore", "gcs_datastore", "http_datastore", "fsspec_datastore"]
)
def test_remote_store_rejects_url_as_container(kind: str) -> None:
    start = f"{{id: a, type: {kind}, connection: {{auth_url: 'https://s.example.org', protocol: ftp}}, "
    (line,) = errors(parse(store(start + "training_data: {container: 's3://b/x'}}")))
    assert "training_data.container: 's3://b/x' is a URL" in line and "(write container: b/x)" in line
    assert errors(parse(store(start + "training_data: {container: 'b/http:/x'}}"))) == []


@pytest.mark.parametrize("key", ["project_id", "domain_name"])
def test_swift_store_warns_about_keystone_option_with_version_1_address(key: str) -> None:
    form = "{{id: a, type: swift_datastore, training_data: {{container: c}}, connection: {{auth_url: '{}', {}: x}}}}"
    (line,) = warnings(parse(store(form.format("https://s.example.org/auth/v1.0", key))))
    assert f"connection.{key}: {key} has no effect with an auth_url that ends with /v1" in line and "/v3" in line
    assert warnings(parse(store(form.format("https://s.example.org/v3", key)))) == []


@pytest.mark.parametrize(("protocol", "cure"), [("sfpt", "did you mean sftp?"), ("qqqqq", "install a library for it")])
def test_fsspec_store_warns_about_unknown_protocol(protocol: str, cure: str) -> None:
    text = f"{{id: a, type: fsspec_datastore, training_data: {{container: c}}, connection: {{protocol: {protocol}}}}}"
    (line,) = warnings(parse(store(text)))
    assert f"connection.protocol: '{protocol}' is not a protocol of fsspec" in line and cure in line


def test_fsspec_protocols_include_registry_of_installed_fsspec() -> None:
    from fsspec.registry import known_implementations

    assert set(known_implementations) <= FSSPEC_PROTOCOLS


def test_data_stores_accept_several_stores_and_reject_duplicate_id() -> None:
    text = (
        f"{MINIMAL}data_stores:\n"
        "  - {id: a, type: directory, training_data: {container: c}, connection: {path: /x}}\n"
        "  - {id: b, type: mount_cos, training_results: {container: r}, connection: {auth_url: u}}\n"
    )
    assert [s.id for s in read(text).data_stores] == ["a", "b"]
    (line,) = errors(parse(text.replace("id: b", "id: a")))
    assert "data_stores[1].id: 'a' is also the id of data_stores[0] (give each its own id)" in line


def test_data_store_gets_numbered_id_if_none_is_given() -> None:
    (one,) = read(store("{type: inmem_datastore, training_data: {container: c}}")).data_stores
    assert one.id == "store-1"


def test_connection_type_overrides_store_type_with_warning() -> None:
    text = (
        "{id: a, type: mount_cos, training_data: {container: c}, connection: {type: s3_datastore, auth_url: http://u}}"
    )
    parsed = parse(store(text))
    assert parsed.spec is not None
    assert parsed.spec.data_stores[0].effective_type is StoreType.S3_DATASTORE and parsed.spec.data_stores[0].is_copied
    assert "connection.type s3_datastore wins over type mount_cos" in warnings(parsed)[0]
    assert warnings(parse(store(text.replace("mount_cos", "s3_datastore")))) == []


def test_fsspec_store_warns_about_protocol_and_accepts_library_options() -> None:
    text = "{{type: fsspec_datastore, training_data: {{container: c}}, connection: {{{}}}}}"
    lines = warnings(parse(store(text.format("protocol: s3, account_name: x"))))
    assert any(
        line.startswith("m.yml:5:") and "connection.protocol: no job is taken with this" in line for line in lines
    )
    parsed = parse(store(text.format('protocol: abfs, account_name: x, account_key: "${secret:k}"')))
    assert (warnings(parsed), [line for line in notes(parsed) if "account" in line]) == ([], [])


def test_connection_values_keep_raw_text() -> None:
    connection = "{auth_url: u, region: 0123, project_id: yes}"
    text = f"{{id: a, type: mount_cos, training_data: {{container: c}}, connection: {connection}}}"
    (one,) = read(store(text)).data_stores
    assert (one.connection["region"], one.connection["project_id"]) == ("0123", "yes")


def test_data_store_notes_missing_result_container() -> None:
    lines = notes(parse(store("{id: a, type: inmem_datastore, training_data: {container: c}}")))
    assert any("data_stores[0].training_results: no place for results is named" in line for line in lines)


def test_data_store_errors_are_reported_with_other_errors() -> None:
    lines = errors(parse(store("{id: a, type: mount_cos}") + "cpus: -1\n"))
    assert [line.split(": ")[2] for line in lines] == [
        "data_stores[0].training_data",
        "data_stores[0].connection",
        "cpus",
    ]


def test_s3_store_warns_about_empty_bucket() -> None:
    parsed = parse(store("{id: a, type: s3_datastore, training_data: {container: }, connection: {auth_url: u}}"))
    assert parsed.spec is not None and parsed.spec.data_stores[0].training_data == ""
    assert "[0].training_data.container: Data store bucket is not set; FfDL lets this pass" in warnings(parsed)[0]


PLACEHOLDERS = """\
name: {name}
memory: 1GB
data_stores:
  - id: mine
    type: s3_datastore
    training_data: {{container: {container}}}
    connection: {{auth_url: {url}, user_name: {user}, password: "{password}"}}
framework: {{name: custom, version: {image}, command: "cat <in"}}
"""
RIGHT = {"name": "x", "container": "c", "url": "http://s3", "user": "me", "password": "s3cr3t", "image": "i"}


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"name": "<the job's name>"}, "2:7: warning: name"),
        ({"container": "<your-bucket>"}, "data_stores[0].training_data.container"),
        ({"url": "<auth_url>"}, "data_stores[0].connection.auth_url"),
        ({"user": "<AWS_ACCESS_KEY_ID>"}, "data_stores[0].connection.user_name"),
        ({"password": "{{ password }}"}, "data_stores[0].connection.password"),
        ({"image": "<image>"}, "framework.version"),
        ({"image": "'{{image}}'"}, "framework.version"),
    ],
)
def test_manifest_warns_about_unfilled_placeholder(changed: dict[str, str], path: str) -> None:
    parsed = parse("# how to\n" + PLACEHOLDERS.format(**(RIGHT | changed)))
    assert parsed.spec is not None
    (line,) = [w for w in warnings(parsed) if "placeholder" in w]
    assert path in line and line.endswith("looks like a placeholder without a value (write the real value)")


@pytest.mark.parametrize("written", ["$BUCKET", "${BUCKET}"])
def test_manifest_warns_that_variables_are_not_expanded_in_stores(written: str) -> None:
    (line, _) = warnings(parse(PLACEHOLDERS.format(**(RIGHT | {"container": f"'{written}'"}))))
    assert line.startswith("m.yml:6:32: warning: data_stores[0].training_data.container: ")
    assert "is taken as it is written: variables are replaced in commands only (write the real value)" in line


def test_manifest_does_not_report_placeholder_as_credential() -> None:
    parsed = parse(PLACEHOLDERS.format(**(RIGHT | {"user": "<user>", "password": "<password>"})))
    assert len(warnings(parsed)) == 2 and "credentials stand" not in "".join(warnings(parsed))


def test_manifest_does_not_warn_about_text_resembling_placeholder() -> None:
    right = RIGHT | {"name": "a <b> c", "password": "${env:MINE}", "user": "${secret:me}", "image": "'a<b'"}
    assert warnings(parse(PLACEHOLDERS.format(**right))) == []


def test_data_store_warns_about_invalid_address_at_its_line() -> None:
    text = (
        f"{MINIMAL}data_stores:\n  - type: mount_cos\n    training_data: {{container: c}}\n    connection:\n"
        "      auth_url: s3.example.org\n"
    )
    (line,) = warnings(parse(text))
    assert line.startswith("m.yml:8:17: warning: data_stores[0].connection.auth_url: no job is taken with this: ")
    assert "'s3.example.org' is not the address of a store (write auth_url: https://HOST[:PORT])" in line
    sources = read(text).sources
    assert sources["data_stores[0].connection.auth_url"] == "manifest:8"


@pytest.mark.parametrize("value", ["0", "-1", "²", "٣", "60.0", "3601", "9" * 5000])
def test_data_store_refuses_timeout_that_is_not_a_number_of_seconds(value: str) -> None:
    connection = f"{{auth_url: 'https://s3', timeout_s: '{value}'}}"
    found = parse(store(f"{{id: a, type: mount_cos, training_data: {{container: in}}, connection: {connection}}}"))
    (line,) = [line for line in warnings(found) if "connection.timeout_s:" in line]
    assert f"'{value[:60]}' is not a number of seconds (write a whole number from 1 to 3600)" in line


@pytest.mark.parametrize(("kind", "key", "severity", "text"), [
    ("s3_datastore", "pasword", "warning", "did you mean password?"),
    ("s3_datastore", "key_file", "warning", "for another kind of data store and has no effect here (use one of path"),
    ("swift_datastore", "path_style", "warning", "(use one of domain_name, project_id, ca_file, timeout_s"),
    ("mount_cos", "unheard_of", "note", "this key is passed on as it is"),
    ("mount_cos", "path_style", "", ""),
    ("fsspec_datastore", "unheard_of", "", ""),
])  # fmt: skip
def test_data_store_reports_connection_key_only_if_it_is_not_used(
    kind: str, key: str, severity: str, text: str
) -> None:
    """What FfDL's manifests hold for no purpose is no fault, so all of it is told and nothing refused."""
    connection = f"{{auth_url: 'https://s3', protocol: sftp, host: h, {key}: 'true'}}"
    found = parse(store(f"{{id: a, type: {kind}, training_data: {{container: in}}, connection: {connection}}}"))
    said = {"warning": warnings(found), "note": notes(found)}
    about = [(name, line) for name, lines in said.items() for line in lines if f"connection.{key}:" in line]
    assert [name for name, _ in about] == ([severity] if severity else [])
    assert all(text in line for _, line in about)
