"""Models that were imported, run by their own libraries, for proofs that nothing changed."""
