//! Runs lua/ in Redis and in the embedded interpreter: one trait, two homes
