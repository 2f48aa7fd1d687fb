"""Rank 0's engine: request queue, executor loop, host work per step, and the device behind it."""
