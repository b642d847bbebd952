//! What Spark's resource discovery wants, byte for byte as of Spark's `getGpusResources.sh`.

use crate::Inventory;

/// One line: `{"name": "gpu", "addresses":["0","1"]}`. The addresses are those of the units that
/// are fit for use. Where there is none, the list is empty (Spark's script gives one empty address).
pub fn text(inventory: &Inventory) -> String {
    let usable = inventory.units().filter(crate::Unit::usable);
    let addresses: Vec<_> = usable.map(|unit| format!("\"{}\"", unit.address)).collect();
    format!("{{\"name\": \"gpu\", \"addresses\":[{}]}}\n", addresses.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::node;

    #[test]
    fn units_that_are_fit() {
        assert_eq!(text(&node()), "{\"name\": \"gpu\", \"addresses\":[\"0\",\"1\",\"3\"]}\n");
    }

    #[test]
    fn none_is_an_empty_list() {
        assert_eq!(text(&Inventory::empty()), "{\"name\": \"gpu\", \"addresses\":[]}\n");
    }
}
