"""`make loadtest`: one load offered to one server, judged, and told on one page."""
