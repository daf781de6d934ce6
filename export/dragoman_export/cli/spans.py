"""`python -m dragoman_export spans`: how many protected spans of real sentences come back, and how."""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from string import ascii_letters

from dragoman_export.cli.evaluate import read_pairs
from dragoman_export.onnx_export.translation import TextModel, decode_segments, default_search
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import SegmentResult, Translation, WarningKind
from dragoman_service.request import ProtectedKind, ProtectionOptions, TranslationOptions, TranslationRequest
from dragoman_service.runtimes.native.step_model import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.documents import TextPlan
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.placeholders.patterns import compile_protection, is_placeholder_tag
from dragoman_service.text.tokenizer import open_tokenizer

_SPANS = (
    *("{name}", "https://example.com/x?y=1", "%s", "{{ user }}", "/usr/share/doc", "`main()`", "${value}", "%1$d"),
    *("info@example.org", '<ph id="1"/>', "$t(key)", "{0,number}", "www.example.com", "%(count)d", "src/main.py"),
)
_BEFORE = frozenset(
    ("the", "a", "an", "my", "your", "his", "her", "to", "in", "at", "of", "with", "for", "by", "from", "and", "is")
)
"""Words of English behind which a name, an address or a number may stand."""

_WORD = re.compile(r"([A-Za-z]{3,})([.,!?]?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="the model, from English")
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>reference lines")
    parser.add_argument("--limit", type=int, default=2000, metavar="N", help="sentences with spans (2000)")
    parser.add_argument(
        "--own",
        action="store_true",
        help="count what is protected in the sentences as they stand, such as code in backticks, instead of planting",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the choice of sentences and places (1)")
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="sentences decoded together (16)")
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="CPU threads (1)")


def run(args: argparse.Namespace) -> int:
    """Translate, count, and print."""
    bundle = open_bundle(args.bundle)
    graph = open_step_model(bundle, RuntimeSettings(num_intra_op_threads=args.threads))
    model = TextModel.of(graph, open_tokenizer(bundle), bundle.manifest)
    sources = [pair.source for pair in read_pairs(args.data, None)]
    random.Random(args.seed).shuffle(sources)  # noqa: S311
    with_spans = _own(sources) if args.own else _planted(sources, seed=args.seed)
    planted = list(islice(with_spans, args.limit))
    pipelines = [_pipeline(model, text) for text, _ in planted]
    plans = [pipeline.plan() for pipeline in pipelines]
    segments = [[part.segment for part in plan.parts] for (plan,) in plans]
    decoded = iter(decode_segments(graph, [one for own in segments for one in own], args.batch_size))
    results = [[next(decoded) for _ in own] for own in segments]
    second = [
        pipeline.redecode_requests(plan, own) for pipeline, plan, own in zip(pipelines, plans, results, strict=True)
    ]
    again = iter(decode_segments(graph, [one for own in second for one in own.values()], args.batch_size))
    counts: Counter[str] = Counter()
    for pipeline, plan, first, own, (_, spans) in zip(pipelines, plans, results, second, planted, strict=True):
        last = pipeline.choose_redecoded(plan, first, {index: next(again) for index in own})
        counts.update(_outcome(pipeline, plan, first, last, spans))
    num_spans = counts["spans"]
    print(f"{len(planted):,} sentences, {num_spans:,} protected spans")
    for name in ("kept by the model", "kept by redecoding", "inserted, with a warning", "lost"):
        print(f"  {name:26} {counts[name]:6,} {100 * counts[name] / max(num_spans, 1):6.2f} %")
    print(
        f"  redecoded sentences        {sum(map(bool, second)):6,} {100 * sum(map(bool, second)) / len(planted):6.2f} %"
    )
    return 0


def _own(sources: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield sentences in which a service protects something by default, and that; tags are none that a model sees."""
    protection = compile_protection(ProtectionOptions(), ())
    for source in sources:
        found = [(one.kind, source[one.span.start : one.span.end]) for one in protection.find(source)]
        spans = [text for kind, text in found if kind is not ProtectedKind.TAG or is_placeholder_tag(text)]
        if spans:
            yield source, spans


def _planted(sources: Sequence[str], *, seed: int) -> Iterator[tuple[str, list[str]]]:
    """Yield sentences with one or two words replaced by spans, and these."""
    chance, spans = random.Random(seed), cycle(_SPANS)  # noqa: S311
    for source in sources:
        words = source.split()
        places = [
            index
            for index in range(1, len(words))
            if words[index - 1].lower() in _BEFORE and _WORD.fullmatch(words[index])
        ]
        if not places or len(words) > 40:
            continue
        own = []
        for index in chance.sample(places, min(len(places), chance.choice((1, 1, 2)))):
            own.append(next(spans))
            words[index] = own[-1] + words[index].lstrip(ascii_letters)
        yield " ".join(words), own


def _pipeline(model: TextModel, text: str) -> TextPipeline:
    request = TranslationRequest(
        texts=(text,),
        source_language=model.source_language,
        target_language=model.target_language,
        options=TranslationOptions(),
    )
    return TextPipeline(request, model=model, search=default_search(4), has_attention=True)


def _outcome(
    pipeline: TextPipeline,
    plans: list[TextPlan],
    first: list[SegmentResult],
    last: list[SegmentResult],
    spans: list[str],
) -> dict[str, int]:
    """Return what became of the spans of one sentence."""
    before, after = (pipeline.assemble(plans, results)[0] for results in (first, last))
    num_before, num_after = map(_num_warned, (before, after))
    num_lost = sum(after.hypotheses[0].text.count(span) < spans.count(span) for span in set(spans))
    return {
        "spans": len(spans),
        "kept by the model": len(spans) - num_before,
        "kept by redecoding": num_before - num_after,
        "inserted, with a warning": num_after - num_lost,
        "lost": num_lost,
    }


def _num_warned(translation: Translation) -> int:
    return sum(warning.kind is WarningKind.PLACEHOLDER_LOST for warning in translation.warnings)
