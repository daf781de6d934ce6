import pytest

from dragoman_service.errors import InvalidFieldError
from dragoman_service.models.model import (
    ModelReference,
    check_label,
    parse_reference,
    parse_version,
    version_key,
)


@pytest.mark.parametrize(
    ("model", "reference"),
    [
        ("tiny", ModelReference(name="tiny")),
        ("tiny/1.0-rc1", ModelReference(name="tiny", version="1.0-rc1")),
        ("tiny@stable", ModelReference(name="tiny", label="stable")),
    ],
)
def test_valid_model_references_are_parsed(model: str, reference: ModelReference) -> None:
    assert parse_reference(model) == reference


@pytest.mark.parametrize("model", ["", "/1", "tiny/", "tiny@", "@stable", "tiny/1@stable", "tiny@a/1", "../x", "a b"])
def test_malformed_model_reference_is_rejected(model: str) -> None:
    with pytest.raises(InvalidFieldError, match="`name`, `name/version` or `name@label`"):
        parse_reference(model)


@pytest.mark.parametrize("model", ["tiny", "tiny@stable", ""])
def test_version_without_model_is_rejected(model: str) -> None:
    with pytest.raises(InvalidFieldError, match="must be `name/version`"):
        parse_version(model)


@pytest.mark.parametrize("label", ["", "a" * 65, "a b", ".a", "ä"])
def test_malformed_label_is_rejected(label: str) -> None:
    with pytest.raises(InvalidFieldError, match=r"label: .* must be 1 to 64 letters"):
        check_label(label)


def test_versions_are_sorted_by_their_numbers() -> None:
    versions = ["2026.10.1", "1.0", "v2", "2026.9.30", "1.0-rc1", "10", "9", "1.0.1"]

    assert sorted(versions, key=version_key) == ["v2", "1.0", "1.0-rc1", "1.0.1", "9", "10", "2026.9.30", "2026.10.1"]
