//! What Spark's resource discovery wants, byte for byte as of Spark's `getGpusResources.sh`.

use crate::{Inventory, Unit};

/// What a GPU is called in the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Address {
    /// By its place among the node's GPUs and slices
    #[default]
    Index,
    /// By its UUID, GPU-… or MIG-…, as CUDA_VISIBLE_DEVICES takes it
    Uuid,
}

impl Address {
    /// The address of a unit; absent where the driver doesn't say its UUID.
    pub fn of(self, unit: &Unit<'_>) -> Option<String> {
        match self {
            Self::Index => Some(unit.address.to_string()),
            Self::Uuid => unit.uuid().map(str::to_owned),
        }
    }
}

/// The line of the units that are fit for use.
pub fn text(inventory: &Inventory, address: Address) -> String {
    let usable = inventory.units().filter(Unit::usable);
    line(usable.filter_map(|unit| address.of(&unit)))
}

/// One line: `{"name": "gpu", "addresses":["0","1"]}`. Where there is no address, the list is
/// empty (Spark's script gives one empty address).
pub fn line(addresses: impl IntoIterator<Item = String>) -> String {
    let quoted = |address| serde_json::Value::String(address).to_string();
    let addresses: Vec<_> = addresses.into_iter().map(quoted).collect();
    format!("{{\"name\": \"gpu\", \"addresses\":[{}]}}\n", addresses.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::node;

    #[test]
    fn units_that_are_fit() {
        let by_index = "{\"name\": \"gpu\", \"addresses\":[\"0\",\"1\",\"3\"]}\n";
        assert_eq!(text(&node(), Address::Index), by_index);
        let by_uuid = "{\"name\": \"gpu\", \"addresses\":[\"MIG-0\",\"MIG-1\",\"GPU-3\"]}\n";
        assert_eq!(text(&node(), Address::Uuid), by_uuid);
    }

    #[test]
    fn what_the_driver_does_not_name_has_no_uuid() {
        let mut node = node();
        node.gpus[3].uuid = None;
        node.gpus[0].mig.slices[0].uuid = Some("MIG-\"\n".to_owned());
        let line = "{\"name\": \"gpu\", \"addresses\":[\"MIG-\\\"\\n\",\"MIG-1\"]}\n";
        assert_eq!(text(&node, Address::Uuid), line);
    }

    #[test]
    fn none_is_an_empty_list() {
        assert_eq!(
            text(&Inventory::empty(), Address::Index),
            "{\"name\": \"gpu\", \"addresses\":[]}\n"
        );
    }
}
