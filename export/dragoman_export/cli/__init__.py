"""The sub-commands of `python -m dragoman_export`: each module has `add_arguments(parser)` and `run(args)`."""
