"""The sweep: plan, cells, launching, placement, observers; the stacks it can launch; the reference serving stack."""
