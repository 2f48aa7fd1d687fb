"""Load processes on other machines: the gateway, the worker, and the channel between them."""
