"""What two layers agree on: record schemas, the results folder, the load spec, the direct drive's frames, errors.

Nothing here starts a process, opens a socket or computes a statistic; everything here may be imported by every layer.
"""
