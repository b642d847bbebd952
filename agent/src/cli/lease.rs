//! `creel lease`.

use clap::Subcommand;

use super::{answers, stdout};
use crate::api;
use crate::client::Client;
use crate::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show a lease
    Show {
        /// The lease's id, as `creel leases` shows it
        id: String,
    },
    /// End a lease; what runs on its GPUs goes on, and they are not given until it has gone
    Release {
        /// The lease's id; or `doubt`, for what a lost lease store may have held
        id: String,
    },
}

pub(crate) async fn run(action: &Action, client: &Client, json: bool) -> Result<(), Error> {
    match action {
        Action::Show { id } => {
            let granted: api::Granted = client.get(&path(id)?).await?.parse()?;
            if json {
                stdout::json(&granted)
            } else {
                stdout::table(&answers::lease(&granted.lease))
            }
        }
        Action::Release { id } => {
            let released: api::Released = client.delete(&path(id)?).await?.parse()?;
            if json {
                stdout::json(&released)
            } else {
                stdout::write(format!("released {}\n", released.id).as_bytes())
            }
        }
    }
}

fn path(id: &str) -> Result<String, Error> {
    // No id has any other character, and a path can't carry them.
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(Error::NotFound(format!(
            "there is no lease {id:?}; `creel leases` lists them"
        )));
    }
    Ok(format!("/v1/leases/{id}"))
}
