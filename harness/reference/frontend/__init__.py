"""The ways into the proxy: OpenAI's HTTP interface, and the direct drive's socket. Both live on the main thread."""
