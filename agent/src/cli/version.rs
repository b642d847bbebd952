//! `creel version`.

use serde::Serialize;

use super::stdout;
use crate::api;
use crate::client::Client;
use crate::error::Error;
use crate::run_dir::RunDir;

/// The versions, as JSON.
#[derive(Debug, Serialize)]
struct Versions {
    schema: u32,
    /// This program's.
    version: &'static str,
    /// The agent's; `null` where none answers.
    agent: Option<String>,
}

pub(crate) async fn run(run_dir: Option<RunDir>, json: bool) -> Result<(), Error> {
    let versions = Versions {
        schema: api::SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        agent: match run_dir {
            Some(run_dir) => of_agent(&Client::new(&run_dir)).await,
            None => None,
        },
    };
    if json {
        return stdout::json(&versions);
    }
    let agent = versions.agent.as_deref().unwrap_or("not reachable");
    stdout::write(format!("creel {}\nagent {agent}\n", versions.version).as_bytes())
}

async fn of_agent(client: &Client) -> Option<String> {
    let answer = client.get("/v1/version").await.ok()?;
    Some(answer.parse::<api::Version>().ok()?.version)
}
