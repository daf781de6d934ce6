"""The Transformer of Vaswani et al. 2017 (arXiv:1706.03762) in PyTorch."""
