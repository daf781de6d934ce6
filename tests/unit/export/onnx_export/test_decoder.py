"""Best tokens in vocabularies of sizes that chunks do not divide."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dragoman_export.onnx_export.decoder import write_candidates
from dragoman_export.onnx_export.write import GraphBuilder, save_model

_ROUNDING = 1e-4  # Of log-probabilities of -50 in 32 bits.


def _ranked(path: Path, logits: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
    graph = GraphBuilder("candidates")
    given = graph.input("logits", "float32", ["B", "K", logits.shape[-1]])
    wanted = graph.input("num_candidates", "int64", [1])
    write_candidates(graph, given, wanted, vocabulary_size=logits.shape[-1])
    save_model(graph.build(), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {"logits": logits, "num_candidates": np.array([num_candidates])})
    return found[0], found[1]


@pytest.mark.parametrize("size", [1, 2, 64, 101, 1009, 2 * 1009, 58_101])
@pytest.mark.parametrize("num_candidates", [1, 9, 1_009])
def test_best_tokens_for_any_vocabulary_size(tmp_path: Path, size: int, num_candidates: int) -> None:
    count = min(size, num_candidates)
    logits = np.random.default_rng(size).normal(-50, 3, (2, 3, size)).astype(np.float32)
    logits[1, 2, -1] = -20  # the last token, next to the padding of the last chunk

    log_probs, token_ids = _ranked(tmp_path / "graph.onnx", logits, count)

    expected = logits - np.logaddexp.reduce(logits.astype(np.float64), axis=-1, keepdims=True)
    np.testing.assert_allclose(log_probs, -np.sort(-expected, axis=-1)[..., :count], atol=_ROUNDING)
    np.testing.assert_allclose(log_probs, np.take_along_axis(expected, token_ids, -1), atol=_ROUNDING)
    assert (np.diff(np.sort(token_ids)) > 0).all()


def test_number_of_candidates_is_used_on_the_host() -> None:
    graph = GraphBuilder("candidates")
    logits, wanted = graph.input("logits", "float32", ["B", "K", 640]), graph.input("num_candidates", "int64", [1])
    write_candidates(graph, logits, wanted, vocabulary_size=640)

    uses = {(use.node.op_type, use.idx) for use in wanted.uses()}

    assert uses == {("Slice", 2), ("TopK", 1)}  # any other input would be copied from the device in every step
