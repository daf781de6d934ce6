"""`dragoman export spans`: counts protected spans of real sentences by how they are preserved."""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from string import ascii_letters

from dragoman_export.cli.flags import add_shared
from dragoman_export.data.reader import read_pairs
from dragoman_export.evaluation.translation import TextModel, translate_each
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import SearchConfig, WarningKind
from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.orchestration import Outcome
from dragoman_service.text.placeholders.patterns import compile_protection, is_placeholder_tag
from dragoman_service.text.tokenizer import open_tokenizer

SPANS = (
    *("{name}", "https://example.com/x?y=1", "%s", "{{ user }}", "/usr/share/doc", "`main()`", "${value}", "%1$d"),
    *("info@example.org", '<ph id="1"/>', "$t(key)", "{0,number}", "www.example.com", "%(count)d", "src/main.py"),
)
# English words that a name, an address or a number may follow
_BEFORE = frozenset(
    ("the", "a", "an", "my", "your", "his", "her", "to", "in", "at", "of", "with", "for", "by", "from", "and", "is")
)
_WORD = re.compile(r"([A-Za-z]{3,})([.,!?]?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", "data")
    parser.add_argument("--limit", type=int, default=2000, metavar="N", help="sentences with spans (2000)")
    own_help = "count the protected spans of the sentences, such as code in backticks, instead of inserting spans"
    parser.add_argument("--own", action="store_true", help=own_help)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the choice of sentences and places (1)")
    add_shared(parser, "batch-size", "threads")


def run(args: argparse.Namespace) -> int:
    """Translate, count and print."""
    bundle = open_bundle(args.bundle)
    graph = open_step_model(bundle, RuntimeSettings(num_intra_op_threads=args.threads))
    model = TextModel.of(graph, open_tokenizer(bundle), bundle.manifest)
    sources = [pair.source for pair in read_pairs(args.data, None)]
    random.Random(args.seed).shuffle(sources)  # noqa: S311
    with_spans = _with_own_spans(sources) if args.own else _with_inserted_spans(sources, seed=args.seed)
    sentences = list(islice(with_spans, args.limit))
    sources = [text for text, _ in sentences]
    outcomes = translate_each(model, sources, beam_size=SearchConfig().beam_size, batch_size=args.batch_size)
    counts: Counter[str] = Counter()
    for outcome, (_, spans) in zip(outcomes, sentences, strict=True):
        counts.update(_counts(outcome, spans))
    num_spans, num_redecoded = counts["spans"], sum(outcome.num_second > 0 for outcome in outcomes)
    print(f"{len(sentences):,} sentences, {num_spans:,} protected spans")
    for name in ("kept by the model", "kept by redecoding", "inserted, with a warning", "lost"):
        print(f"  {name:26} {counts[name]:6,} {100 * counts[name] / max(num_spans, 1):6.2f} %")
    print(f"  {'redecoded sentences':26} {num_redecoded:6,} {100 * num_redecoded / len(sentences):6.2f} %")
    return 0


def _with_own_spans(sources: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    # Sentences with spans that the service protects by default, except tags that the model does not see.
    protection = compile_protection(ProtectionOptions(), ())
    for source in sources:
        found = [(each.kind, source[each.span.start : each.span.end]) for each in protection.find(source)]
        if spans := [text for kind, text in found if kind is not ProtectedKind.TAG or is_placeholder_tag(text)]:
            yield source, spans


def _with_inserted_spans(sources: Sequence[str], *, seed: int) -> Iterator[tuple[str, list[str]]]:
    # Sentences with one or two words replaced by spans.
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
    return {
        "spans": len(spans),
        "kept by the model": len(spans) - num_before,
        "kept by redecoding": num_before - num_after,
        "inserted, with a warning": num_after - num_lost,
        "lost": num_lost,
    }
