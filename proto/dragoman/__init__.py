"""The wire contract of Dragoman and the thin client that other services install."""
