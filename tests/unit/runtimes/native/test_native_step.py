"""Decoder steps of the native engine compared with a numpy reference, for each instruction set of the CPU."""

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from dragoman_service.bundle.int8_weights import ActivationScale
from dragoman_service.errors import EngineError
from dragoman_service.runtimes.native.library import Library, NativeNetwork, _Shape
from tests.reference_step import (
    INSTRUCTION_SETS,
    MAX_POSITIONS,
    Decoder,
    LibraryBatch,
    ReferenceBatch,
    check_candidates,
    library_or_skip,
)

SHAPES: list[dict[str, Any]] = [
    {"head_size": 8, "num_heads": 1, "ffn_size": 1, "num_layers": 1, "vocabulary_size": 1},
    {"head_size": 24, "num_heads": 3, "ffn_size": 63, "num_layers": 1, "vocabulary_size": 63},
    {"head_size": 40, "num_heads": 2, "ffn_size": 65, "num_layers": 2, "vocabulary_size": 65},
    {"head_size": 64, "num_heads": 2, "ffn_size": 1100, "num_layers": 2, "vocabulary_size": 6001},
    {"head_size": 128, "num_heads": 1, "ffn_size": 15, "num_layers": 1, "vocabulary_size": 1025},
    {"head_size": 32, "num_heads": 4, "ffn_size": 130, "num_layers": 1, "vocabulary_size": 129},
    {"activation": "gelu", "embedding_norm": True, "scale_embeddings": False, "projection_bias": True},
    {"activation": "swish", "ffn_size": 65, "tied_embeddings": "decoder", "norm_epsilon": 0.01},
    {"activation": "swiglu", "ffn_size": 43, "tied_embeddings": "none", "norm_kind": "rms"},
    {"activation": "swiglu", "ffn_size": 16, "tied_embeddings": "none", "projection_bias": True},
]

SCALES: dict[str, dict[str, Any]] = {
    "7 bits": {"levels": 127},
    "8 bits": {"levels": 255},
    "by row": {"has_fixed_scales": False},
}

_SMALLEST: dict[str, Any] = {
    **dict.fromkeys(("num_heads", "ffn_size", "num_layers", "vocabulary_size", "max_positions", "is_pre_norm"), 1),
    "d_model": 8,
    "embedding_factor": 1.0,
    "epsilon": 1e-5,
}


@pytest.fixture(scope="module")
def library() -> Library:
    return library_or_skip()


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest, library: Library) -> str:
    if request.param not in library.instruction_sets:
        pytest.skip(f"the CPU has no {request.param}")
    name: str = request.param
    return name


@pytest.fixture
def decoder() -> Decoder:
    return Decoder.drawn(np.random.default_rng(1), vocabulary_size=1100)


def _steps(generator: np.random.Generator, decoder: Decoder, num_segments: int, num_rows: int, num_steps: int) -> Any:
    size = decoder.architecture.vocabulary_size
    shape = (num_steps, num_segments, num_rows)
    return zip(generator.integers(size, size=shape), generator.integers(num_rows, size=shape), strict=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_pre_norm", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("scales", SCALES)
def test_steps_match_the_reference(
    library: Library, instruction_set: str, shape: dict[str, Any], is_pre_norm: bool, scales: str
) -> None:
    generator = np.random.default_rng(3)
    decoder = Decoder.drawn(generator, **shape, is_pre_norm=is_pre_norm, **SCALES[scales])
    expected, vocabulary_size = ReferenceBatch(decoder), decoder.architecture.vocabulary_size
    with LibraryBatch(decoder.packed(library, instruction_set)) as batch:
        for source_length in (1, 17, 16):
            expected.add(cross := decoder.cross(generator, source_length))
            batch.add(cross)

        for num_rows, parents_of in ((1, 1), (3, 1), (3, 3), (2, 3)):
            token_ids = generator.integers(vocabulary_size, size=(3, num_rows))
            parents = generator.integers(parents_of, size=(3, num_rows))
            found = batch.step(token_ids, parents, vocabulary_size)

            check_candidates(found, *expected.step(token_ids, parents))


@pytest.mark.parametrize("levels", [127, 255])
@pytest.mark.parametrize("largest", [127, -127, -128, None])
def test_sums_of_the_largest_products_do_not_saturate(
    library: Library, instruction_set: str, largest: int | None, levels: Literal[127, 255]
) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(4), ffn_size=1500)
    for name, tensor in decoder.tensors.items():
        if name.endswith("int8") and not name.startswith("embedding"):
            if largest:
                tensor[:, ::2] = largest
            else:  # the largest weights that may be added in 16 bits
                tensor[:] = np.resize([127, 127, -127, -127, 4, 0, -4, 0], len(tensor))[:, None]
    scales = {  # almost all rounded values are 0 or the largest
        path: ActivationScale(scale=1e-3, zero_point=3 if path.endswith("outer") else levels // 2 + 1, levels=levels)
        for path in decoder.activations
    }
    decoder = replace(decoder, activations={**scales, "embedding": decoder.activations["embedding"]})
    expected = ReferenceBatch(decoder)
    expected.add(cross := decoder.cross(generator, 5))
    with LibraryBatch(decoder.packed(library, instruction_set), [cross]) as batch:
        check_candidates(batch.step([[7, 3, 1]], [[0, 0, 0]], 70), *expected.step([[7, 3, 1]], [[0, 0, 0]]))


def test_reference_values_are_rarely_near_a_rounding_boundary() -> None:
    """Precondition of the exact comparison with the reference."""
    decoder = Decoder.drawn(generator := np.random.default_rng(5))
    batch = ReferenceBatch(decoder)
    for _ in range(20):
        batch.add(decoder.cross(generator, 5))

    _, is_sure = batch.step(generator.integers(70, size=(20, 2)), np.zeros((20, 2), np.int64))

    assert is_sure.mean() > 0.5


@pytest.mark.parametrize("num_rows", [5, 33])
def test_growing_caches_do_not_change_results(library: Library, instruction_set: str, num_rows: int) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(7), num_layers=1, ffn_size=8)
    expected = ReferenceBatch(decoder)
    with LibraryBatch(decoder.packed(library, instruction_set)) as batch:
        expected.add(cross := decoder.cross(generator, 4))
        batch.add(cross)
        sizes = set()

        for _ in range(MAX_POSITIONS if num_rows == 5 else 12):
            token_ids = generator.integers(70, size=(1, num_rows))
            parents = np.arange(num_rows)[None]  # no row shares a slot with another
            check_candidates(batch.step(token_ids, parents, 3), *expected.step(token_ids, parents))
            sizes.add(batch.num_bytes)

        assert len(sizes) > 2
        assert (batch.cross(0, cross) == cross).all()


@pytest.mark.parametrize("scales", SCALES)
def test_results_do_not_depend_on_batch_threads_or_instruction_set(library: Library, scales: str) -> None:
    decoder = Decoder.drawn(
        generator := np.random.default_rng(11),
        head_size=24,
        num_heads=3,
        ffn_size=257,
        vocabulary_size=9000,
        **SCALES[scales],
    )
    crosses = [decoder.cross(generator, length) for length in (17, 1, 40)]
    steps = list(_steps(generator, decoder, 3, 4, 30))
    alone: list[list[bytes]] = []
    with LibraryBatch(decoder.packed(library)) as batch:
        for number, cross in enumerate(crosses):
            batch.add(cross)
            alone.append([_bits(batch.step(ids[[number]], of[[number]], 5), 0) for ids, of in steps])
            batch.keep([])

    for name in library.instruction_sets:
        packed = decoder.packed(library, name)
        for num_threads in (1, 2, 3):
            assert _in_company(packed, crosses, steps, num_threads) == alone


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("num_rows", [7, 8, 15, 16, 17, 31, 32, 33, 49, 80])
def test_rows_of_large_batches_do_not_depend_on_their_number(library: Library, num_rows: int, scales: str) -> None:
    decoder = Decoder.drawn(
        generator := np.random.default_rng(num_rows),
        head_size=64,
        num_heads=2,
        ffn_size=192,
        num_layers=1,
        vocabulary_size=200,
        **SCALES[scales],
    )
    cross = decoder.cross(generator, 9)
    ids = generator.integers(200, size=(1, num_rows))
    with LibraryBatch(decoder.packed(library), [cross]) as batch:
        together = batch.step(ids, np.zeros_like(ids), 5)

    for name in library.instruction_sets:
        with LibraryBatch(decoder.packed(library, name), [cross]) as batch:
            assert _bits(batch.step(ids, np.zeros_like(ids), 5), 0) == _bits(together, 0)
    for row in (0, num_rows // 2, num_rows - 1):
        with LibraryBatch(decoder.packed(library), [cross]) as batch:
            alone = batch.step(ids[:, [row]], np.zeros((1, 1), dtype=ids.dtype), 5)
        assert all((one[0, 0] == many[0, row]).all() for one, many in zip(alone, together, strict=True))


def _in_company(packed: NativeNetwork, crosses: list[Any], steps: list[Any], num_threads: int) -> list[list[bytes]]:
    """Return the results of three segments, of which the second and third join later, in changing order."""
    found: list[list[bytes]] = [[], [], []]
    with LibraryBatch(packed, num_threads=num_threads) as batch:
        running: list[int] = []
        for time in range(len(steps) + 6):
            for number, begins in enumerate((0, 4, 6)):
                if time == begins:
                    batch.add(crosses[number])
                    running.append(number)
            order = sorted(range(len(running)), key=lambda at: (running[at] * 7 + time) % 5)
            order = [at for at in order if len(found[running[at]]) < len(steps)]
            batch.keep(order)
            running = [running[at] for at in order]
            each = [(number, *steps[len(found[number])]) for number in running]
            if running:
                output = batch.step(np.array([t[n] for n, t, _ in each]), np.array([p[n] for n, _, p in each]), 5)
                for at, number in enumerate(running):
                    found[number].append(_bits(output, at))
    return found


def _bits(output: tuple[Any, Any], segment: int | slice) -> bytes:
    return b"".join(array[segment].tobytes() for array in output)


def test_batches_in_several_threads_share_a_network(library: Library, decoder: Decoder) -> None:
    packed = decoder.packed(library)
    generator = np.random.default_rng(13)
    crosses, steps = [decoder.cross(generator, 9) for _ in range(6)], list(_steps(generator, decoder, 6, 4, 40))
    meet = threading.Barrier(4)

    def run(num_threads: int) -> list[bytes]:
        with LibraryBatch(packed, crosses, num_threads=num_threads) as batch:
            meet.wait()
            return [_bits(batch.step(ids, of, 4), slice(None)) for ids, of in steps]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(run, (1, 2, 3, 4))

    assert all(other == first for other in others)


def test_batches_of_a_freed_model_continue_while_others_are_loaded(library: Library, decoder: Decoder) -> None:
    generator = np.random.default_rng(13)
    crosses, steps = [decoder.cross(generator, 9) for _ in range(6)], list(_steps(generator, decoder, 6, 4, 20))
    models = [decoder.packed(library)]
    meet = threading.Barrier(2)

    def run(number: int) -> list[bytes]:
        with LibraryBatch(models[0] if number == 0 else decoder.packed(library), crosses, num_threads=2) as batch:
            meet.wait()
            if number == 0:
                models.clear()  # frees the model
            return [_bits(batch.step(ids, of, 4), slice(None)) for ids, of in steps]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, range(2))

    assert first == second


@pytest.mark.parametrize("num_threads", [1, 3])
def test_candidates_are_sorted_and_ties_go_to_the_lower_id(
    library: Library, instruction_set: str, num_threads: int
) -> None:
    decoder = Decoder.drawn(np.random.default_rng(17), vocabulary_size=5003)
    packed = decoder.packed(library, instruction_set)
    found = []
    for num_candidates in (1, 2, 5, 33, 64, 65, 500, 5002, 5003):
        with LibraryBatch(packed, num_threads=num_threads) as batch:
            for _ in range(2):
                batch.add(decoder.cross(np.random.default_rng(0), 3))
            found.append(batch.step(np.array([[1, 2, 3]] * 2), np.zeros((2, 3)), num_candidates))

    log_probs, token_ids = found[-1]
    assert (np.sort(token_ids) == np.arange(5003)).all()
    assert np.allclose(np.exp(log_probs.astype(np.float64)).sum(axis=-1), 1, atol=1e-5)
    places = np.argsort(token_ids)
    assert (
        places[..., 0::5][..., : len(range(1, 5003, 5))] + 1 == places[..., 1::5]
    ).all()  # followed by its duplicate
    for fewer_log_probs, fewer_ids in found[:-1]:
        count = fewer_ids.shape[-1]
        assert (fewer_ids == token_ids[..., :count]).all()
        assert (fewer_log_probs == log_probs[..., :count]).all()


def test_equal_tokens_are_sorted_by_id(library: Library, instruction_set: str) -> None:
    decoder = Decoder.drawn(np.random.default_rng(1), vocabulary_size=2500)
    decoder.tensors["embedding.weight.factors"][:] = 0
    crosses = [decoder.cross(np.random.default_rng(2), 3)]
    with LibraryBatch(decoder.packed(library, instruction_set), crosses, num_threads=2) as batch:
        log_probs, token_ids = batch.step(np.zeros((1, 2)), np.zeros((1, 2)), 70)

    assert (token_ids == np.arange(70)).all()
    assert np.allclose(log_probs, -np.log(2500), atol=1e-5)


def test_shortlist_equals_a_smaller_vocabulary(library: Library, instruction_set: str, decoder: Decoder) -> None:
    generator = np.random.default_rng(19)
    cross = [decoder.cross(generator, 6) for _ in range(3)]
    listed = np.sort(generator.choice(1100, 67, replace=False))
    expected = ReferenceBatch(decoder)
    with LibraryBatch(decoder.packed(library, instruction_set), num_threads=2) as batch:
        for number, each in enumerate(cross):
            expected.add(each)
            batch.add(each, listed if number == 1 else ())
        for token_ids, parents in _steps(generator, decoder, 3, 2, 4):
            log_probs, ids = batch.step(token_ids, parents, 70)
            all_log_probs, is_sure = expected.step(token_ids, parents)

            check_candidates((log_probs[[0, 2]], ids[[0, 2]]), all_log_probs[[0, 2]], is_sure[[0, 2]])
            few = all_log_probs[[1]][..., listed]
            few = few - np.logaddexp.reduce(few, axis=-1, keepdims=True)
            places = np.searchsorted(listed, ids[[1], :, :67])
            check_candidates((log_probs[[1], :, :67], places), few, is_sure[[1]])
            assert (listed[places] == ids[[1], :, :67]).all()
            assert (log_probs[1, :, 67:] == -np.inf).all()
            assert (ids[1, :, 67:] == 0).all()


def test_skipped_rows_have_no_candidates_and_do_not_change_others(library: Library, decoder: Decoder) -> None:
    generator = np.random.default_rng(23)
    crosses = [decoder.cross(generator, 6) for _ in range(3)]
    packed = decoder.packed(library)
    wanted = np.array([[4, 0, 4], [0, 0, 0], [0, 0, 4]])
    with LibraryBatch(packed) as batch, LibraryBatch(packed) as fewer:
        for cross in crosses:
            batch.add(cross)
        fewer.add(crosses[0])
        for token_ids, _ in _steps(generator, decoder, 3, 3, 5):
            parents = np.array([[0, 1, 2]] * 3)
            log_probs, ids = batch.step(token_ids, parents, 4, wanted)
            expected = fewer.step(token_ids[[0]][..., [0, 2]], np.array([[0, 1]]), 4)

            assert (log_probs[0, [0, 2]] == expected[0][0]).all()
            assert (ids[0, [0, 2]] == expected[1][0]).all()
            assert (log_probs[wanted == 0] == -np.inf).all()
            assert (ids[wanted == 0] == 0).all()


def test_number_of_candidates_can_differ_between_rows(library: Library, decoder: Decoder) -> None:
    wanted = np.array([[5, 0, 200], [1, 64, 65]])
    found = []
    for of_rows in (None, wanted):
        with LibraryBatch(decoder.packed(library)) as batch:
            for _ in wanted:
                batch.add(decoder.cross(np.random.default_rng(0), 3))
            found.append(batch.step(np.array([[1, 2, 3]] * 2), np.zeros((2, 3)), 200, of_rows))

    is_wanted = np.arange(200) < wanted[:, :, None]
    for all_found, few_found, none in zip(*found, (-np.inf, 0), strict=True):
        assert (few_found[is_wanted] == all_found[is_wanted]).all()
        assert (few_found[~is_wanted] == none).all()


@pytest.mark.parametrize("has_fixed_scales", [True, False], ids=["fixed", "by-row"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0, 0, 0), (3, 1, 6, 7)], ids=["key", "value"])
def test_nan_source_gives_nan_scores_only_for_its_segment(
    library: Library, instruction_set: str, has_fixed_scales: bool, bad: float, place: tuple[int, ...]
) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(29), has_fixed_scales=has_fixed_scales)
    packed = decoder.packed(library, instruction_set)
    crosses = [decoder.cross(generator, 7) for _ in range(3)]
    steps = list(_steps(generator, decoder, 3, 2, 3))
    with LibraryBatch(packed, crosses) as batch:
        expected = [batch.step(ids, of, 4)[0] for ids, of in steps]

    crosses[1][place] = bad
    with LibraryBatch(packed, crosses) as batch:
        found = [batch.step(ids, of, 4)[0] for ids, of in steps]

    for each, log_probs in zip(expected, found, strict=True):
        assert np.isnan(log_probs[1]).all()
        assert (log_probs[[0, 2]] == each[[0, 2]]).all()


@pytest.mark.parametrize("is_pre_norm", [True, False], ids=["pre", "post"])
def test_infinite_states_give_nan_scores(library: Library, instruction_set: str, is_pre_norm: bool) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(31), is_pre_norm=is_pre_norm)
    decoder.tensors["decoder.layers.0.self_attention.output.bias"][:] = 3e38
    decoder.tensors["position_encodings"][1:] = 3e38
    with LibraryBatch(decoder.packed(library, instruction_set), [decoder.cross(generator, 2)]) as batch:
        batch.step(np.array([[3]]), np.array([[0]]), 5)

        assert np.isnan(batch.step(np.array([[3]]), np.array([[0]]), 5)[0]).all()


def test_zero_rows_have_a_valid_scale(library: Library, instruction_set: str) -> None:
    decoder = Decoder.drawn(np.random.default_rng(37), has_fixed_scales=False)
    decoder.tensors["decoder.layers.0.self_attention_norm.weight"][:] = 0
    decoder.tensors["decoder.layers.0.self_attention_norm.bias"][:] = 0
    decoder.tensors["decoder.layers.1.feed_forward_norm.weight"][:] = 0
    decoder.tensors["decoder.layers.1.feed_forward_norm.bias"][:] = 1e-42  # a scale whose inverse overflows
    expected = ReferenceBatch(decoder)
    expected.add(cross := decoder.cross(np.random.default_rng(1), 5))
    with LibraryBatch(decoder.packed(library, instruction_set), [cross]) as batch:
        check_candidates(batch.step([[3]], [[0]], 70), *expected.step([[3]], [[0]]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoder.layers.0.cross_attention.query.bias": np.nan}, "a bias is not finite"),
        ({"decoder.layers.0.feed_forward.inner.weight.factors": 1e30}, "a factor of a weight exceeds 1e28"),
        ({"decoder.layers.1.self_attention_norm.weight": np.inf}, "a weight of a norm is not finite"),
        ({"decoder.norm.bias": np.inf}, "a bias of a norm is not finite"),
        ({"embedding.weight.factors": np.inf}, "a factor of the embedding is not finite"),
        ({"position_encodings": np.nan}, "a position encoding is not finite"),
    ],
)
def test_non_finite_weights_are_rejected(
    library: Library, decoder: Decoder, changed: dict[str, float], message: str
) -> None:
    for name, value in changed.items():
        decoder.tensors[name].flat[-1] = value

    with pytest.raises(EngineError, match=message):
        decoder.packed(library)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"d_model": 0}, "a size of the model"),
        ({"d_model": 12, "num_heads": 1}, "the head size"),
        ({"d_model": 20, "num_heads": 3}, "multiple of the number of heads"),
        ({"ffn_size": 65_537}, "d_model or ffn_size exceeds"),
        ({"num_layers": 0}, "number of layers"),
        ({"num_encoder_layers": 1025}, "the encoder"),
        ({"num_encoder_layers": 1, "max_source_positions": 0}, "longest source"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"embedding_factor": float("nan")}, "factor of embeddings"),
    ],
)
def test_unsupported_shapes_are_rejected(library: Library, shape: dict[str, Any], message: str) -> None:
    given = _Shape(**(_SMALLEST | shape))

    with pytest.raises(EngineError, match=message):
        library.new("model", ctypes.byref(given), library.instruction_sets[0].encode())
    with pytest.raises(EngineError, match="does not have the instruction set"):
        library.new("model", ctypes.byref(given), b"mmx")


def test_invalid_activation_scales_are_rejected(library: Library, decoder: Decoder) -> None:
    path = "decoder.layers.0.feed_forward.inner"
    for scale, zero_point, levels, message in (
        (1e-40, 3, 255, "the scale"),
        (np.nan, 3, 255, "the scale"),
        (1.0, 256, 255, "zero point"),
        (1.0, 128, 127, "zero point"),
        (1.0, 3, 100, "levels"),
    ):
        bad = ActivationScale.model_construct(scale=scale, zero_point=zero_point, levels=levels)
        activations = {**decoder.activations, path: bad}
        with pytest.raises(EngineError, match=message):
            replace(decoder, activations=activations).packed(library)


@pytest.mark.parametrize("is_from_graph", [True, False])
@pytest.mark.parametrize("missing", [1, -1])
def test_encoder_output_of_another_size_is_rejected(
    library: Library, decoder: Decoder, is_from_graph: bool, missing: int
) -> None:
    shape, source_length = decoder.architecture, 17
    positions = 2 * source_length if is_from_graph else 32 + source_length  # keys are in blocks of 16 positions
    cross = np.zeros(shape.num_decoder_layers * shape.d_model * positions, np.float32)
    network = decoder.packed(library)
    handle = library.new("batch", network.handle)
    try:
        with pytest.raises(EngineError, match="does not have the size of the source"):
            library.call(
                "batch_add", handle, source_length, cross.ctypes.data, cross.size - missing, is_from_graph, None, 0
            )
        library.call("batch_add", handle, source_length, cross.ctypes.data, cross.size, is_from_graph, None, 0)
    finally:
        library.function("batch_free")(handle)


@pytest.fixture
def batch(library: Library, decoder: Decoder) -> Iterator[LibraryBatch]:
    with LibraryBatch(decoder.packed(library)) as opened:
        opened.add(decoder.cross(np.random.default_rng(0), 3))
        yield opened


@pytest.mark.parametrize(
    ("token_ids", "parents", "num_candidates", "message"),
    [
        ([[1100]], [[0]], 1, "a token id.* outside the vocabulary"),
        ([[-1]], [[0]], 1, "a token id.* outside the vocabulary"),
        ([[1]], [[2]], 1, "a parent.* outside the rows"),
        ([[1]], [[-1]], 1, "a parent.* outside the rows"),
        ([[1]], [[0]], 1101, "candidates.* vocabulary"),
        ([[1]], [[0]], 0, "candidates"),
        (np.zeros((1, 1025)), np.zeros((1, 1025)), 1, "the number of rows"),
    ],
)
def test_rejected_step_does_not_change_the_batch(
    batch: LibraryBatch, decoder: Decoder, token_ids: Any, parents: Any, num_candidates: int, message: str
) -> None:
    generator = np.random.default_rng(0)
    expected = ReferenceBatch(decoder)
    expected.add(decoder.cross(generator, 3))
    good = (np.array([[5, 6]]), np.array([[0, 0]]))
    check_candidates(batch.step(*good, 3), *expected.step(*good))

    with pytest.raises(EngineError, match=message):
        batch.step(np.array(token_ids), np.array(parents), num_candidates)

    check_candidates(batch.step(*good, 3), *expected.step(*good))


def test_arguments_out_of_range_are_rejected(batch: LibraryBatch, decoder: Decoder) -> None:
    cross = decoder.cross(np.random.default_rng(0), 1)

    for indices, message in (([1], "not in the batch"), ([-1], "not in the batch"), ([0, 0], "kept twice")):
        with pytest.raises(EngineError, match=message):
            batch.keep(indices)
    for shortlist in ([3, 3], [4, 3], [-1], [1100]):
        with pytest.raises(EngineError, match="not ascending token ids"):
            batch.add(cross, shortlist)
    with pytest.raises(EngineError, match="larger than the vocabulary"):
        batch.add(cross, range(1101))
    with pytest.raises(EngineError, match="source length"):
        batch.add(cross[:, :, :0])
    with pytest.raises(EngineError, match="segment"):
        batch.cross(1, cross)
    for _ in range(MAX_POSITIONS):
        batch.step([[1]], [[0]], 1)
    with pytest.raises(EngineError, match="beyond the last position"):
        batch.step([[1]], [[0]], 1)


def test_incomplete_network_is_rejected(library: Library, decoder: Decoder) -> None:
    handle = library.new("model", ctypes.byref(_Shape(**_SMALLEST)), library.instruction_sets[0].encode())
    try:
        with pytest.raises(EngineError, match="missing"):
            library.new("batch", handle)
        with pytest.raises(EngineError, match="norm"):
            library.call("model_set_norm", handle, 0, 0, 3, None, None)
        with pytest.raises(EngineError, match="product"):
            library.call("model_set_product", handle, 0, 0, 6, None, None, None, 0.0, 0, 255)
        with pytest.raises(EngineError, match="layer"):
            library.call("model_set_product", handle, 1, 0, 0, None, None, None, 0.0, 0, 255)
    finally:
        library.function("model_free")(handle)
