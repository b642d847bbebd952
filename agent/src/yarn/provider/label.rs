//! The node's label (Hadoop, "YARN Node Labels", `ScriptBasedNodeLabelsProvider`).
//!
//! The last line that begins with `NODE_PARTITION:` names the one label of the node, without a
//! blank before it. No such line takes the label away; a script that fails changes nothing.

use creel_discovery::Snapshot;

use super::name::{checked_label, name_of};
use crate::error::Error;

/// Which label a node with GPUs has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// This one.
    Named(String),
    /// The model of its GPUs, as `NVIDIA-H200`; of several models, that of the first GPU.
    Model,
}

/// A label that an operator chose, if YARN takes it for one.
///
/// # Errors
/// [`Error::Usage`] if it doesn't.
pub fn parse(label: &str) -> Result<String, Error> {
    checked_label(label).map(str::to_owned)
}

/// The script's output for that node. One without a GPU has no label; a GPU that is lost is one
/// nevertheless, so that containers are not moved for it.
pub fn print(snapshot: &Snapshot, label: &Label) -> Result<String, Error> {
    let gpus = &snapshot.inventory.gpus;
    let label = match label {
        Label::Named(label) => checked_label(label)?.to_owned(),
        Label::Model if gpus.is_empty() => String::new(),
        Label::Model => {
            let models = gpus.iter().filter_map(|gpu| name_of(gpu.name.as_deref()?));
            models.into_iter().next().ok_or_else(|| {
                Error::Failed("the driver does not say what model the GPUs are".to_owned())
            })?
        }
    };
    if gpus.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("NODE_PARTITION:{label}\n"))
}

#[cfg(test)]
mod tests {
    use creel_discovery::{Gpu, Health, Inventory};

    use super::*;

    fn node(names: &[Option<&str>]) -> Snapshot {
        let names = names.iter().map(|name| name.map(str::to_owned));
        let gpus = names.map(|name| Gpu { name, ..Gpu::default() }).collect();
        let inventory = Inventory { gpus, ..Inventory::empty() };
        Snapshot::new(inventory, 0)
    }

    #[test]
    fn a_node_with_gpus_has_the_label_and_another_none() {
        let named = Label::Named("gpu".to_owned());
        let mut snapshot = node(&[Some("NVIDIA H200"), None]);
        assert_eq!(print(&snapshot, &named).unwrap(), "NODE_PARTITION:gpu\n");
        assert_eq!(print(&snapshot, &Label::Model).unwrap(), "NODE_PARTITION:NVIDIA-H200\n");
        for gpu in &mut snapshot.inventory.gpus {
            gpu.health = Health::unhealthy("lost".to_owned());
        }
        assert_eq!(print(&snapshot, &named).unwrap(), "NODE_PARTITION:gpu\n");
        assert_eq!(print(&node(&[]), &named).unwrap(), "");
        assert_eq!(print(&node(&[]), &Label::Model).unwrap(), "");
    }

    #[test]
    fn what_is_unknown_or_no_label_changes_nothing() {
        assert!(print(&node(&[None]), &Label::Model).is_err());
        for label in ["1g.5gb", "", "a b"] {
            let error = print(&node(&[None]), &Label::Named(label.to_owned())).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{error}");
        }
    }
}
