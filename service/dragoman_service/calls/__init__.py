"""Calls of all transports: handlers, policies, request pipeline, conversion of messages, errors, flow control."""
