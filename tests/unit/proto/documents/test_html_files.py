import contextlib
import time

import pytest

from dragoman.documents.content import FileFormatError
from dragoman.documents.html_files import read_html


@pytest.mark.parametrize("unit", ["<", "<a", "<a ", "<a\n", "<a/", "<a b='", '<a b="', "<!--", "<!--a--", "<!-- a>"])
def test_many_tags_and_comments_without_an_end_are_rejected(unit: str) -> None:
    with pytest.raises(FileFormatError, match=r"times <(!--)? without (>|-->) after it \(limit: 1000\)"):
        read_html((unit * 200_000).encode())


@pytest.mark.parametrize("unit", ["<a", "<a/", "<a b='", "<!--", "<!", "<?", "</", "&#", "<![CDATA["])
@pytest.mark.parametrize("end", [">", "'>", "-->", "]]>"])
def test_work_grows_with_the_size_of_a_page(unit: str, end: str) -> None:
    page = (unit * 20_000 + end).encode()
    began_s = time.process_time()

    with contextlib.suppress(FileFormatError):  # rejected at once
        read_html(page)

    assert time.process_time() - began_s < 2


def test_page_may_end_within_a_tag() -> None:
    assert [segment.text for segment in read_html(b"<p>One</p><p>Two <b").segments] == ["One", "Two <b"]
