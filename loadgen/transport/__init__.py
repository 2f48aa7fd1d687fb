"""How a request travels and its answer comes back: connections, events, arrival times by the kernel's clock."""
