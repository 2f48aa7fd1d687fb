"""The RPC layer between proxy and rank 0: sealed pickles over ZMQ, six request tasks, a streamed answer."""
