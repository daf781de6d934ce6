"""Imports CTranslate2 model directories: Transformers for translation, in every stored precision.

The meaning of attributes follows CTranslate2's specifications and C++ code, and is checked by parity tests.
"""
