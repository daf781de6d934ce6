"""Serves model bundles: the gRPC translation server and everything beneath it."""
