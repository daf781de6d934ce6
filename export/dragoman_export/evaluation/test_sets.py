"""Public test sets, recognised by the content of their pairs."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dragoman_export.data.reader import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTestSet:
    """A published test set in one direction."""

    name: str
    source_language: str
    target_language: str
    citation: str
    paths: str  # pattern of FOLDER/FILE
    sha256: str  # of `pairs_sha256`

    @property
    def languages(self) -> str:
        """Both languages, such as `en-de`."""
        return f"{self.source_language}-{self.target_language}"


PUBLIC_TEST_SETS: Final = (
    PublicTestSet(
        name="newstest2013",
        source_language="en",
        target_language="de",
        citation="Bojar et al. 2013, Findings of the 2013 Workshop on Statistical Machine Translation",
        paths=r"newstest_?2013|wmt13",
        sha256="26c9f50271d6618b98f75a146dd6e1ec52deb1cb88fd347ac52a6440a92eb727",
    ),
    PublicTestSet(
        name="multi30k-test_2016_flickr",
        source_language="en",
        target_language="de",
        citation="Elliott et al. 2016, Multi30K: Multilingual English-German Image Descriptions",
        paths=r"test_?2016_?flickr|flickr_?2016",
        sha256="5a087b0b6254fc8da010153b56c4450c369a2709abed12cce8b9ef6db260db35",
    ),
    PublicTestSet(
        name="tatoeba-test-v2021-08-07",
        source_language="en",
        target_language="de",
        citation="Tiedemann 2020, The Tatoeba Translation Challenge",
        paths=r"tatoeba.*[/-]test",
        sha256="37fd3c790c0bccab56650cf57242dde8d0f170d3b3343c06f3a0a8722068728c",
    ),
)


def pairs_sha256(pairs: Sequence[Pair], *, is_reversed: bool = False) -> str:
    """Return the SHA-256 of `source<TAB>target` lines in NFC with single spaces, whatever the format of the file."""
    digest = hashlib.sha256()
    for pair in pairs:
        sides = (pair.target, pair.source) if is_reversed else (pair.source, pair.target)
        line = "\t".join(" ".join(unicodedata.normalize("NFC", side).split()) for side in sides)
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def find_test_set(pairs: Sequence[Pair]) -> PublicTestSet | None:
    """Return the test set with these pairs, in either direction."""
    found = {one.sha256: one for one in PUBLIC_TEST_SETS}
    if one := found.get(pairs_sha256(pairs)):
        return one
    if one := found.get(pairs_sha256(pairs, is_reversed=True)):
        return replace(one, source_language=one.target_language, target_language=one.source_language)
    return None


def named_test_set(path: Path) -> PublicTestSet | None:
    """Return the test set that the name of a file and its folder suggest."""
    name = f"{path.parent.name}/{path.name}"
    return next((one for one in PUBLIC_TEST_SETS if re.search(one.paths, name, re.IGNORECASE)), None)
