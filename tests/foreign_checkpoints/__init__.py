"""Tiny checkpoints of other systems with random weights, and what their libraries compute with them.

None of them can stand beside what this project needs, so `tests/parity/originals.json` holds what they said. To make it
again, with each library where Python finds it (fairseq 0.12.2 needs omegaconf 2.0 and hydra-core 1.0; what JoeyNMT
2.3.0, OpenNMT-py 3.5.1 and eole 0.6.4 need stands in `docs/guides/bring-your-own-model.md`; of each
`pip install --no-deps --target DIR` is enough):

    PYTHONPATH=proto:DIR python -m tests.foreign_checkpoints fairseq joeynmt opennmt eole
"""
