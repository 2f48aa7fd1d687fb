"""Scaling: how latency, throughput and GIL wait grow with the load, and what cells that were not run would show.

    points -> services (work by operation) -> law (a closed queueing model) -> heldout, whatif -> study
    points -> knee (universal scalability law)

`docs/scaling.md` has the formulas. `study_scaling` is what reports, `loadgen show` and the notebooks call.
"""
