"""The sub-commands of `python -m export`: each module has `add_arguments(parser)` and `run(args)`."""
