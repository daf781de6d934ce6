from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.models.names import version_key
from service.models.serving import ServingSettings, VersionPolicy

VERSIONS = ("1", "2", "9", "10")


def policy(**serving: object) -> VersionPolicy:
    return VersionPolicy(serving=ServingSettings.model_validate(serving))


@pytest.mark.parametrize(
    ("serving", "wanted"),
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
def test_what_the_rule_says_and_what_is_pointed_to_is_wanted(serving: dict[str, object], wanted: set[str]) -> None:
    assert policy(**serving).wanted(VERSIONS) == wanted


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
def test_the_default_is_the_latest_unless_one_is_named(serving: dict[str, object], default: str | None) -> None:
    assert policy(**serving).default(VERSIONS) == default


def test_of_no_version_there_is_no_default() -> None:
    assert policy().default(()) is None


def test_a_label_that_is_set_wins_over_the_settings_and_can_be_removed() -> None:
    labelled = policy(labels={"stable": "1", "canary": "2"}).with_label("stable", "9").with_label("canary", None)

    assert labelled.labels == {"stable": "9"}
    assert labelled.labels_of("9") == ("stable",)
    assert labelled.labels_of("1") == ()


def test_a_default_by_label_follows_the_label() -> None:
    by_label = policy(default_version="@stable", labels={"stable": "1"})

    assert by_label.with_label("stable", "9").default(VERSIONS) == "9"
    assert by_label.with_label("stable", None).default(VERSIONS) is None


def test_an_old_version_that_was_asked_for_stays_and_the_newest_needs_no_asking() -> None:
    latest = policy(versions="latest:1")

    assert latest.with_demand("2", VERSIONS).wanted(VERSIONS) == {"2", "10"}
    assert latest.with_demand("10", VERSIONS) == latest
    assert latest.with_demand("2", VERSIONS).without_demand(["2"]) == latest


@given(versions=st.sets(st.from_regex(r"[0-9]{1,3}", fullmatch=True)), number=st.integers(1, 100))
def test_the_newest_are_wanted_and_no_more_than_asked_for(versions: AbstractSet[str], number: int) -> None:
    wanted = policy(versions=f"latest:{number}").wanted(versions)

    assert len(wanted) == min(number, len(versions))
    assert all(version_key(kept) > version_key(left) for kept in wanted for left in versions - wanted)
