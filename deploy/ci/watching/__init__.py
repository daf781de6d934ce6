"""What `python -m deploy.ci.watching_test` is made of: the daemons, the load, and what is asked of both."""
