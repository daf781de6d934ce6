"""Translations of the bundled models in the formats of templates and messages, read by the parsers of these formats.

`template_parsers/formats.toml` has the texts. The parsers are packages of PyPI and npm, and msgfmt.
"""

import json
import os
import re
import shutil
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest

from dragoman_export.evaluation.translation import BundleTextModel, translate_each
from dragoman_service.bundle.files import open_bundle
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from tests.e2e.tools import BUILD, DEPLOY, python_tools, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FILES: Final = Path(__file__).with_name("template_parsers")
MODELS: Final = DEPLOY / "models" / "dragoman_models"
DIRECTIONS: Final = (("en", "de"), ("de", "en"))
TEXTS: Final[Mapping[str, Any]] = tomllib.loads((FILES / "formats.toml").read_text(encoding="utf-8"))
FORMATS: Final[Mapping[str, Mapping[str, Any]]] = {each["name"]: each for each in TEXTS["format"]}
PACKAGES: Final[Sequence[str]] = (FILES / "requirements.txt").read_text(encoding="utf-8").split()
SLOT: Final = re.compile("⟦([^⟦⟧]*)⟧")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A text and its translation."""

    format: str
    source: str
    target: str = ""


def sources(name: str, language: str) -> Iterator[str]:
    """Yield the sentences whose marks the format has, with its placeholders in turn, and then its own texts."""
    texts = FORMATS[name]
    marks, placeholders = texts.get("marks", {}), cycle(texts.get("placeholders", ()))
    for sentence in TEXTS["sentences"][language] if "placeholders" in texts else ():
        if {"", *marks}.issuperset(SLOT.findall(sentence)):
            yield SLOT.sub(lambda slot: marks[slot[1]] if slot[1] else next(placeholders), sentence)
    yield from texts.get(language, ())


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    """All texts with their translations."""
    translated: list[Case] = []
    for source_language, target_language in DIRECTIONS:
        bundle = open_bundle(MODELS / f"{source_language}-{target_language}" / "1")
        model = BundleTextModel.of(open_step_model(bundle, RuntimeSettings()), open_tokenizer(bundle), bundle.manifest)
        texts = [Case(format=name, source=text) for name in FORMATS for text in sources(name, source_language)]
        outcomes = translate_each(
            model, [case.source for case in texts], beam_size=4, batch_size=16, shows_progress=False
        )
        translated += (
            replace(case, target=outcome.translations[0].hypotheses[0].text)
            for case, outcome in zip(texts, outcomes, strict=True)
        )
    return translated


def with_parser(cases: Sequence[Case], parsers: Sequence[str]) -> list[Case]:
    """Return the cases of the formats with one of the parsers."""
    return [case for case in cases if FORMATS[case.format].get("parser", "") in parsers]


def damages(cases: Sequence[Case], command: Sequence[str | Path], directory: Path) -> list[tuple[Case, str]]:
    """Return the cases whose syntax differs between the source and the translation, or which the parser rejects."""
    texts = [(FORMATS[case.format]["parser"], text) for case in cases for text in (case.source, case.target)]
    read = json.loads(run(*command, directory=directory, input=json.dumps(texts)).stdout)
    pairs = list(zip(cases, read[::2], read[1::2], strict=True))
    assert [(case, source["error"]) for case, source, _ in pairs if "error" in source] == []
    return [(case, target.get("error", "another syntax")) for case, source, target in pairs if source != target]


def skip_or_fail(reason: str) -> None:
    """Skip a test because of a missing tool; fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have all parsers: {reason}")
    pytest.skip(reason)


def test_each_format_has_six_texts_in_each_direction() -> None:
    for name in FORMATS:
        for language, _ in DIRECTIONS:
            assert len(set(sources(name, language))) >= 6, (name, language)


def test_parsers_of_pypi_read_the_same_syntax(cases: Sequence[Case]) -> None:
    try:
        folder = python_tools("template-parsers-python", *PACKAGES)
    except pytest.skip.Exception as skipped:
        skip_or_fail(str(skipped))
    command = (folder / "bin" / "python", FILES / "parse.py")
    parsers = json.loads(run(*command, "--list").stdout)

    assert damages(with_parser(cases, parsers), command, folder) == []


def test_parsers_of_npm_read_the_same_syntax(cases: Sequence[Case]) -> None:
    if shutil.which("npm") is None:
        skip_or_fail("npm is not installed")
    folder = BUILD / "template-parsers-node"
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    flags = ("--ignore-scripts", "--no-audit", "--no-fund")
    installed = run("npm", "ci", *flags, directory=folder, is_checked=False)
    if installed.returncode != 0:
        skip_or_fail(f"the packages of the lock file cannot be installed: {installed.stderr.strip()}")
    parsers = json.loads(run("node", "parse.mjs", "--list", directory=folder).stdout)

    assert damages(with_parser(cases, parsers), ("node", "parse.mjs"), folder) == []


def test_msgfmt_accepts_the_translations(cases: Sequence[Case], tmp_path: Path) -> None:
    if shutil.which("msgfmt") is None:
        skip_or_fail("msgfmt is not installed")
    translated = [case for case in cases if FORMATS[case.format].get("parser", "").startswith("msgfmt ")]
    catalog = ['msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n']
    for number, case in enumerate(translated):
        flag = FORMATS[case.format]["parser"].removeprefix("msgfmt ")
        source, target = (json.dumps(text, ensure_ascii=False) for text in (case.source, case.target))
        catalog.append(f'#, {flag}\nmsgctxt "{number}"\nmsgid {source}\nmsgstr {target}\n')
    path = tmp_path / "texts.po"
    path.write_text("\n".join(catalog), encoding="utf-8")

    checked = run("msgfmt", "--check-format", "--output-file", os.devnull, path, is_checked=False)

    lines = "\n".join(catalog).split("\n")
    entries = [number for number, line in enumerate(lines, start=1) if line.startswith("#, ")]
    errors = re.findall(r":(\d+): (.*)", checked.stderr)
    assert [(translated[bisect_right(entries, int(line)) - 1], error) for line, error in errors] == []
    assert checked.returncode == 0, checked.stderr


def test_placeholders_of_other_formats_come_back(cases: Sequence[Case]) -> None:
    others = [(case, FORMATS[case.format].get("pattern", "")) for case in cases if "parser" not in FORMATS[case.format]]

    assert len(others) > len(DIRECTIONS) * 6
    for case, pattern in others:
        found = sorted(re.findall(pattern, case.source))
        assert found
        assert found == sorted(re.findall(pattern, case.target)), case
