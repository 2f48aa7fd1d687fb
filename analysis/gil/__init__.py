"""Who held the GIL, who waited, for whom and how long: from looks, traces and stacks."""
