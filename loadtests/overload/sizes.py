"""How large a call is."""


def texts_per_call(texts_per_s: float, *, at_least: int, at_most: int, max_calls_per_s: float) -> int:
    """Return how many texts a call must have so that the generator need not send more calls than it can."""
    needed = int(-(-texts_per_s // max_calls_per_s))
    return min(max(needed, at_least), at_most)
