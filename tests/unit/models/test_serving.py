from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.config import Settings, settings_of_model
from dragoman_service.errors import ConfigError
from dragoman_service.models.model import version_key
from dragoman_service.models.registry import VersionPolicy
from dragoman_service.models.serving import SERVING_NAME, ServingSettings, read_serving

VERSIONS = ("1", "2", "9", "10")
FULL = """
versions = ["1", "2"]
default_version = "@stable"

[labels]
stable = "1"
canary = "2"

[scheduling]
max_batch_segments = 8

[runtime]
precision = "int8"
"""


def read(directory: Path, text: str) -> ServingSettings:
    (directory / SERVING_NAME).write_text(text, encoding="utf-8")
    return read_serving(directory)


def test_defaults_without_settings_file(tmp_path: Path) -> None:
    assert read_serving(tmp_path) == ServingSettings(versions="all", default_version="latest")


def test_all_keys_are_read(tmp_path: Path) -> None:
    serving = read(tmp_path, FULL)

    assert serving.versions == ("1", "2")
    assert (serving.default_version, serving.labels) == ("@stable", {"stable": "1", "canary": "2"})
    assert serving.overrides == {"scheduling": {"max_batch_segments": 8}, "runtime": {"precision": "int8"}}


@pytest.mark.parametrize(
    ("text", "key", "value", "expected"),
    [
        ('version = "all"', "version", None, "one of the keys versions, default_version, labels, scheduling, runtime"),
        ('versions = "latest:0"', "versions", "latest:0", "`all`, `latest:N` with N from 1 to 100, or a list"),
        ('versions = "latest:101"', "versions", "latest:101", "`latest:N` with N from 1 to 100"),
        ("versions = []", "versions", [], "a list of 1 to 100 versions"),
        ("versions = [1]", "versions", [1], "a list of 1 to 100 versions"),
        ('versions = ["../1"]', "versions", ["../1"], "a list of 1 to 100 versions"),
        ("default_version = 3", "default_version", 3, "a valid string"),
        ('default_version = "a/b"', "default_version", "a/b", "`latest`, a version, or `@` and a label"),
        ('[labels]\n"a b" = "1"', "labels.a b", "a b", "a label of 1 to 64 letters"),
        ('[labels]\nstable = "1/2"', "labels.stable", "1/2", "a version: letters"),
        ("scheduling = 3", "scheduling", 3, "a valid dictionary"),
        ("versions = ", "models.directory", None, "TOML"),
    ],
)
def test_error_of_invalid_value_has_file_and_limit(
    tmp_path: Path, text: str, key: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    assert str(tmp_path / SERVING_NAME) in str(caught.value)
    assert key in caught.value.setting
    assert value in (None, caught.value.value)
    assert expected in caught.value.expected


def test_error_of_unreadable_settings_has_the_file(tmp_path: Path) -> None:
    (tmp_path / SERVING_NAME).mkdir()

    with pytest.raises(ConfigError, match="a readable file"):
        read_serving(tmp_path)


def test_model_settings_override_server_settings() -> None:
    serving = ServingSettings(scheduling={"max_batch_segments": 8}, runtime={"precision": "int8"})

    merged = settings_of_model(Settings(), serving, origin=Path("serving.toml"))

    assert (merged.scheduling.max_batch_segments, merged.runtime.precision) == (8, "int8")
    assert merged.scheduling.max_batch_rows == Settings().scheduling.max_batch_rows
    assert merged.model_copy(update={"scheduling": Settings().scheduling, "runtime": Settings().runtime}) == Settings()


@pytest.mark.parametrize(
    ("serving", "setting", "value", "expected"),
    [
        (
            {"scheduling": {"max_batch_segments": 0}},
            "serving.toml: scheduling.max_batch_segments",
            0,
            "greater than or equal to 1",
        ),
        ({"scheduling": {"threads": 2}}, "serving.toml: scheduling.threads", None, "scheduling.num_workers"),
        ({"runtime": {"device": "tpu"}}, "serving.toml: runtime.device", "tpu", "'auto', 'cpu' or 'cuda'"),
        ({"scheduling": {"max_queue_segments": 1}}, "with serving.toml", 2048, "at most scheduling.max_queue_segments"),
    ],
)
def test_error_of_invalid_override_has_the_file(
    serving: dict[str, object], setting: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of_model(Settings(), ServingSettings.model_validate(serving), origin=Path("serving.toml"))

    assert setting in caught.value.setting
    assert caught.value.value == value
    assert expected in caught.value.expected


def policy(**serving: object) -> VersionPolicy:
    return VersionPolicy(serving=ServingSettings.model_validate(serving))


@pytest.mark.parametrize(
    ("serving", "selected"),
    [
        ({}, {"1", "2", "9", "10"}),
        ({"versions": "latest:1"}, {"10"}),
        ({"versions": "latest:2"}, {"9", "10"}),
        ({"versions": "latest:100"}, {"1", "2", "9", "10"}),
        ({"versions": ["2", "9", "7"]}, {"2", "9"}),
        ({"versions": "latest:1", "labels": {"stable": "2"}}, {"2", "10"}),
        ({"versions": "latest:1", "default_version": "1"}, {"1", "10"}),
        ({"versions": "latest:1", "default_version": "@old", "labels": {"old": "1"}}, {"1", "10"}),
        ({"versions": "latest:1", "labels": {"stable": "7"}}, {"10"}),
    ],
)
def test_policy_selects_listed_labelled_and_default_versions(serving: dict[str, object], selected: set[str]) -> None:
    assert policy(**serving).selected(VERSIONS) == selected


@pytest.mark.parametrize(
    ("serving", "default"),
    [
        ({}, "10"),
        ({"default_version": "9"}, "9"),
        ({"default_version": "7"}, None),
        ({"default_version": "@stable", "labels": {"stable": "2"}}, "2"),
        ({"default_version": "@stable"}, None),
    ],
)
def test_default_version_is_the_latest_unless_configured(serving: dict[str, object], default: str | None) -> None:
    assert policy(**serving).default(VERSIONS) == default


def test_without_versions_there_is_no_default() -> None:
    assert policy().default(()) is None


def test_label_set_at_run_time_overrides_settings_and_can_be_removed() -> None:
    labelled = policy(labels={"stable": "1", "canary": "2"}).with_label("stable", "9").with_label("canary", None)

    assert labelled.labels == {"stable": "9"}
    assert labelled.labels_of("9") == ("stable",)
    assert labelled.labels_of("1") == ()


def test_default_version_follows_its_label() -> None:
    by_label = policy(default_version="@stable", labels={"stable": "1"})

    assert by_label.with_label("stable", "9").default(VERSIONS) == "9"
    assert by_label.with_label("stable", None).default(VERSIONS) is None


def test_requested_old_version_is_selected() -> None:
    latest = policy(versions="latest:1")

    assert latest.with_requested("2", VERSIONS).selected(VERSIONS) == {"2", "10"}
    assert latest.with_requested("10", VERSIONS) == latest
    assert latest.with_requested("2", VERSIONS).without_requested(["2"]) == latest


@given(versions=st.sets(st.from_regex(r"[0-9]{1,3}", fullmatch=True)), number=st.integers(1, 100))
def test_latest_n_selects_the_n_newest_versions(versions: AbstractSet[str], number: int) -> None:
    selected = policy(versions=f"latest:{number}").selected(versions)

    assert len(selected) == min(number, len(versions))
    assert all(version_key(new) > version_key(old) for new in selected for old in versions - selected)
