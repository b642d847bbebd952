//! What has to change, and why.
//!
//! | role | entry | file, unless another has it |
//! |---|---|---|
//! | all | `yarn.scheduler.capacity.resource-calculator` | `capacity-scheduler.xml`, if there is one |
//! | all | `yarn.resource-types` has `yarn.io/gpu` | `resource-types.xml` |
//! | all | `….yarn.io/gpu.maximum-allocation`, if asked for | beside the resource types |
//! | nm | `….resource-plugins` has `yarn.io/gpu` | `yarn-site.xml` |
//! | nm | `….gpu.path-to-discovery-executables` | `yarn-site.xml` |
//! | nm | `….resource-plugins.fail-fast` is `false` | `yarn-site.xml` |
//!
//! The calculator belongs to every role: wherever the resource type is written, a ResourceManager
//! that reads the same directory has to survive it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Refusal};
use crate::configuration::Document;
use crate::danger::{Danger, dangers};
use crate::directory::{Directory, Documents, File};
use crate::effective::{Effective, items};
use crate::keys;
use crate::queue::{self, Queue};
use crate::{Error, Role, Roles};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What the machine is to YARN.
    pub roles: Roles,
    /// The `nvidia-smi` that the NodeManager is to ask; needed for its role alone.
    pub nvidia_smi: Option<NvidiaSmi>,
    /// GPUs that one container may ask for, in the whole cluster.
    pub max_gpus_per_container: Option<usize>,
    /// The queue that is to reach the nodes with a label.
    pub queue: Option<Queue>,
}

/// An `nvidia-smi`, and what it answered.
#[derive(Clone, Debug)]
pub struct NvidiaSmi {
    /// The directory that it is in.
    pub directory: PathBuf,
    /// What it answered, or why YARN would refuse that.
    pub answer: Result<Answer, Refusal>,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file.
    pub file: File,
    /// The entry's name.
    pub key: String,
    /// The value that held before, as it stood; absent if none did.
    pub before: Option<String>,
    /// The value that holds from now on.
    pub value: String,
    /// How the file is changed.
    pub how: How,
    /// The roles that need it.
    pub roles: Roles,
    /// Why.
    pub reason: String,
}

/// How a file is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// By another entry, after all others.
    Added {
        /// The item that the value has besides those it had, if it is a list.
        item: Option<String>,
    },
    /// By another value in the place of this one.
    Set {
        /// What stood there, as XML.
        from: String,
    },
    /// By one more item in a list.
    Joined {
        /// The item.
        item: String,
        /// What stood there, as XML.
        from: String,
    },
}

/// What has to change.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each change, in the order of need.
    pub changes: Vec<Change>,
    /// The files as they are to be: those that change.
    pub after: Documents,
    /// What is to be known, and needs no change.
    pub notices: Vec<String>,
}

/// An entry that is needed.
pub(crate) struct Need {
    pub(crate) key: String,
    pub(crate) want: Want,
    /// Where it belongs if no file has it, or if it has to be there.
    pub(crate) home: File,
    /// Whether it has to be in its home, whatever other file has it.
    pub(crate) at_home: bool,
    pub(crate) roles: Roles,
    pub(crate) reason: String,
}

pub(crate) enum Want {
    /// This value; white space around it counts only where YARN doesn't trim.
    Is { value: String, exact: bool },
    /// This item among the others of a list.
    Has(String),
}

impl Want {
    fn is_met(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (_, None) => false,
            (Self::Is { value, exact: true }, Some(now)) => now == value,
            (Self::Is { value, .. }, Some(now)) => now.trim() == value,
            (Self::Has(item), Some(now)) => items(now).iter().any(|known| known == item),
        }
    }
}

impl Plan {
    /// Finds out what has to change in a directory, on the machine below a root (`/`).
    ///
    /// # Errors
    ///
    /// Where it can't be done, or where a daemon would not start any more: see [`Error`].
    pub fn make(directory: &Directory, wanted: &Wanted, root: &Path) -> Result<Self, Error> {
        let documents = directory.documents();
        let yarn = Effective::of_yarn(directory, documents);
        let mut plan = Self {
            changes: Vec::new(),
            after: Documents::new(),
            notices: directory.notices().into(),
        };
        let mut now = documents.clone();
        let mut needs = type_needs(directory, wanted, &yarn, &mut plan.notices)?;
        needs.extend(node_needs(wanted, &yarn, &mut plan.notices)?);
        if let Some(wanted) = &wanted.queue {
            let scheduler = Effective::of_scheduler(directory, documents);
            needs.extend(queue::needs(wanted, directory, &scheduler)?);
            if yarn.get(keys::NODE_LABELS).as_deref().map(str::trim) != Some("true") {
                plan.notices.push(format!(
                    "{} is not true: the ResourceManager has no labels until it is",
                    keys::NODE_LABELS
                ));
            }
        }
        for need in needs {
            if let Some(change) = meet(directory, &mut now, &need)? {
                plan.changes.push(change);
            }
        }
        now.retain(|file, document| documents.get(file) != Some(document));
        plan.after = now;
        plan.check(directory, root)?;
        Ok(plan)
    }

    /// Whether nothing has to change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The files as they will be.
    pub fn documents(&self, directory: &Directory) -> Documents {
        let mut documents = directory.documents().clone();
        documents.extend(self.after.clone());
        documents
    }

    /// Looks for dangers after the changes, and after each file of them.
    fn check(&self, directory: &Directory, root: &Path) -> Result<(), Error> {
        let mut documents = directory.documents().clone();
        let before = dangers(directory, &documents, root);
        for (file, document) in &self.after {
            documents.insert(*file, document.clone());
            let after = dangers(directory, &documents, root);
            let new: Vec<Danger> = after.difference(&before).cloned().collect();
            if !new.is_empty() {
                return Err(Error::Dangerous { path: directory.path().to_owned(), dangers: new });
            }
        }
        Ok(())
    }
}

/// What every role needs: the resource type, and a scheduler that can count it.
fn type_needs(
    directory: &Directory,
    wanted: &Wanted,
    yarn: &Effective,
    notices: &mut Vec<String>,
) -> Result<Vec<Need>, Error> {
    let mut needs = Vec::new();
    let documents = directory.documents();
    let scheduler = Effective::of_scheduler(directory, documents);
    let for_rm = wanted.roles.has(Role::ResourceManager);
    let store = yarn.get(keys::SCHEDULER_STORE).unwrap_or_default();
    if keys::scheduler(yarn) == keys::Scheduler::Other {
        notices.push(format!(
            "the scheduler is {}: only the CapacityScheduler is known here; a FairScheduler counts \
             GPUs with the policy drf alone",
            yarn.get(keys::SCHEDULER).unwrap_or_default().trim()
        ));
    } else if !documents.contains_key(&File::CapacityScheduler) {
        if for_rm {
            notices.push(format!(
                "there is no capacity-scheduler.xml in {}: no ResourceManager starts from there",
                directory.path().display()
            ));
        }
    } else if ["leveldb", "zk", "fs"].contains(&store.trim()) && for_rm {
        return Err(Error::SchedulerStore { store: store.trim().to_owned() });
    } else if keys::is_default_calculator(&scheduler) {
        needs.push(Need {
            key: keys::CALCULATOR.to_owned(),
            want: Want::Is { value: keys::DOMINANT.to_owned(), exact: false },
            home: File::CapacityScheduler,
            at_home: true,
            roles: wanted.roles.clone(),
            reason: "a ResourceManager that knows more than memory and vcores does not start with \
                     DefaultResourceCalculator"
                .to_owned(),
        });
    }
    let file_of = |key| yarn.entry(key).filter(|entry| entry.value.is_some()).map(|e| e.file);
    // A file with the plugin has to have the type as well, if the type would come after it.
    let together = file_of(keys::PLUGINS) == Some(File::ResourceTypes);
    let home = match file_of(keys::RESOURCE_TYPES) {
        Some(File::YarnSite) if !together => File::YarnSite,
        _ => File::ResourceTypes,
    };
    needs.push(Need {
        key: keys::RESOURCE_TYPES.to_owned(),
        want: Want::Has(keys::GPU.to_owned()),
        home,
        at_home: together,
        roles: wanted.roles.clone(),
        reason: "ResourceManager, NodeManagers and applications have to know the resource"
            .to_owned(),
    });
    if let Some(count) = wanted.max_gpus_per_container {
        needs.push(Need {
            key: keys::GPU_MAXIMUM.to_owned(),
            want: Want::Is { value: count.to_string(), exact: false },
            home,
            at_home: false,
            roles: wanted.roles.clone(),
            reason: "asked for: no container of the cluster may have more GPUs".to_owned(),
        });
    }
    Ok(needs)
}

/// What a NodeManager needs beyond that.
fn node_needs(
    wanted: &Wanted,
    yarn: &Effective,
    notices: &mut Vec<String>,
) -> Result<Vec<Need>, Error> {
    let Some(nvidia_smi) =
        wanted.nvidia_smi.as_ref().filter(|_| wanted.roles.has(Role::NodeManager))
    else {
        return Ok(Vec::new());
    };
    let directory = &nvidia_smi.directory;
    let answer = nvidia_smi.answer.as_ref().map_err(|refusal| Error::Answer {
        program: directory.join("nvidia-smi"),
        refusal: refusal.clone(),
    })?;
    if answer.gpus.is_empty() {
        let enabled = yarn.list(keys::PLUGINS).iter().any(|name| name == keys::GPU);
        notices.push(if enabled {
            "this machine has no GPU, and its NodeManager's GPU plugin is on: creel yarn undo \
             --role nm takes it out, if creel put it in"
                .to_owned()
        } else {
            "this machine has no GPU: its NodeManager's GPU plugin stays off".to_owned()
        });
        return Ok(Vec::new());
    }
    notices.extend(answer.notices());
    if let Some(list) = yarn.get(keys::ALLOWED_DEVICES).filter(|list| list != "auto") {
        notices.push(format!(
            "{} is {list:?}, and stays so: YARN counts these, and not what nvidia-smi shows; GPUs \
             that are not in the list can be opened by every container",
            keys::ALLOWED_DEVICES
        ));
    }
    if yarn.get(keys::DEVICE_CLASSES).is_some_and(|classes| classes.contains("NvidiaGPUPlugin")) {
        notices.push(format!(
            "{} has NVIDIA's plugin: it offers the same GPUs once more, as another resource",
            keys::DEVICE_CLASSES
        ));
    }
    let path = directory.to_str().ok_or_else(|| Error::Path { path: directory.clone() })?;
    let need = |key: &str, want, reason: &str| Need {
        key: key.to_owned(),
        want,
        home: File::YarnSite,
        at_home: false,
        roles: Roles::from([Role::NodeManager]),
        reason: reason.to_owned(),
    };
    Ok(vec![
        need(
            keys::DISCOVERY,
            Want::Is { value: path.to_owned(), exact: true },
            "an nvidia-smi that answers at once, whatever the driver does; a directory, since \
             Hadoop 3.3 and older refuse a file of that name (YARN-10593)",
        ),
        need(
            keys::FAIL_FAST,
            Want::Is { value: "false".to_owned(), exact: false },
            "a NodeManager whose GPUs are all gone starts without them",
        ),
        need(
            keys::PLUGINS,
            Want::Has(keys::GPU.to_owned()),
            "the NodeManager counts the node's GPUs and tells the ResourceManager",
        ),
    ])
}

/// Meets a need, if it isn't met.
fn meet(
    directory: &Directory,
    documents: &mut Documents,
    need: &Need,
) -> Result<Option<Change>, Error> {
    let effective = |documents: &Documents| match need.home {
        File::CapacityScheduler => Effective::of_scheduler(directory, documents),
        _ => Effective::of_yarn(directory, documents),
    };
    let now = effective(documents);
    if need.want.is_met(now.get(&need.key).as_deref()) {
        return Ok(None);
    }
    let entry = now.entry(&need.key);
    if let Some(entry) = entry.filter(|entry| entry.is_final) {
        return Err(Error::Final {
            path: entry.path.clone(),
            line: entry.line,
            key: need.key.clone(),
            value: entry.value.clone(),
        });
    }
    let file = match entry {
        Some(entry) if !need.at_home && entry.file != File::CoreSite => entry.file,
        _ => need.home,
    };
    let document = documents.entry(file).or_insert_with(Document::empty);
    // It can be changed in its place if it is the one that holds.
    let in_place = entry.is_some_and(|entry| {
        entry.path == directory.file(file)
            && document.last(&need.key).is_some_and(|last| last.line == entry.line)
    });
    let before = entry.and_then(|entry| entry.value.clone());
    let failed = |malformed| Error::Malformed { path: directory.file(file), malformed };
    let from = document.raw(&need.key).unwrap_or_default().to_owned();
    let how = match (&need.want, in_place) {
        (Want::Is { value, .. }, true) => {
            document.set(&need.key, value).map_err(failed)?;
            How::Set { from }
        }
        (Want::Has(item), true) => {
            document.join(&need.key, item).map_err(failed)?;
            How::Joined { item: item.clone(), from }
        }
        (Want::Is { value, .. }, false) => {
            document.append(&[(&need.key, value)]).map_err(failed)?;
            How::Added { item: None }
        }
        (Want::Has(item), false) => {
            let list = before.as_deref().map(items).unwrap_or_default();
            let list = list.into_iter().chain([item.clone()]).collect::<Vec<_>>().join(",");
            document.append(&[(&need.key, &list)]).map_err(failed)?;
            How::Added { item: Some(item.clone()) }
        }
    };
    let value = document.last(&need.key).and_then(|last| last.value.clone()).unwrap_or_default();
    if !need.want.is_met(effective(documents).get(&need.key).as_deref()) {
        return Err(Error::Overridden { path: directory.file(file), key: need.key.clone() });
    }
    Ok(Some(Change {
        file,
        key: need.key.clone(),
        before,
        value,
        how,
        roles: need.roles.clone(),
        reason: need.reason.clone(),
    }))
}
