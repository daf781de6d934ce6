"""Whether both servers do the same work: the answers of both to the same requests, compared."""

from collections.abc import Sequence

from dragoman.v1 import translation_pb2 as pb
from sacrebleu.metrics.bleu import BLEU

from loadtests.peers.figures import share_of_equal
from loadtests.peers.under_load.results import Agreement


def agreement(
    ours: Sequence[pb.TranslateResponse], theirs: Sequence[pb.TranslateResponse], *, has_meaning: bool
) -> Agreement:
    """Compare the answers to the same requests, in order, at least one.

    Args:
        ours: of our server.
        theirs: of the other one.
        has_meaning: whether texts can be compared word by word.
    """
    our_texts, their_texts = _texts(ours), _texts(theirs)
    return Agreement(
        num_texts=len(our_texts),
        identical=share_of_equal(our_texts, their_texts),
        bleu=float(BLEU().corpus_score(our_texts, [their_texts]).score) if has_meaning else None,
        tokens_ratio=_num_tokens(ours) / max(1, _num_tokens(theirs)),
    )


def _texts(answers: Sequence[pb.TranslateResponse]) -> list[str]:
    return [translation.hypotheses[0].text for answer in answers for translation in answer.translations]


def _num_tokens(answers: Sequence[pb.TranslateResponse]) -> int:
    return sum(answer.num_target_tokens for answer in answers)
