"""Learns a Transformer from parallel text and makes a model bundle of it; the only folder that imports PyTorch."""
