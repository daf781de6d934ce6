"""Counts protected spans of real sentences by how they are preserved."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from string import ascii_letters

from dragoman_export.evaluation.translation import BundleTextModel, translate_each
from dragoman_service.datatypes import WarningKind
from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.text.pipeline import Outcome
from dragoman_service.text.placeholders.patterns import compile_protection, is_placeholder_tag

SPANS = (
    *("{name}", "https://example.com/x?y=1", "%s", "{{ user }}", "/usr/share/doc", "`main()`", "${value}", "%1$d"),
    *("info@example.org", '<ph id="1"/>', "$t(key)", "{0,number}", "www.example.com", "%(count)d", "src/main.py"),
)
KEPT = ("kept by the model", "kept by redecoding", "inserted, with a warning", "lost")  # means that preserve a span
# English words that a name, an address or a number may follow
_BEFORE = frozenset(
    ("the", "a", "an", "my", "your", "his", "her", "to", "in", "at", "of", "with", "for", "by", "from", "and", "is")
)
_WORD = re.compile(r"([A-Za-z]{3,})([.,!?]?)")


def count_spans(
    model: BundleTextModel, sentences: Sequence[tuple[str, list[str]]], *, beam_size: int, batch_size: int
) -> Counter[str]:
    """Translate sentences with spans; return the number of spans by the means that preserved them."""
    outcomes = translate_each(model, [text for text, _ in sentences], beam_size=beam_size, batch_size=batch_size)
    counts = Counter(sentences=len(sentences), redecoded=sum(outcome.num_second > 0 for outcome in outcomes))
    for outcome, (_, spans) in zip(outcomes, sentences, strict=True):
        counts.update(_counts(outcome, spans))
    return counts


def span_lines(counts: Counter[str]) -> Iterator[str]:
    """Yield the counts as lines with their shares."""
    yield f"{counts['sentences']:,} sentences, {counts['spans']:,} protected spans"
    for name in KEPT:
        yield f"  {name:26} {counts[name]:6,} {100 * counts[name] / max(counts['spans'], 1):6.2f} %"
    share = counts["redecoded"] / counts["sentences"]
    yield f"  {'redecoded sentences':26} {counts['redecoded']:6,} {100 * share:6.2f} %"


def with_own_spans(sources: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield sentences with spans that the service protects by default, except tags that the model does not see."""
    protection = compile_protection(ProtectionOptions(), ())
    for source in sources:
        found = [(each.kind, source[each.span.start : each.span.end]) for each in protection.find(source)]
        if spans := [text for kind, text in found if kind is not ProtectedKind.TAG or is_placeholder_tag(text)]:
            yield source, spans


def with_inserted_spans(sources: Iterable[str], *, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Yield sentences with one or two words replaced by spans."""
    chance, spans = random.Random(seed), cycle(SPANS)  # noqa: S311
    for source in sources:
        words = source.split()
        places = [
            index
            for index in range(1, len(words))
            if words[index - 1].lower() in _BEFORE and _WORD.fullmatch(words[index])
        ]
        if not places or len(words) > 40:
            continue
        inserted = []
        for index in chance.sample(places, min(len(places), chance.choice((1, 1, 2)))):
            inserted.append(next(spans))
            words[index] = inserted[-1] + words[index].lstrip(ascii_letters)
        yield " ".join(words), inserted


def _counts(outcome: Outcome, spans: list[str]) -> dict[str, int]:
    # Counts the spans of a sentence by the means that preserved them.
    before, after = outcome.pipeline.assemble(outcome.plans, outcome.first)[0], outcome.translations[0]
    num_before, num_after = (
        sum(warning.kind is WarningKind.PLACEHOLDER_LOST for warning in translation.warnings)
        for translation in (before, after)
    )
    num_lost = sum(after.hypotheses[0].text.count(span) < spans.count(span) for span in set(spans))
    kept = (len(spans) - num_before, num_before - num_after, num_after - num_lost, num_lost)
    return {"spans": len(spans), **dict(zip(KEPT, kept, strict=True))}
