"""The load generator: workloads, transports, Locust users, and the process that runs them.

Locust, which patches the interpreter, is imported by the modules that say so, in processes of their own; all else works
in any process. Imports go one way: process -> users -> crew -> drives -> (transport, workload) -> outcome, kinds.
`loadgen.paced` is a server of known truth, and `loadgen.selftest` holds the load process against it.
"""
