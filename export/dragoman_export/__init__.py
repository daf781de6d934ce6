"""Trains Transformers on parallel text and exports model bundles; the only package that imports PyTorch."""
