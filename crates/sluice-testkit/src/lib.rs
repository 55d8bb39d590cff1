//! Harnesses for tests: redis-server, SDK clients, seeded randomness
