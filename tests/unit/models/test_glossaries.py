from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.errors import ConfigError, GlossaryNotFoundError, InvalidFieldError
from dragoman_service.models import glossaries
from dragoman_service.models.glossaries import GlossaryRepository, read_glossary
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import ProtectionOptions, Term
from dragoman_service.text.placeholders.patterns import compile_protection

TSV = "en\tde\nsettings\tEinstellungen\nDragoman\n\nopen file\tDatei öffnen\n"
MARTIF = """<?xml version="1.0"?><!DOCTYPE martif SYSTEM "TBXcoreStructV02.dtd">
<martif type="TBX"><text><body><termEntry id="c1">
  <langSet xml:lang="en-GB"><tig><term>colour</term></tig><tig><term>hue</term></tig></langSet>
  <langSet xml:lang="de"><ntig><termGrp><term>Farb<hi>ton</hi></term></termGrp></ntig></langSet>
</termEntry></body></text></martif>"""
TBX = """<tbx xmlns="urn:iso:std:iso:30042:ed-2"><text><body><conceptEntry id="c1">
<langSec xml:lang="en"><termSec><term>file</term></termSec></langSec>
<langSec xml:lang="fr"><termSec><term>fichier</term></termSec></langSec>
</conceptEntry></body></text></tbx>"""


def pairs(path: Path, content: str | bytes) -> dict[tuple[str, str], list[tuple[str, str]]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    terms = read_glossary(path).terms
    return {pair: [(term.source, term.target) for term in pair_terms] for pair, pair_terms in terms.items()}


@pytest.mark.parametrize("content", [TSV, "\ufeff" + TSV.replace("\n", "\r\n")])
def test_first_line_of_tsv_has_the_languages(tmp_path: Path, content: str) -> None:
    assert pairs(tmp_path / "it.tsv", content) == {
        ("en", "de"): [("settings", "Einstellungen"), ("Dragoman", ""), ("open file", "Datei öffnen")]
    }


def test_tbx_term_is_translated_into_first_term_of_other_language(tmp_path: Path) -> None:
    assert pairs(tmp_path / "a.tbx", MARTIF) == {
        ("de", "en-gb"): [("Farbton", "colour")],
        ("en-gb", "de"): [("colour", "Farbton"), ("hue", "Farbton")],
    }
    assert pairs(tmp_path / "b.tbx", TBX) == {("en", "fr"): [("file", "fichier")], ("fr", "en"): [("fichier", "file")]}


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.tsv", "", "a.tsv, line 1"),
        ("a.tsv", "settings\tEinstellungen\nx\ty", "line 1"),
        ("a.tsv", "en\tde\n", "at least 1 term"),
        ("a.tsv", "en\tde\na\tb\tc", "line 2"),
        ("a.tsv", "en\tde\n\tb", "line 2"),
        ("a.tsv", "en\tde\n" + "x" * 201, "line 2"),
        ("a.tsv", "en\tde\na\tb\na\tc", "line 3"),
        ("a.tsv", b"en\tde\n\xff", "byte 6"),
        ("a.tsv", "en\tde\n" + "\n".join(map(str, range(20_001))), "at most 20000"),
        ("a.tbx", "<tbx>", "line 1"),
        ("a.tbx", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "entity"),
        ("a.tbx", "<conceptEntry><langSec><term>a</term></langSec></conceptEntry>", "line 1"),
        ("a b.tsv", TSV, "letters"),
    ],
)
def test_error_of_invalid_glossary_has_the_line(tmp_path: Path, name: str, content: str | bytes, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        pairs(tmp_path / name, content)


def test_changed_glossary_is_read_again_and_invalid_one_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(CollectorRegistry())
    repository = GlossaryRepository(tmp_path, metrics)

    def change(name: str, content: str) -> list[tuple[str, int]]:
        (tmp_path / name).write_text(content, encoding="utf-8")
        repository.refresh()
        repository.refresh()
        return [(glossary.name, sum(map(len, glossary.terms.values()))) for glossary in repository.all()]

    assert change("it.tsv", "en\tde\na\tb") == [("it", 1)]
    assert change("it.tsv", "en\tde\na\tb\nc\td") == [("it", 2)]
    assert change("it.tsv", "en\tde\na\tb\nc\td\te") == [("it", 2)]
    assert change("it.tbx", TBX) == [("it", 2)]
    assert change("color.tbx", MARTIF) == [("color", 3), ("it", 2)]
    assert [record.fault for record in caplog.records if record.levelname == "ERROR"] == [  # type: ignore[attr-defined]
        "setting 'models.glossaries_directory: it.tsv, line 3' is '3 columns': expected a term and its translation",
        "a TSV file with this name exists",
    ]
    assert metrics.registry.get_sample_value("dragoman_glossary_failures_total") == 2

    (tmp_path / "it.tsv").unlink()
    repository.refresh()
    assert sum(map(len, repository.get("it").terms.values())) == 2  # now of TBX
    with pytest.raises(GlossaryNotFoundError, match="'x' is not served here; available: color, it"):
        repository.get("x")


def test_number_of_glossaries_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "MAX_GLOSSARIES", 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text("en\tde\na\tb")

    repository = GlossaryRepository(tmp_path, Metrics(CollectorRegistry()))
    repository.refresh()

    assert [glossary.name for glossary in repository.all()] == ["a"]


def test_language_tags_of_glossary_are_shortened(tmp_path: Path) -> None:
    (tmp_path / "it.tsv").write_text(TSV, encoding="utf-8")
    repository = GlossaryRepository(tmp_path, Metrics(CollectorRegistry()))
    repository.refresh()

    matcher = repository.matcher("it", "en-GB", "DE")
    protection = compile_protection(ProtectionOptions(), (Term(source="open", target="offen"),), matcher)

    targets = [term.target for term in protection.find("Settings of Dragoman: open file, {file}")]
    assert targets == ["Einstellungen", "Dragoman", "offen", None]  # a term of the request goes first
    with pytest.raises(InvalidFieldError, match="from en to de"):
        repository.matcher("it", "en", "fr")
