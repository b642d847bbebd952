//! `creel run`: a program with GPUs of its own.
//!
//! The lease is this process's, and this process becomes the program. So its exit code, its
//! signals and its terminal are the program's, and the lease ends with it, however it ends.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::api;
use crate::client::Client;
use crate::error::Error;
use crate::leases::{LEASE_VARIABLE, MAX_WAIT};

/// A request that waits longer is asked in parts of this.
const PART: Duration = Duration::from_mins(3);
const _: () = assert!(PART.as_secs() < MAX_WAIT.as_secs());
/// What is asked again of an agent that has too much to do is so after that.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    gpus: u32,
    /// How long to wait for them, as 30s or 10m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    wait: Duration,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

fn duration(text: &str) -> Result<Duration, String> {
    creel_settings::duration::parse(text)
        .ok_or_else(|| "not a time, as 30s, 10m or 1h 30m".to_owned())
}

pub(crate) async fn run(arguments: &Arguments, client: &Client) -> Result<(), Error> {
    let granted = tokio::select! {
        granted = ask(arguments, client) => granted?,
        _ = tokio::signal::ctrl_c() => return Err(Error::Interrupted),
    };
    let lease = granted.lease;
    // A container may hold more than it asks for here.
    let devices = lease.devices.get(..arguments.gpus as usize).unwrap_or(&lease.devices);
    let program = &arguments.command[0];
    let source = Command::new(program)
        .args(&arguments.command[1..])
        .env("CUDA_VISIBLE_DEVICES", devices.join(","))
        .env(LEASE_VARIABLE, &lease.id)
        .exec();
    Err(Error::Program { program: program.into(), source })
}

async fn ask(arguments: &Arguments, client: &Client) -> Result<api::Granted, Error> {
    let deadline = Instant::now() + arguments.wait;
    loop {
        let wait = deadline.saturating_duration_since(Instant::now()).min(PART);
        let request = api::LeaseRequest {
            gpus: Some(arguments.gpus),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ..api::LeaseRequest::default()
        };
        match client.post("/v1/leases", &request, wait).await {
            Err(Error::Refused(_)) if Instant::now() < deadline && wait == PART => {}
            Err(Error::Busy(_)) if Instant::now() < deadline => {
                tokio::time::sleep(PAUSE.min(deadline - Instant::now())).await;
            }
            answered => return answered?.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("soon").is_err());
    }
}
