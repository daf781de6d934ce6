"""What a bundle says of its vocabulary, as the search wants to know it."""

from service.bundle import Manifest
from service.decoding.step_model import VocabularySpec


def vocabulary_of(manifest: Manifest) -> VocabularySpec:
    """Return size and special ids."""
    ids = manifest.special_ids
    size = manifest.architecture.vocabulary_size
    return VocabularySpec(size=size, pad_id=ids.pad, bos_id=ids.bos, eos_id=ids.eos, unk_id=ids.unk)
