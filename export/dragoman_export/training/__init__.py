"""Learning a model: the loop, its loss, schedule, optimizer, checkpoints, evaluation and curves."""
