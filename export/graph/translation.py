"""Translates many texts with the search and the runtime that serve."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from service.datatypes import SearchConfig, Segment
from service.decoding.running_batch import Engine
from service.decoding.step_model import StepModel
from service.text.pipeline import EXTRA_TARGET_TOKENS
from service.text.tokenizer import SentencePieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRun:
    """The translations of some texts, and what they took."""

    texts: tuple[str, ...]
    """In the order of the sources."""

    num_target_tokens: int
    """EOS counted."""

    num_truncated: int
    """Sources cut because they had more tokens than the model takes."""

    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        """Target tokens a second."""
        return self.num_target_tokens / self.elapsed_s


def translate_texts(
    model: StepModel, tokenizer: SentencePieceTokenizer, sources: Sequence[str], *, beam_size: int, batch_size: int
) -> TranslationRun:
    """Translate each text as one segment, `batch_size` of similar length at a time; shows a progress bar."""
    began_s = time.perf_counter()
    encoded = [tokenizer.encode(source) for source in sources]
    segments = [_segment(token_ids, model, beam_size) for token_ids in encoded]
    order = sorted(range(len(sources)), key=lambda index: -len(segments[index].source_ids))
    translations, num_target_tokens = [""] * len(sources), 0
    engine, running = Engine(model), dict[int, int]()
    with tqdm(total=len(sources), unit="sentence", leave=False) as progress:
        while order or running:
            if order and engine.num_segments <= batch_size // 2:  # joining one by one would cost an encoder run each
                joining, order = order[: batch_size - len(running)], order[batch_size - len(running) :]
                running.update(zip(engine.start([segments[index] for index in joining]), joining, strict=True))
            for ended in engine.step().ended:
                token_ids = ended.hypotheses[0].token_ids
                translations[running.pop(ended.handle)] = tokenizer.decode(token_ids)
                num_target_tokens += len(token_ids)
                progress.update()
    return TranslationRun(
        texts=tuple(translations),
        num_target_tokens=num_target_tokens,
        num_truncated=sum(len(token_ids) >= model.limits.max_source_tokens for token_ids in encoded),
        elapsed_s=time.perf_counter() - began_s,
    )


def _segment(token_ids: Sequence[int], model: StepModel, beam_size: int) -> Segment:
    source_ids = (*token_ids[: model.limits.max_source_tokens - 1], model.limits.vocabulary.eos_id)
    max_target_tokens = min(len(source_ids) + EXTRA_TARGET_TOKENS, model.limits.max_target_tokens)
    return Segment(source_ids=source_ids, search=SearchConfig(beam_size=beam_size, max_target_tokens=max_target_tokens))
