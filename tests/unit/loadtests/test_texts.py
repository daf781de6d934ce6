import gzip
import random
from pathlib import Path

import pytest

from loadtests.generator.texts import Profile, Texts, read_texts

SHORT, LONG = "A short one.", "This one is a sentence that has more than forty-five characters."
GENERATOR = random.Random(1)  # noqa: S311 - draws texts
MADE_UP = Texts([SHORT, LONG, "Another rather short one.", LONG.replace("This", "That")], origin="made up")


@pytest.mark.parametrize(
    ("profile", "shortest", "longest"),
    [
        (Profile.CHAT, 1, 44),
        (Profile.SENTENCE, 45, 300),
        (Profile.PARAGRAPH, 400, 500),
        (Profile.DOCUMENT, 3000, 3200),
    ],
)
@pytest.mark.parametrize("texts", [MADE_UP, read_texts()])
def test_a_profile_is_a_length(texts: Texts, profile: Profile, shortest: int, longest: int) -> None:
    drawn = [texts.draw(profile, GENERATOR) for _ in range(20)]

    assert {kind for kind, _ in drawn} == {profile}
    assert all(shortest <= len(text) for _, text in drawn)
    assert sum(len(text) <= longest for _, text in drawn) >= 10  # the last sentence may be a long one


def test_a_mixture_says_what_each_text_is() -> None:
    kinds = [MADE_UP.draw(Profile.MIXED, GENERATOR)[0] for _ in range(400)]

    assert kinds.count(Profile.CHAT) / 400 == pytest.approx(0.5, abs=0.1)
    assert set(kinds) == {Profile.CHAT, Profile.SENTENCE, Profile.PARAGRAPH, Profile.DOCUMENT}


def test_texts_are_of_a_test_set_source_first_or_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)
    assert read_texts().origin == "sentences.txt"
    (tmp_path / "newstest2013-en-de").mkdir()
    pairs = gzip.compress(f"{SHORT}\tEin kurzer.\n{LONG}\tEin langer.\n".encode())
    (tmp_path / "newstest2013-en-de" / "test.tsv.gz").write_bytes(pairs)
    (tmp_path / "texts").write_text("w1 w2\n\nw1 w2\n", encoding="utf-8")

    named = read_texts(tmp_path)
    monkeypatch.setenv("DRAGOMAN_DATA", str(tmp_path))

    for source in (named, read_texts()):
        assert source.origin == "newstest2013-en-de"
        assert source.draw(Profile.CHAT, GENERATOR) == (Profile.CHAT, SHORT)
    assert read_texts(lines=tmp_path / "texts").draw(Profile.LINES, GENERATOR) == (Profile.LINES, "w1 w2")


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no text in it"):
        read_texts(lines=tmp_path / "texts")
    with pytest.raises(ValueError, match="too few sentences"):
        Texts([SHORT], origin="made up")
