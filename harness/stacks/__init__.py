"""One file per server that a sweep can measure."""
