"""The image policy of a site: which images it permits, from where, and what its refusals say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ffdl_batch.config import ConfigError, Settings, load_settings
from ffdl_batch.config.image_policy import ImageForbidden, permit
from ffdl_batch.config.images import UnknownImage, resolve_image, resolve_oci_image
from ffdl_batch.config.settings import ImagePolicy
from ffdl_batch.config.tables import read_image_policy
from ffdl_batch.domain.job.spec import Framework, ImageLocation

DIGEST = "sha256:" + "0a" * 32
KEY = "0123456789ABCDEF0123456789ABCDEF01234567"
POLICY = read_image_policy(
    {
        "allow": [
            "docker://docker.io/library", "docker://docker.io/pytorch", "docker://registry.site.example:5000/ml/",
            "docker://Quay.IO", "oras://registry.site.example/sif", "library://site/collection",
            "library://library.site.example/site", "docker://xn--bcher-kva.example",
        ],
        "require_digest": ["docker://quay.io", "library://"],
        "mirrors": {
            "docker.io": "mirror.site.example/hub", "docker.io/library": "mirror.site.example:443/official",
            "registry.site.example": "other.example",
        },
    }
)  # fmt: skip
HUB, OFFICIAL = "docker://mirror.site.example/hub", "docker://mirror.site.example:443/official"


@pytest.mark.parametrize(
    ("image", "started"),
    [
        ("docker://ubuntu", f"{OFFICIAL}/ubuntu:latest"),
        ("docker://ubuntu:22.04", f"{OFFICIAL}/ubuntu:22.04"),
        ("docker://docker.io/library/ubuntu:22.04", f"{OFFICIAL}/ubuntu:22.04"),
        ("docker://index.docker.io/ubuntu", f"{OFFICIAL}/ubuntu:latest"),
        ("docker://pytorch/pytorch:2.8", f"{HUB}/pytorch/pytorch:2.8"),
        ("DOCKER://Docker.IO/pytorch/pytorch:2.8", f"{HUB}/pytorch/pytorch:2.8"),
        (f"docker://pytorch/pytorch:2.8@{DIGEST}", f"{HUB}/pytorch/pytorch@{DIGEST}"),
        ("docker://registry.site.example:5000/ml/a/b:1", "docker://registry.site.example:5000/ml/a/b:1"),
        (f"docker://quay.io/a@{DIGEST}", f"docker://quay.io/a@{DIGEST}"),
        ("oras://registry.site.example/sif/a:1", "oras://other.example/sif/a:1"),
        ("docker://xn--bcher-kva.example/a:1", "docker://xn--bcher-kva.example/a:1"),
        ("library://site/collection/a:sha256.00", "library://site/collection/a:sha256.00"),
        ("library://library.site.example/site/b/a:sha256.00", "library://library.site.example/site/b/a:sha256.00"),
    ],
)
def test_permitted_image_starts_in_full_at_its_mirror(image: str, started: str) -> None:
    assert permit(POLICY, image, is_private=False) == started


@pytest.mark.parametrize(
    "image",
    [
        "docker://evil/pytorch:1", "docker://pytorch-evil/a:1", "docker://docker.io.evil.example/pytorch/a",
        "docker://docker.io:443/pytorch/a", "docker://docker.io./pytorch/a", "docker://registry.site.example/ml/a",
        "docker://registry.site.example:5001/ml/a", "docker://registry.site.example:5000/mlx/a",
        "docker://registry.site.example:5000/a", "oras://registry.site.example/a:1", "oras://quay.io/a:1",
        "oras://pytorch/pytorch:1", "library://site/other/a:sha256.00", "library://site/collection/a/b:sha256.00",
        "library://evil.example/site/collection/a:sha256.00", "docker://bucher.example/a:1",
        "docker://mirror.site.example/hub/pytorch/pytorch:2.8",
    ],
)  # fmt: skip
def test_image_outside_of_allowed_places_is_refused_with_rule_and_cure(image: str) -> None:
    with pytest.raises(ImageForbidden, match=r"is not permitted by image_policy\.allow; use an image from docker://"):
        permit(POLICY, image, is_private=False)


@pytest.mark.parametrize(
    "image",
    [
        "docker://docker.io/pytorch/../evil/a", "docker://docker.io/pytorch//a", "docker://docker.io/pytorch/%2e%2e/a",
        "docker://docker.io@evil.example/pytorch/a", "docker://quay.io/a@sha256:00", "docker://b\u00fccher.example/a:1",
        "docker://d\u043ecker.io/pytorch/a", "docker://docker.io/Pytorch/a", "shub://pytorch/a", "https://quay.io/a.sif",
        "instance://a", "docker-daemon://a:1", "docker://",
    ],
)  # fmt: skip
def test_image_that_cannot_be_compared_is_refused(image: str) -> None:
    with pytest.raises(ImageForbidden, match=r"the site permits only image files and registry images \(docker://"):
        permit(POLICY, image, is_private=False)


@pytest.mark.parametrize(
    ("image", "cure"),
    [
        ("docker://quay.io/a:1", "docker://quay.io/a@sha256:DIGEST"),
        ("docker://quay.io/a", "docker://quay.io/a@sha256:DIGEST"),
        ("library://site/collection/a:1", "library://site/collection/a:sha256.DIGEST"),
    ],
)
def test_image_without_required_digest_is_refused_with_form_of_digest(image: str, cure: str) -> None:
    with pytest.raises(ImageForbidden, match=rf"'{re.escape(image)}' has no digest, .*require_digest.*; write {cure}"):
        permit(POLICY, image, is_private=False)


def test_image_with_credentials_is_not_taken_from_mirror() -> None:
    started = "docker://docker.io/pytorch/private:1"
    assert permit(POLICY, "docker://pytorch/private:1", is_private=True) == started


def test_image_file_must_be_below_allowed_directory_after_links_are_followed(tmp_path: Path) -> None:
    allowed, outside = tmp_path / "images", tmp_path / "images-of-ada"
    for directory in (allowed, allowed / "more", outside):
        directory.mkdir()
        (directory / "a.sif").touch()
    (tmp_path / "link").symlink_to(allowed)
    (allowed / "out.sif").symlink_to(outside / "a.sif")
    (outside / "in.sif").symlink_to(allowed / "a.sif")
    policy = read_image_policy({"allow": [f"{tmp_path}/link/"]})
    good, more = str(allowed / "a.sif"), str(allowed / "more/a.sif")
    started = {good: good, more: more, f"{tmp_path}/link/a.sif": good, f"{outside}/in.sif": good}
    started |= {f"{allowed}/more/../a.sif": good, f"{allowed}/missing.sif": f"{allowed}/missing.sif"}
    assert {path: permit(policy, path, is_private=False) for path in started} == started
    for path in (f"{allowed}/out.sif", f"{outside}/a.sif", f"{allowed}/../images-of-ada/a.sif", "/a.sif"):
        with pytest.raises(
            ImageForbidden, match=rf"{path}.* is not permitted by image_policy\.allow; .* {tmp_path}/link, or"
        ):
            permit(policy, path, is_private=False)
    with pytest.raises(ImageForbidden, match=r"docker://docker\.io/library/ubuntu"):
        permit(policy, "docker://ubuntu", is_private=False)


def test_schemes_and_root_permit_all_images_of_their_kind() -> None:
    policy = read_image_policy({"allow": ["docker://", "library://", "/"]})
    for image in ("docker://quay.io/a:1", "library://a/b/c:1", "/a.sif"):
        assert permit(policy, image, is_private=False) == image
    with pytest.raises(ImageForbidden):
        permit(policy, "oras://quay.io/a:1", is_private=False)


def test_site_without_policy_changes_no_image() -> None:
    for image in ("docker://ubuntu", "shub://a/b", "/a/../b.sif"):
        assert permit(ImagePolicy(), image, is_private=False) == image


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image_policy = 1", "image_policy must be a table, not 1"),
        (
            "[image_policy]\nallowed = []",
            r"image_policy\.allowed is not a known key; the keys are allow, ",
        ),
        ("[image_policy]\nallow = []", r"image_policy\.allow must be a list of strings that is not empty, not \[\]"),
        ("[image_policy]\nallow = ['']", r"image_policy\.allow must be a list of strings"),
        ("[image_policy]\nallow = ['quay.io/a']", "'quay.io/a' must be an absolute path or start with docker://, "),
        ("[image_policy]\nallow = ['docker://pytorch']", "has no registry host; write docker://docker.io/pytorch"),
        ("[image_policy]\nallow = ['docker://quay.io/a:1']", "write SCHEME://HOST/PATH without tag or digest"),
        ("[image_policy]\nallow = ['docker://quay.io/../a']", "write SCHEME://HOST/PATH without tag or digest"),
        ("[image_policy]\nmirrors = ['quay.io']", r"image_policy\.mirrors must be a table of strings"),
        (
            "[image_policy.mirrors]\n'docker://quay.io' = 'm.example'",
            r"image_policy\.mirrors: .* is not a valid prefix",
        ),
        ("[image_policy]\nsigners = ['A1']", "'A1' is not a fingerprint; apptainer key list"),
    ],
)
def test_wrong_image_policy_is_reported_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/site\.toml: .*{message}"):
        site_settings(tmp_path, monkeypatch, text)


def site_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Settings:
    """The settings under a site file with this text."""
    file = tmp_path / "site.toml"
    monkeypatch.setattr("ffdl_batch.config.load.SITE_FILES", (file,))
    file.write_text(text)
    return load_settings(cwd=tmp_path, environ={"HOME": str(tmp_path)})


def test_only_site_file_sets_image_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = site_settings(tmp_path, monkeypatch, f"[image_policy]\nsigners = ['{KEY[:8].lower()} {KEY[8:]}']\n")
    assert settings.image_policy == ImagePolicy(signers=(KEY,))
    assert ("image_policy", f'mirrors = none, signers = ["{KEY}"]', str(tmp_path / "site.toml")) in settings.explain()
    (tmp_path / ".config/ffdl").mkdir(parents=True)
    (tmp_path / ".config/ffdl/config.toml").write_text("[image_policy]\nallow = ['docker://']\n")
    with pytest.raises(ConfigError, match=r"config\.toml: only .*site\.toml may set image_policy"):
        load_settings(cwd=tmp_path, environ={"HOME": str(tmp_path)})
    (tmp_path / ".config/ffdl/config.toml").unlink()
    environ = {"HOME": str(tmp_path), "FFDL_IMAGE_POLICY": "x"}
    assert load_settings(cwd=tmp_path, environ=environ).image_policy.signers == (KEY,)


def test_policy_judges_image_of_every_framework_and_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The users' own tables of frameworks may name any image."""
    (tmp_path / ".config/ffdl").mkdir(parents=True)
    (tmp_path / ".config/ffdl/config.toml").write_text(
        "[frameworks.mine.versions]\n1 = 'docker://evil.example/a:1'\n[frameworks.mine.oci]\n2 = 'evil.example/a:1'\n"
        "[frameworks.custom.oci]\nmine = 'quay.io/a:1'\n"
    )
    policy = "[image_policy]\nallow = ['docker://quay.io']\nmirrors = {'quay.io' = 'mirror.example/quay'}\n"
    settings = site_settings(tmp_path, monkeypatch, policy)
    located = Framework("a", "1", "true", image_location=ImageLocation("evil.example", ""))
    for framework in (Framework("mine", "1", "true"), Framework("pytorch", "2", "true"), located):
        for resolve in (resolve_image, resolve_oci_image):
            with pytest.raises(UnknownImage, match=r"image_policy\.allow") as refused:
                resolve(settings, framework)
            assert refused.value.code == "C107"
    with pytest.raises(UnknownImage, match=r"'docker://evil\.example/a:1' is not permitted by image_policy\.allow"):
        resolve_oci_image(settings, Framework("mine", "2", "true"))
    assert resolve_image(settings, Framework("custom", "quay.io/a:1", "true")) == "docker://mirror.example/quay/a:1"
    assert resolve_oci_image(settings, Framework("custom", "quay.io/a:1", "true")) == "mirror.example/quay/a:1"
    assert resolve_oci_image(settings, Framework("custom", "mine", "true")) == "mirror.example/quay/a:1"
