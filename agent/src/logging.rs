//! The agent's log.

use std::io::{self, IsTerminal};

use creel_settings::LogFormat;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::error::Error;

/// The running log: its filter can change, its format can't.
#[derive(Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Starts the log of this process, on standard error or in the journal. `directives` is as
    /// for `agent.log_level`.
    pub fn start(format: LogFormat, directives: &str) -> Result<Self, Error> {
        let (filter, handle) = reload::Layer::new(parse(directives)?);
        let written: Box<dyn Layer<_> + Send + Sync> = match format {
            LogFormat::Human => fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal())
                .with_target(false)
                .boxed(),
            LogFormat::Json => fmt::layer().json().with_writer(io::stderr).boxed(),
            LogFormat::Journald => tracing_journald::layer()
                .map_err(|error| {
                    Error::Log(format!(
                        "the journal is not there ({error}): set agent.log_format to human or json"
                    ))
                })?
                .with_syslog_identifier("creeld".to_owned())
                .boxed(),
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(written)
            .try_init()
            .map_err(|error| Error::Log(error.to_string()))?;
        Ok(Self { filter: handle })
    }

    /// Logs by other directives from now on.
    pub fn set_level(&self, directives: &str) -> Result<(), Error> {
        let filter = parse(directives)?;
        self.filter.reload(filter).map_err(|error| Error::Log(error.to_string()))
    }
}

fn parse(directives: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(directives).map_err(|error| {
        Error::Log(format!(
            "agent.log_level {directives:?} is neither a level (error, warn, info, debug, trace) \
             nor directives as info,creel_agent=debug: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives() {
        parse("info,creel_agent=debug").unwrap();
        let error = parse("creel_agent=loud").unwrap_err().to_string();
        assert!(error.contains("agent.log_level") && error.contains("loud"), "{error}");
    }
}
