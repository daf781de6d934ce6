import pytest

from dragoman_service.text.placeholders.apostrophes import find_apostrophes
from dragoman_service.text.segmentation import never_ends


@pytest.mark.parametrize(
    ("text", "doubled", "form"),
    [
        ("Don''t delete {0}!", ["''"], "''"),
        ("L''article {0} et l''image {1,date,short}", ["''", "''"], "''"),
        ("Die Datei {0} fehlt.", [], "’"),
        ("{n, plural, one {# Datei} other {# Dateien}}", [], "’"),
        ("File ''{0}'' is missing.", [], "’"),
        ("It's {0}.", [], ""),
        ("Die Datei {name} fehlt.", [], ""),
        ("Don''t do it", [], ""),
        ("Die Datei fehlt.", [], ""),
    ],
)
def test_apostrophes_of_messages_are_found(text: str, doubled: list[str], form: str) -> None:
    spans, found = find_apostrophes(text, never_ends)

    assert [text[span.start : span.end] for span in spans] == doubled
    assert found == form
