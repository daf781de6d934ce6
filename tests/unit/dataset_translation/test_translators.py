"""Choice of the bundle of a run."""

from pathlib import Path

from dragoman_service.config import Settings
from dragoman_service.dataset_translation.translators import EngineSpec
from dragoman_service.models.serving import ModelSettings
from tests.tiny_bundle import build_tiny_bundle


def test_version_can_be_a_link_to_a_directory_of_another_name(tmp_path: Path) -> None:
    build_tiny_bundle(tmp_path / "elsewhere", precisions=("fp32",))
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "1").symlink_to(tmp_path / "elsewhere")
    settings = Settings(models=ModelSettings(directory=tmp_path / "models"))

    spec = EngineSpec.of(settings, "", "en", "de", beam_size=1, batch_size=1)

    assert spec.settings["model"] == "tiny/1"
    assert len(spec.open().translate(["A man."])) == 1
