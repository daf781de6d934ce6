"""Load tests with Locust: users, load shapes, results, and the metrics of the server."""
