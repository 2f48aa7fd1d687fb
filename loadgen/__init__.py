"""The load generator: workloads, transports, Locust users, and the process that runs them.

Only `loadgen.users` and `loadgen.process` import locust, which patches the interpreter; everything else works in any
process. Imports go one way: process -> users -> crew -> drives -> (http, openai, direct, workload) -> outcome, kinds.
`loadgen.paced` is a server of known truth, and `loadgen.selftest` holds the load process against it.
"""
