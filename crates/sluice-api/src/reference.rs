//! The field reference, from the schema.
