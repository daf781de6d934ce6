"""Tiny checkpoints of other systems with random weights, and results computed by their libraries.

The libraries cannot be installed next to this project, so `tests/parity/originals.json` stores their results. To update
it, install each library with `pip install --no-deps --target DIR` (fairseq 0.12.2 requires omegaconf 2.0 and hydra-core
1.0; `importers/reference_models/opennmt.py` of the exporter lists those of OpenNMT-py 3.5.1 and eole 0.6.4) and run

    PYTHONPATH=proto:DIR python -m tests.foreign_checkpoints fairseq opennmt eole
"""
