"""What an operator sees: metrics, traces, structured logs, and the HTTP port."""
