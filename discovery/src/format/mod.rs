//! The formats of an inventory. Each gives all of its text at once: nothing is ever half printed.

pub mod json;
pub mod spark;
pub mod table;

pub use self::spark::Address;
use crate::Inventory;
use crate::nvidia_smi::{self, View};

/// A format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The line that Spark's resource discovery wants
    Spark,
    /// All that is known, as JSON
    Json,
    /// For people
    #[default]
    Table,
    /// XML as of `nvidia-smi -x -q`, for YARN
    NvidiaSmi,
}

impl Format {
    /// The text of an inventory, with its last line's end. The addresses are Spark's.
    pub fn text(self, inventory: &Inventory, address: Address) -> String {
        match self {
            Self::Spark => spark::text(inventory, address),
            Self::Json => json::text(inventory),
            Self::Table => table::text(inventory),
            Self::NvidiaSmi => nvidia_smi::xml::text(&View::of_inventory(inventory)),
        }
    }
}
