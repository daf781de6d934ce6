"""Request options over a real connection."""

from typing import Any

import numpy as np
import pytest

from dragoman.client import AsyncTranslationClient
from dragoman.client.enums import AttentionDetail
from dragoman.client.request import DecodingOptions
from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import RunningServer

TEXT = "A man rides a bicycle through the old town."
LONG_SENTENCE = "two children play with a red ball in the garden, " * 6 + "and she reads a long letter."
HOT: dict[str, Any] = {"temperature": 2.0}


async def translated(server: RunningServer, *texts: str, **options: Any) -> list[pb.Translation]:
    fields = {name: options.pop(name) for name in ("target_prefixes",) if name in options}
    response = await server.translate(*texts, options=pb.DecodingOptions(**options), **fields)
    return list(response.translations)


async def hypotheses(server: RunningServer, text: str, **options: Any) -> list[pb.Hypothesis]:
    (translation,) = await translated(server, text, **options)
    return list(translation.hypotheses)


def kinds(translation: pb.Translation) -> set[str]:
    return {pb.WarningKind.Name(warning.kind).removeprefix("WARNING_KIND_") for warning in translation.warnings}


@pytest.mark.parametrize(
    "search", [{"beam_size": 1}, {"num_hypotheses": 3}, {"sampling": pb.SamplingOptions()}], ids=str
)
async def test_every_hypothesis_begins_with_the_prefix(server: RunningServer, search: dict[str, Any]) -> None:
    for hypothesis in await hypotheses(server, TEXT, target_prefix="Zwei Kinder", **search):
        assert hypothesis.text.startswith("Zwei Kinder")


async def test_prefix_of_each_text_begins_its_first_sentence(server: RunningServer) -> None:
    free = await translated(server, TEXT)

    first, second, third = await translated(
        server, f"{TEXT} {TEXT}", TEXT, TEXT, target_prefixes=["Der Zug", "", "Sie liest"], target_prefix="ignored"
    )

    assert first.hypotheses[0].text.startswith("Der Zug")
    assert first.hypotheses[0].text.endswith(free[0].hypotheses[0].text)
    assert second == free[0]
    assert third.hypotheses[0].text.startswith("Sie liest")


async def test_same_seed_draws_the_same_hypotheses(server: RunningServer) -> None:
    async def drawn(seed: int) -> list[str]:
        sampling = pb.SamplingOptions(seed=seed, **HOT)
        return [one.text for one in await hypotheses(server, f"{TEXT} {TEXT}", sampling=sampling, num_hypotheses=4)]

    assert await drawn(7) == await drawn(7)
    assert await drawn(7) != await drawn(8)


async def test_requests_without_a_seed_differ(server: RunningServer) -> None:
    options = {"sampling": pb.SamplingOptions(**HOT), "num_hypotheses": 8}

    first, second = [await hypotheses(server, TEXT, **options) for _ in range(2)]

    assert [one.text for one in first] != [one.text for one in second]


async def test_samples_do_not_depend_on_other_requests(server: RunningServer) -> None:
    options = pb.DecodingOptions(sampling=pb.SamplingOptions(seed=7, **HOT))
    alone = await server.translate(TEXT, options=options)

    calls = [server.translate(text, options=options) for text in ("A man.", TEXT, "Two children play.", TEXT)]
    answers = [await call for call in calls]

    assert answers[1].translations == answers[3].translations == alone.translations


async def test_sampling_with_top_k_1_is_greedy_search(server: RunningServer) -> None:
    drawn = await hypotheses(server, TEXT, sampling=pb.SamplingOptions(top_k=1), return_tokens=True)
    greedy = await hypotheses(server, TEXT, beam_size=1, repetition_guard=False, return_tokens=True)

    assert drawn[0].tokens == greedy[0].tokens


async def test_suppressed_tokens_do_not_occur(server: RunningServer) -> None:
    (free,) = await hypotheses(server, TEXT, return_tokens=True)
    unwanted = sorted(set(free.tokens) - {"</s>"})[:64]

    (constrained,) = await hypotheses(server, TEXT, return_tokens=True, suppressed_tokens=unwanted)

    assert unwanted
    assert set(constrained.tokens).isdisjoint(unwanted)


async def test_no_ngram_is_repeated(server: RunningServer) -> None:
    (hypothesis,) = await hypotheses(
        server, TEXT, no_repeat_ngram_size=2, min_target_tokens=50, return_tokens=True, repetition_guard=False
    )

    pairs = list(zip(hypothesis.tokens, hypothesis.tokens[1:], strict=False))
    assert len(set(pairs)) == len(pairs) >= 50


@pytest.mark.parametrize("options", [{"repetition_penalty": 10.0}, {"coverage_penalty": 5.0}], ids=str)
async def test_penalties_are_accepted(server: RunningServer, options: dict[str, Any]) -> None:
    (hypothesis,) = await hypotheses(server, TEXT, **options)

    assert hypothesis.text


async def test_alignment_links_both_texts(server: RunningServer) -> None:
    text = f"- {TEXT}\n\n  Two children play."

    for hypothesis in await hypotheses(server, text, return_alignment=True, num_hypotheses=2):
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


async def test_attention_does_not_change_translations(server: RunningServer) -> None:
    plain = await hypotheses(server, TEXT, num_hypotheses=3)
    aligned = await hypotheses(server, TEXT, num_hypotheses=3, return_alignment=True)

    assert [(one.text, one.score) for one in aligned] == [(one.text, one.score) for one in plain]
    assert not any(one.alignment for one in plain)


async def test_degenerate_translation_has_a_warning_unless_the_guard_is_off(server: RunningServer) -> None:
    (guarded,) = await translated(server, "A man.", min_target_tokens=62)
    (unguarded,) = await translated(server, "A man.", min_target_tokens=62, repetition_guard=False)

    assert kinds(guarded) & {"REPETITION", "LENGTH_RATIO"}
    assert all("decod" in warning.message for warning in guarded.warnings if warning.kind != pb.WARNING_KIND_TRUNCATED)
    assert not kinds(unguarded) - {"TRUNCATED"}
    assert (
        sum(server.sample("dragoman_translation_warnings_total", kind=kind) for kind in ("repetition", "length_ratio"))
        >= 1
    )


async def test_long_sentence_is_split_at_clauses_with_a_warning(server: RunningServer) -> None:
    (translation,) = await translated(server, LONG_SENTENCE, return_attention=pb.ATTENTION_DETAIL_AVERAGED)

    (sentence,) = translation.sentences
    assert sentence.is_split
    assert "SOURCE_SPLIT" in kinds(translation)
    last_pieces = [attention.source_pieces[-2] for attention in translation.hypotheses[0].attention]
    assert len(last_pieces) > 1
    assert set(last_pieces[:-1]) == {"<0x2C>"}  # the comma, which the tiny vocabulary spells as a byte


async def test_client_returns_alignment_and_attention(server: RunningServer) -> None:
    options = DecodingOptions(return_alignment=True, return_attention=AttentionDetail.AVERAGED, target_prefix="Ein")

    async with AsyncTranslationClient(f"127.0.0.1:{server.port}") as client:
        result = await client.translate([TEXT], source_language="en", target_language="de", options=options)

    (hypothesis,) = result.translations[0].hypotheses
    (attention,) = hypothesis.attention
    assert hypothesis.alignment[0].target.start == 0
    assert sum(attention.row(0)) == pytest.approx(1)
