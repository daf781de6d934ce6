"""How much a server bears: the highest rate that holds an objective, and latency at rates up to beyond it."""
