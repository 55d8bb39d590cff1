//! The sluice command: run, check, and more
