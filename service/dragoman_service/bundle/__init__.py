"""The model bundle: a directory with graphs, tokenizer and manifest, written by the exporter and loaded by the service.

Both use the file layout and the tensor names of this package. Opening a bundle checks everything that does not require
loading a graph.
"""
