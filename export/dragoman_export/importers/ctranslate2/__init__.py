"""Reads model directories of CTranslate2: Transformers that translate, in every precision that it stores.

What the attributes mean is read from its specifications and from its C++, and proved against it by tests.
"""
