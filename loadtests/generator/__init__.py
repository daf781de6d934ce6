"""Load generator: arrivals, workload, client, records, objectives and the server under test."""
