//! The scripted model provider that sluice run plays and tests use
