"""Traces of real traffic: their formats, read as a stream, and the requests that they make."""
