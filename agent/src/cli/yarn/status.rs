//! `creel yarn status`: the node as YARN sees it, beside what it is.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use creel_settings::{Settings, Sources};
use serde::Serialize;

use super::conf_dir;
use crate::api;
use crate::cli::human::or_unknown;
use crate::cli::stdout;
use crate::error::Error;
use crate::yarn::provider::attributes;
use crate::yarn::rest::Node;
use crate::yarn::status::{self, Configuration, Difference, Said, Seen, differences};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    conf_dir: conf_dir::Arguments,
}

/// What is printed with `--json`. What could not be asked is `null`, and `differences` says why.
#[derive(Serialize)]
struct Answer {
    schema: u32,
    resourcemanager: Daemon,
    nodemanager: Daemon,
    node: Option<NodeAnswer>,
    gpus: Gpus,
    labels: Option<Vec<String>>,
    attributes: Option<BTreeMap<String, String>>,
    configuration: Option<Configuration>,
    leases: Option<usize>,
    differences: Vec<Difference>,
}

#[derive(Serialize)]
struct Daemon {
    urls: Vec<String>,
    version: Option<String>,
    state: Option<String>,
}

/// The node, as the ResourceManager knows it.
#[derive(Serialize)]
struct NodeAnswer {
    id: String,
    state: Option<String>,
    health_report: Option<String>,
    containers: Option<u64>,
}

/// How many GPUs and slices, by who says so.
#[derive(Serialize)]
struct Gpus {
    /// That the ResourceManager gives out.
    resourcemanager: Option<u64>,
    /// Of these, that containers have.
    used: Option<u64>,
    /// That nvidia-smi shows the NodeManager.
    nodemanager: Option<usize>,
    /// That YARN is to be shown.
    shown: Option<u64>,
    /// That are fit for use.
    fit: Option<u64>,
}

pub(super) async fn run(
    arguments: &Arguments,
    run_dir: Option<PathBuf>,
    config: Option<PathBuf>,
    json: bool,
) -> Result<(), Error> {
    let settings = Settings::load(&Sources::of_process(config, Vec::new()))?.settings;
    let conf_dir = arguments.conf_dir.given();
    let seen = status::look(&Arc::new(settings), conf_dir, run_dir).await;
    let answer = Answer::of(&seen);
    if json {
        stdout::json(&answer)?;
    } else {
        stdout::write(answer.text().as_bytes())?;
    }
    match answer.differences.len() {
        0 => Ok(()),
        1 => Err(Error::Failed("YARN and this node differ".to_owned())),
        count => Err(Error::Failed(format!("YARN and this node differ in {count} things"))),
    }
}

impl Answer {
    fn of(seen: &Seen) -> Self {
        let rm = seen.resource_manager.as_ref().ok();
        let nm = seen.node_manager.as_ref().ok();
        let node = seen.node.as_ref().ok().and_then(Option::as_ref);
        let snapshot = seen.snapshot.as_ref().ok();
        let healthy = nm.and_then(|info| info.node_healthy);
        let health = healthy.map(|healthy| if healthy { "healthy" } else { "unhealthy" });
        Self {
            schema: api::SCHEMA,
            resourcemanager: Daemon {
                urls: seen.resource_manager_urls.clone(),
                version: rm.and_then(|info| info.resource_manager_version.clone()),
                state: rm.and_then(|info| info.ha_state.clone().or(info.state.clone())),
            },
            nodemanager: Daemon {
                urls: seen.node_manager_url.clone().into_iter().collect(),
                version: nm.and_then(|info| info.node_manager_version.clone()),
                state: health.map(str::to_owned),
            },
            node: node.map(|node| NodeAnswer {
                id: node.id.clone(),
                state: node.state.clone(),
                health_report: node.health_report.clone(),
                containers: node.num_containers,
            }),
            gpus: Gpus {
                resourcemanager: node.and_then(|node| node.total.gpus()),
                used: node.and_then(|node| node.used.gpus()),
                nodemanager: nodemanager_gpus(seen),
                shown: snapshot.map(attributes::count),
                fit: snapshot.map(status::fit),
            },
            labels: node.map(|node| node.node_labels.clone()),
            attributes: node.map(of_node_manager),
            configuration: seen.configuration.as_ref().ok().cloned(),
            leases: seen.leases.as_ref().ok().map(Vec::len),
            differences: differences(seen),
        }
    }

    fn text(&self) -> String {
        let gpus = &self.gpus;
        let mut lines = vec![
            ("resourcemanager", self.resourcemanager.text()),
            ("nodemanager", self.nodemanager.text()),
            ("node", self.node.as_ref().map_or_else(|| "-".to_owned(), NodeAnswer::text)),
            (
                "gpus",
                format!(
                    "{} counted by the ResourceManager, {} used; {} shown to the NodeManager; {} \
                     here, {} fit for use",
                    or_unknown(gpus.resourcemanager),
                    or_unknown(gpus.used),
                    or_unknown(gpus.nodemanager),
                    or_unknown(gpus.shown),
                    or_unknown(gpus.fit)
                ),
            ),
            ("leases", or_unknown(self.leases)),
        ];
        if let Some(labels) = self.labels.as_ref().filter(|labels| !labels.is_empty()) {
            lines.push(("labels", labels.join(" ")));
        }
        if let Some(attributes) = self.attributes.as_ref().filter(|found| !found.is_empty()) {
            let each = attributes.iter().map(|(name, value)| format!("{name}={value}"));
            lines.push(("attributes", each.collect::<Vec<_>>().join(" ")));
        }
        if let Some(Configuration { conf_dir, pending }) = &self.configuration {
            let state = if pending.is_empty() { "nothing to apply" } else { "differs" };
            lines.push(("configuration", format!("{}, {state}", conf_dir.display())));
        }
        let mut text = String::new();
        for (name, value) in lines {
            writeln!(text, "{name:<17}{value}").expect("a string takes any text");
        }
        for Difference { what, remedy } in &self.differences {
            writeln!(text, "\n! {what}\n  → {remedy}").expect("a string takes any text");
        }
        text
    }
}

impl Daemon {
    fn text(&self) -> String {
        let said = [self.version.clone(), self.state.clone()];
        let known: Vec<_> = said.into_iter().flatten().collect();
        let known = if known.is_empty() { "no answer".to_owned() } else { known.join(", ") };
        match self.urls.as_slice() {
            [] => known,
            urls => format!("{}, {known}", urls.join(" ")),
        }
    }
}

impl NodeAnswer {
    fn text(&self) -> String {
        format!(
            "{}, {}, {} containers",
            self.id,
            or_unknown(self.state.as_ref()),
            or_unknown(self.containers)
        )
    }
}

fn nodemanager_gpus(seen: &Seen) -> Option<usize> {
    let gpus: &Said<_> = &seen.node_manager_gpus;
    gpus.as_ref().ok().map(|gpus| gpus.as_ref().map_or(0, |gpus| gpus.gpus.len()))
}

/// The attributes that the NodeManager's script says.
fn of_node_manager(node: &Node) -> BTreeMap<String, String> {
    let attributes = node.attributes().iter();
    attributes.map(|attribute| (attribute.name.clone(), attribute.value.clone())).collect()
}
