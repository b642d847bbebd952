//! All that is known, as JSON: the types of [`crate::inventory`].

use crate::Inventory;

/// An object over several lines.
pub fn text(inventory: &Inventory) -> String {
    serde_json::to_string_pretty(inventory).expect("an inventory is JSON") + "\n"
}
