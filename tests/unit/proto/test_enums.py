import pytest

from dragoman.enums import (
    AttentionDetail,
    LongSentencePolicy,
    ModelState,
    Precision,
    Priority,
    TextFormat,
    WarningKind,
    WireEnum,
)
from dragoman.v1 import translation_pb2 as pb

RESPONSE_ENUMS = [
    ("WARNING_KIND", WarningKind, pb.WarningKind),
    ("MODEL_STATE", ModelState, pb.ModelState),
    ("PRECISION", Precision, pb.Precision),
]
REQUEST_ENUMS = [
    ("PRIORITY", Priority, pb.Priority),
    ("TEXT_FORMAT", TextFormat, pb.TextFormat),
    ("LONG_SENTENCE_POLICY", LongSentencePolicy, pb.LongSentencePolicy),
    ("ATTENTION_DETAIL", AttentionDetail, pb.AttentionDetail),
]


@pytest.mark.parametrize(("prefix", "ours", "wire"), RESPONSE_ENUMS + REQUEST_ENUMS)
def test_names_and_numbers_are_those_of_the_wire(prefix: str, ours: type[WireEnum], wire: type[pb.WarningKind]) -> None:
    on_the_wire = {name.removeprefix(f"{prefix}_"): number for name, number in wire.items()}

    in_the_client = {"UNSPECIFIED": 0} | {member.name: member.value for member in ours}

    assert in_the_client == on_the_wire


@pytest.mark.parametrize("ours", [ours for _, ours, _ in RESPONSE_ENUMS])
def test_a_number_newer_than_the_client_reads_as_unspecified(ours: type[WireEnum]) -> None:
    assert ours(999).name == "UNSPECIFIED"


def test_a_caller_cannot_ask_for_an_unknown_number() -> None:
    with pytest.raises(ValueError, match="999 is not a valid Priority"):
        Priority(999)


def test_a_member_prints_its_name() -> None:
    assert f"{WarningKind.TRUNCATED}" == "WarningKind.TRUNCATED"
