"""The model bundle: a directory with graphs, tokenizer and a manifest, which the exporter writes and the service opens.

Both use the file layout and the tensor names of this package. Opening checks everything that can be known without
loading a graph.
"""
