"""A serving stack that re-creates the RPC executor path of TensorRT-LLM in plain Python; only the GPU is replaced.

Same processes, threads, sockets, serialisation and loop order as the original, so that the same code paths hold the
same GILs. What costs GIL time in the original costs it here by doing the same kind of work.
"""
