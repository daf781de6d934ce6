"""All instruction sets of the native engine give the same bits, on this CPU or in an emulator.

The calls are recorded with the fastest set of this CPU.
"""

import os
import platform
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pytest

from dragoman_service.bundle.files import open_bundle
from dragoman_service.bundle.int8_weights import ActivationScale
from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.library import Library
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.batch_decoding import decode_all
from tests.e2e.tools import CHECKOUT, DEPLOY, run
from tests.real_text import real_sentences
from tests.recorded_calls import recorded_calls
from tests.reference_step import Decoder, LibraryBatch, library_or_skip

pytestmark = pytest.mark.e2e

BUNDLE: Final = DEPLOY / "models" / "dragoman_models" / "en-de" / "1"
SOURCES: Final = CHECKOUT / "service" / "native" / "src"
REPLAY: Final = Path(__file__).with_name("replay.cpp")
FLAGS: Final = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-Wall", "-Wextra", "-Werror"),
    *("-Wno-ignored-attributes", "-Wno-psabi", "-Wno-maybe-uninitialized", "-Wno-uninitialized"),
)


@dataclass(frozen=True, slots=True)
class Emulator:
    """A program that runs others as on a CPU with exactly these instruction sets of the library."""

    program: str
    cpu: str
    instruction_sets: frozenset[str]


ARM: Final = "aarch64"
X86: Final = "x86_64"
EMULATORS: Final = {  # QEMU 7.2 does not emulate AMX, AVX-512 and AVX-VNNI
    "amx": None,
    "avx512": None,
    "avxvnni": None,
    "avx512bw": None,
    "avx2": Emulator("qemu-x86_64-static", "max", frozenset({"avx2"})),
    "i8mm": Emulator("qemu-aarch64-static", "max", frozenset({"i8mm", "dotprod", "neon"})),
    "dotprod": Emulator("qemu-aarch64-static", "neoverse-n1", frozenset({"dotprod", "neon"})),
    "neon": Emulator("qemu-aarch64-static", "cortex-a53", frozenset({"neon"})),
}
ARCHITECTURES: Final = {name: X86 if name[0] == "a" else ARM for name in EMULATORS}
SHAPES: Final[list[dict[str, Any]]] = [
    {"head_size": 8, "num_heads": 1, "ffn_size": 1, "num_layers": 1, "vocabulary_size": 33},
    {"head_size": 24, "num_heads": 3, "ffn_size": 63, "vocabulary_size": 63, "is_pre_norm": False},
    {"head_size": 40, "activation": "gelu", "embedding_norm": True, "projection_bias": True},
    {"head_size": 64, "activation": "swish", "ffn_size": 65, "tied_embeddings": "decoder"},
    {"head_size": 64, "num_heads": 2, "ffn_size": 192, "num_layers": 1, "vocabulary_size": 200},
    {"head_size": 128, "activation": "swiglu", "ffn_size": 43, "tied_embeddings": "none", "norm_kind": "rms"},
    {"head_size": 32, "num_heads": 4, "ffn_size": 130, "vocabulary_size": 3000},
]
SCALES: Final[list[dict[str, Any]]] = [{"levels": 127}, {"levels": 255}, {"has_fixed_scales": False}]


@pytest.fixture(scope="module")
def library() -> Library:
    return library_or_skip()


@pytest.fixture(scope="module")
def recordings(library: Library, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recorded calls of random decoders and of the bundled model."""
    directory = tmp_path_factory.mktemp("recordings")
    paths = [directory / "random", directory / "bundled"]
    with recorded_calls(library, paths[0]) as recording:
        _run_random_decoders(recording)
    with recorded_calls(library, paths[1]):
        _run_bundled_model()
    return paths


def _run_random_decoders(library: Library) -> None:
    generator = np.random.default_rng(1)
    decoders = [Decoder.drawn(generator, **shape, **scales) for shape in SHAPES for scales in SCALES]
    decoders += [
        _with_largest_products(generator, *each) for each in ((-128, 255), (-127, 255), (-128, 127), (127, 127))
    ]
    for decoder in decoders:
        size = decoder.architecture.vocabulary_size
        crosses = [decoder.cross(generator, length) for length in (16, 1, 17)]
        with LibraryBatch(decoder.packed(library), crosses[:1], num_threads=2) as batch:
            for num_rows in range(1, 10):  # kernels multiply 1 to 8 rows at once
                shape = (1, num_rows)
                parents = generator.integers(max(1, num_rows - 1), size=shape)
                batch.step(generator.integers(size, size=shape), parents, min(size, 70))
            crosses[1].flat[0] = np.nan
            for cross in crosses[1:]:
                batch.add(cross, np.arange(0, size, 2))
            for shape in ((3, 4), (3, 11), (3, 3)):
                batch.step(generator.integers(size, size=shape), generator.integers(4, size=shape), size)
            batch.keep([2, 0])
            batch.step(generator.integers(size, size=(2, 1)), np.zeros((2, 1)), size)
            batch.cross(0, crosses[2])


def _with_largest_products(generator: np.random.Generator, weight: int, levels: Literal[127, 255]) -> Decoder:
    decoder = Decoder.drawn(generator, ffn_size=1500)
    for name, tensor in decoder.tensors.items():
        if name.endswith("int8") and not name.startswith("embedding"):
            tensor[:, ::2] = weight
    scales = {  # almost all rounded values are 0 or the largest
        path: ActivationScale(scale=1e-3, zero_point=3 if path.endswith("outer") else levels // 2 + 1, levels=levels)
        for path in decoder.activations
    }
    return replace(decoder, activations=scales)


def _run_bundled_model() -> None:
    model = open_step_model(open_bundle(BUNDLE), RuntimeSettings(device="cpu", engine="native"))
    tokenizer = SentencePieceTokenizer(BUNDLE / "tokenizer.model")
    options = (
        SearchConfig(),
        SearchConfig(beam_size=1),
        SearchConfig(beam_size=5, num_hypotheses=5, length_penalty=1.0),
    )
    segments = [
        Segment(
            source_ids=(*tokenizer.encode(sentence), tokenizer.eos_id),
            search=replace(options[index % len(options)], max_target_tokens=24),
        )
        for index, sentence in enumerate(real_sentences(6))
    ]
    decode_all(model, segments, batch_size=4)


@pytest.fixture(scope="module")
def replays(library: Library, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    """The replay program for each architecture, or the reason why it cannot be built."""
    directory = tmp_path_factory.mktemp("replays")
    own = platform.machine()
    path = library._functions._name
    run("g++", *FLAGS, REPLAY, path, f"-Wl,-rpath,{Path(path).parent}", "-o", directory / own)
    replays: dict[str, Path | str] = {own: directory / own}
    other = ARM if own == X86 else X86
    compiler = shutil.which(f"{other.replace('_', '-')}-linux-gnu-g++")
    if compiler is None:
        return {**replays, other: f"no compiler for {other}"}
    sources = [REPLAY, *SOURCES.glob("*.cpp")]
    objects = [directory / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda source, target: run(compiler, *FLAGS, "-c", source, "-o", target), sources, objects))
    run(compiler, "-static", *objects, "-o", directory / other)
    return {**replays, other: directory / other}


@pytest.mark.parametrize("name", EMULATORS)
def test_recorded_results_are_equal_on_every_instruction_set(
    name: str, library: Library, recordings: list[Path], replays: dict[str, Path | str]
) -> None:
    replay, emulator = replays[ARCHITECTURES[name]], EMULATORS[name]
    command: tuple[str | Path, ...]
    if name in library.instruction_sets:
        command = (replay,)
    elif emulator is None:
        pytest.skip(f"neither this CPU nor QEMU has {name}")
    elif isinstance(replay, str) or shutil.which(emulator.program) is None:
        reason = replay if isinstance(replay, str) else f"{emulator.program} is not installed"
        if os.environ.get("CI") and platform.machine() == X86:
            pytest.fail(f"CI must test {name}: {reason}", pytrace=False)
        pytest.skip(reason)
    else:
        command = (emulator.program, "-cpu", emulator.cpu, replay)
        assert frozenset(run(*command).stdout.split()) == emulator.instruction_sets

    print(run(*command, name, *recordings).stdout)
