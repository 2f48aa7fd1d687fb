"""Which requests are sent, and when: seeded synthetic ones, traces, arrivals."""
