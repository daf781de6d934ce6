import io
from pathlib import Path

import pytest
from sentencepiece import SentencePieceTrainer

_SENTENCES = ("The quick brown fox jumps over the lazy dog.", "Der schnelle braune Fuchs springt.", "How are you?")


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny vocabulary with byte fallback and the special ids that bundles have."""
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    path.write_bytes(_trained(pad_id=0, bos_id=1, eos_id=2, unk_id=3))
    return path


@pytest.fixture(scope="session")
def tokenizer_file_without_padding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    path.write_bytes(_trained(pad_id=-1, bos_id=1, eos_id=2, unk_id=0))
    return path


def _trained(*, pad_id: int, bos_id: int, eos_id: int, unk_id: int) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(_SENTENCES),
        model_writer=model,
        model_type="bpe",
        vocab_size=320,
        byte_fallback=True,
        num_threads=1,
        minloglevel=2,
        pad_id=pad_id,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
    )
    return model.getvalue()
