//! The custom resources: types, CEL rules, defaults, conditions, and the offline check
