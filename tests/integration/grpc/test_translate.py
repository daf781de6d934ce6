"""Texts and request options of Translate over a real connection."""

from typing import Any

import numpy as np
import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import RunningServer, request

TEXT = "A man rides a bicycle through the old town."
# Sent as one sentence: a period, unlike a comma, ends a clause that the tiny vocabulary can spell.
LONG_SENTENCE = "two children play with a red ball in the garden. " * 6 + "and she reads a long letter."


@pytest.fixture(scope="module")
def server(shared_server: RunningServer) -> RunningServer:
    return shared_server


async def translated(
    server: RunningServer, *texts: str, target_prefixes: tuple[str, ...] = (), **options: Any
) -> list[pb.Translation]:
    options_ = pb.DecodingOptions(**options)
    return list((await server.translate(*texts, options=options_, target_prefixes=target_prefixes)).translations)


async def hypotheses(server: RunningServer, text: str, **options: Any) -> list[pb.Hypothesis]:
    (translation,) = await translated(server, text, **options)
    return list(translation.hypotheses)


def kinds(translation: pb.Translation) -> set[str]:
    return {pb.WarningKind.Name(warning.kind).removeprefix("WARNING_KIND_") for warning in translation.warnings}


async def test_unusual_texts_are_translated(server: RunningServer) -> None:
    texts = ["Grüße 😀 42", "\x00\x07", "a" * 500, "عربي", "👩‍👩‍👧"]

    assert len(await translated(server, *texts)) == len(texts)


async def test_scores_and_tokens_are_returned_on_request(server: RunningServer) -> None:
    found = await hypotheses(server, TEXT, beam_size=3, num_hypotheses=3, return_scores=True, return_tokens=True)

    scores = [hypothesis.score for hypothesis in found]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(len(hypothesis.tokens) == len(hypothesis.token_log_probs) > 0 for hypothesis in found)


async def test_prefix_of_each_text_begins_its_first_sentence(server: RunningServer) -> None:
    free = await translated(server, TEXT)

    first, second, third = await translated(
        server, f"{TEXT} {TEXT}", TEXT, TEXT, target_prefixes=("Der Zug", "", "Sie liest"), target_prefix="ignored"
    )

    assert first.hypotheses[0].text.startswith("Der Zug")
    assert first.hypotheses[0].text.endswith(free[0].hypotheses[0].text)
    assert second == free[0]
    assert third.hypotheses[0].text.startswith("Sie liest")


async def test_alignment_links_both_texts_and_does_not_change_the_translation(server: RunningServer) -> None:
    text = f"- {TEXT}\n\n  Two children play."

    plain = await hypotheses(server, text, num_hypotheses=2)
    aligned = await hypotheses(server, text, num_hypotheses=2, return_alignment=True)

    assert [(each.text, each.score) for each in aligned] == [(each.text, each.score) for each in plain]
    assert not any(hypothesis.alignment for hypothesis in plain)
    for hypothesis in aligned:
        covered = [index for link in hypothesis.alignment for index in range(link.target.start, link.target.end)]
        assert covered == sorted(set(covered))
        assert {index for index, char in enumerate(hypothesis.text[2:], start=2) if not char.isspace()} <= set(covered)
        assert all(text[link.source.start : link.source.end].strip() for link in hypothesis.alignment)
        assert all(0 < link.weight <= 1 for link in hypothesis.alignment)


async def test_attention_is_returned_averaged_or_by_head(server: RunningServer) -> None:
    text = f"{TEXT} Two children play."

    (averaged,) = await hypotheses(server, text, return_attention=pb.ATTENTION_DETAIL_AVERAGED, return_tokens=True)
    (by_head,) = await hypotheses(server, text, return_attention=pb.ATTENTION_DETAIL_ALL_HEADS)

    assert [piece for one in averaged.attention for piece in one.target_pieces] == list(averaged.tokens)
    for mean, heads in zip(averaged.attention, by_head.attention, strict=True):
        shape = (-1, len(mean.target_pieces), len(mean.source_pieces))
        weights = np.array(heads.weights).reshape(shape)
        assert (mean.num_heads, heads.num_heads, mean.layer, len(weights)) == (1, 2, 1, 2)
        assert np.allclose(weights.sum(axis=2), 1, atol=1e-5)
        assert np.allclose(weights.mean(axis=0), np.array(mean.weights).reshape(shape)[0], atol=1e-5)


async def test_degenerate_translation_has_a_warning_unless_the_guard_is_off(server: RunningServer) -> None:
    (guarded,) = await translated(server, "A man.", min_target_tokens=62)
    (unguarded,) = await translated(server, "A man.", min_target_tokens=62, repetition_guard=False)

    assert kinds(guarded) & {"REPETITION", "LENGTH_RATIO"}
    assert not kinds(unguarded) & {"REPETITION", "LENGTH_RATIO"}
    assert all(server.sample("dragoman_translation_warnings_total", kind=kind.lower()) > 0 for kind in kinds(guarded))


async def test_long_sentence_is_split_at_clauses_with_a_warning(server: RunningServer) -> None:
    options: dict[str, Any] = {"split_sentences": False, "return_attention": pb.ATTENTION_DETAIL_AVERAGED}
    (translation,) = await translated(server, LONG_SENTENCE, **options)

    (sentence,) = translation.sentences
    assert sentence.is_split
    assert "SOURCE_SPLIT" in kinds(translation)
    last_pieces = [attention.source_pieces[-2] for attention in translation.hypotheses[0].attention]
    assert len(last_pieces) > 1
    assert set(last_pieces) == {"."}


async def test_fields_of_a_newer_contract_are_ignored(server: RunningServer) -> None:
    newer = request("A man.").SerializeToString() + b"\xfa\x3e\x01x"  # field 1007

    assert await server.channel.unary_unary("/dragoman.v1.TranslationService/Translate")(newer)
