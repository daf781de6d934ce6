"""Tens of thousands of inputs that nobody should send: each gets its right status, nobody else notices."""
