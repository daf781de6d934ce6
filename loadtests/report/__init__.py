"""Output of the load tests: result line, JSON, tables, plots and the HTML page."""
