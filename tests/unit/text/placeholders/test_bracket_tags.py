import pytest

from dragoman_service.text.placeholders.bracket_tags import bracket_tag_name, paired_tags
from dragoman_service.text.segmentation import never_ends


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["[b]", "[/b]"], {0: False, 1: True}),
        (["[b]", "[i]", "[/i]", "[/b]"], {0: False, 1: False, 2: True, 3: True}),
        (["[url=https://example.com]", "[hr]", "[/url]"], {0: False, 2: True}),
        (["[/b]", "[b]"], {}),
        (["'''", "''", "''", "'''"], {0: False, 1: False, 2: True, 3: True}),
        (["''", "''", "''"], {0: False, 1: True}),
        (["[[Link]]", "[% END %]", "[code]x[/code]", ""], {}),
    ],
)
def test_tags_are_paired_by_name(tags: list[str], expected: dict[int, bool]) -> None:
    assert paired_tags(tags, never_ends) == expected


@pytest.mark.parametrize(
    ("tag", "name"), [("[b]", "b"), ("[/list]", "list"), ("[*]", "*"), ("'''", "'''"), ("[[x]]", ""), ("[% x %]", "")]
)
def test_tag_in_brackets_has_a_name(tag: str, name: str) -> None:
    assert bracket_tag_name(tag) == name
