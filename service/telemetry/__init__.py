"""What an operator sees: the catalogue of metrics and structured logs."""
