"""Several processes for one server: front ends, and the owner of scheduler, models, limits and metrics."""
