"""What a network can take, as the manifest of its bundle says."""

from service.bundle import Manifest
from service.decoding.step_model import ModelLimits, VocabularySpec


def model_limits(manifest: Manifest) -> ModelLimits:
    """Return the limits of the networks of a bundle."""
    ids, limits = manifest.special_ids, manifest.limits
    return ModelLimits(
        vocabulary=VocabularySpec(
            size=manifest.architecture.vocabulary_size, pad_id=ids.pad, bos_id=ids.bos, eos_id=ids.eos, unk_id=ids.unk
        ),
        max_source_tokens=limits.max_source_tokens,
        max_target_tokens=limits.max_target_tokens,
    )
