"""Two servers under the same load, one after the other: which answers sooner, and which bears more?"""
