//! `creel queries`.

use clap::Subcommand;

use super::{answers, stdout};
use crate::api;
use crate::client::Client;
use crate::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show the running queries
    List,
    /// End a query; its client gets an error
    Cancel {
        /// The query's id, as `creel queries` shows it
        id: String,
    },
}

pub(crate) async fn run(action: Option<&Action>, client: &Client, json: bool) -> Result<(), Error> {
    match action {
        None | Some(Action::List) => answers::show::<api::Queries>(client, json).await,
        Some(Action::Cancel { id }) => {
            let cancelled: api::Cancelled = cancel(id, client).await?;
            if json {
                stdout::json(&cancelled)
            } else {
                stdout::write(format!("cancelled {}\n", cancelled.id).as_bytes())
            }
        }
    }
}

async fn cancel(id: &str, client: &Client) -> Result<api::Cancelled, Error> {
    // No id has any other character, and a path can't carry them.
    if id.is_empty()
        || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    {
        return Err(Error::NotFound(format!(
            "there is no query {id:?}; `creel queries` lists them"
        )));
    }
    client.delete(&format!("/v1/queries/{id}")).await?.parse()
}
