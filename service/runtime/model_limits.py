"""What a network can take, as the manifest of its bundle says."""

from service.bundle import Manifest
from service.decoding.step_model import VocabularySpec


def vocabulary_of(manifest: Manifest) -> VocabularySpec:
    """Return size and special ids."""
    ids = manifest.special_ids
    size = manifest.architecture.vocabulary_size
    return VocabularySpec(size=size, pad_id=ids.pad, bos_id=ids.bos, eos_id=ids.eos, unk_id=ids.unk)


class ManifestLimits:
    """`SegmentLimits` of a manifest; a base for what runs the network, here or elsewhere."""

    def __init__(self, manifest: Manifest) -> None:
        """Take the limits of a manifest."""
        self._manifest = manifest

    @property
    def vocabulary(self) -> VocabularySpec:
        """Size and special ids."""
        return vocabulary_of(self._manifest)

    @property
    def max_source_tokens(self) -> int:
        """Longest source it takes, EOS counted."""
        return self._manifest.limits.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Longest target it can hold, EOS counted."""
        return self._manifest.limits.max_target_tokens
