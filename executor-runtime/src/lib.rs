//! The shared executor: DataFusion behind Arrow Flight SQL.
