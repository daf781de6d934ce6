"""Attacks on the speed of a server: inputs that are cheap to send and may be expensive to answer."""
