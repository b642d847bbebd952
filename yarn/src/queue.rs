//! What a queue needs to reach nodes with a label.
//!
//! A queue has capacity per label. Without any of a label, at itself and at every queue above it,
//! nothing that it runs reaches the label's nodes. The children of a queue share out its capacity
//! of a label: their parts are 0 or make 100 together, or the ResourceManager does not start.

use crate::directory::{Directory, File};
use crate::effective::Effective;
use crate::plan::{Need, Want};
use crate::{Error, Role, Roles};

const PREFIX: &str = "yarn.scheduler.capacity.";

/// A queue that is to reach nodes with a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name, or its path from `root`.
    pub name: String,
    /// The label.
    pub label: String,
}

/// The entries that a queue needs, whether there are or not, from `root` down.
///
/// # Errors
///
/// [`Error::NoQueue`] where there is no such queue, [`Error::Queue`] where it can't have all of
/// the label.
pub(crate) fn needs(
    wanted: &Queue,
    directory: &Directory,
    scheduler: &Effective,
) -> Result<Vec<Need>, Error> {
    let Queue { name, label } = wanted;
    let no_queue =
        || Error::NoQueue { path: directory.file(File::CapacityScheduler), name: name.clone() };
    let path = find(scheduler, name).ok_or_else(no_queue)?;
    if let [child, ..] = children(scheduler, &path).as_slice() {
        return Err(Error::Queue {
            queue: path.clone(),
            label: label.clone(),
            reason: format!("it has queues below it, such as {child}: name the one that runs jobs"),
        });
    }
    let mut needs = Vec::new();
    let steps: Vec<&str> = path.split('.').collect();
    for depth in 1..=steps.len() {
        let queue = steps[..depth].join(".");
        if depth > 1 {
            let parent = steps[..depth - 1].join(".");
            shared(scheduler, &parent, &queue, label)?;
            let of_queue = scheduler.get(&format!("{PREFIX}{queue}.capacity")).unwrap_or_default();
            if !is_percentage(&of_queue) {
                return Err(Error::Queue {
                    queue,
                    label: label.clone(),
                    reason: format!(
                        "its capacity is {of_queue:?}, and only percentages are known here: set \
                         the label's by hand, in the same form"
                    ),
                });
            }
        }
        let mut need = |key: String, want, reason: &str| {
            needs.push(Need {
                key,
                want,
                home: File::CapacityScheduler,
                at_home: true,
                roles: Roles::from([Role::ResourceManager]),
                reason: reason.to_owned(),
            });
        };
        // A queue without such an entry may use its parent's labels, and root all.
        let labels = format!("{PREFIX}{queue}.accessible-node-labels");
        if scheduler.get(&labels).is_some_and(|list| list.trim() != "*") {
            need(labels, Want::Has(label.clone()), "the queue may use nodes with the label");
        }
        need(
            format!("{PREFIX}{queue}.accessible-node-labels.{label}.capacity"),
            Want::Is { value: "100".to_owned(), exact: false },
            "without a share of the label at each queue of the path, nothing of it is scheduled",
        );
    }
    Ok(needs)
}

/// The entries that a queue needs, as names and values, for a queue that need not exist.
pub fn example(path: &str, label: &str) -> Vec<(String, String)> {
    let steps: Vec<&str> = path.split('.').collect();
    let entry = |depth| {
        let queue = steps[..depth].join(".");
        (format!("{PREFIX}{queue}.accessible-node-labels.{label}.capacity"), "100".to_owned())
    };
    (1..=steps.len()).map(entry).collect()
}

/// The path of a queue, by its path or by a name that only one has.
fn find(scheduler: &Effective, name: &str) -> Option<String> {
    let mut found = Vec::new();
    let mut open = vec!["root".to_owned()];
    // A queue that lists one above it would be without end.
    while let Some(queue) = open.pop().filter(|queue| queue.split('.').count() < 64) {
        if queue == name || queue.rsplit('.').next() == Some(name) {
            found.push(queue.clone());
        }
        open.extend(children(scheduler, &queue));
    }
    match found.as_slice() {
        [queue] => Some(queue.clone()),
        _ => found.into_iter().find(|queue| queue == name),
    }
}

fn children(scheduler: &Effective, queue: &str) -> Vec<String> {
    let names = scheduler.list(&format!("{PREFIX}{queue}.queues"));
    names.into_iter().map(|name| format!("{queue}.{name}")).collect()
}

/// Looks whether no other child of the parent has a share of the label.
fn shared(scheduler: &Effective, parent: &str, queue: &str, label: &str) -> Result<(), Error> {
    let key = |queue: &str| format!("{PREFIX}{queue}.accessible-node-labels.{label}.capacity");
    for sibling in children(scheduler, parent).iter().filter(|child| *child != queue) {
        let share = scheduler.get(&key(sibling)).unwrap_or_default();
        if !matches!(share.trim().parse::<f64>(), Ok(0.0)) && !share.trim().is_empty() {
            return Err(Error::Queue {
                queue: queue.to_owned(),
                label: label.to_owned(),
                reason: format!(
                    "{sibling} has {share} of it, and the shares of all children of {parent} have \
                     to make 100: set them by hand"
                ),
            });
        }
    }
    Ok(())
}

fn is_percentage(capacity: &str) -> bool {
    let capacity = capacity.trim();
    capacity.is_empty() || capacity.trim_end_matches('%').parse::<f64>().is_ok()
}
