//! The command line `creel`.
//!
//! ```text
//!   creel status, gpus, …, queries cancel, run ─▶ client ──HTTP/JSON──▶ agent.sock   (creeld)
//!   creel sql, explain ──▶ sql::flight ──Arrow Flight SQL──▶ creel.sock   (creel-executor)
//!   creel config, doctor, yarn, version, completions      need no agent
//! ```
//!
//! Results go to standard output, everything else to standard error. With `--json` a command
//! prints one JSON object with `"schema"`; `creel sql` and `explain` print one object a row, and
//! `completions` and `config default` print what they always do. How it ended is the exit code,
//! [`exit`].

mod answers;
mod config;
mod doctor;
pub mod exit;
mod human;
mod lease;
mod queries;
mod run;
mod sql;
mod stdout;
mod version;
mod yarn;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::api;
use crate::client::Client;
use crate::error::Error;
use crate::run_dir::RunDir;

/// Talks to the Creel agent of this node.
#[derive(Debug, Parser)]
#[command(name = "creel", version, disable_help_subcommand = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Print one JSON object with "schema" instead of a table (sql, explain: one object a row;
    /// completions, config default, run: no change)
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    /// The agent's run directory [default: `CREEL_RUN_DIR`, else `$XDG_RUNTIME_DIR/creel` if it is
    /// there, else /run/creel]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// The settings file [default: /etc/creel/creel.toml]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const GLOBAL: &str = "Options of all commands";

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 agent not reachable, 4 not allowed, 5 not found,
6 refused by the state of things, 126 and 127 (run) as shells have them for a program that can't be
run or isn't there, 130 interrupted.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the node in numbers
    Status,
    /// Show the GPUs and their MIG slices
    Gpus,
    /// Show the executors
    Executors,
    /// Show the connections to executors
    Attachments,
    /// Show which container or process holds which GPU
    Leases,
    /// Show or end one lease
    Lease {
        #[command(subcommand)]
        action: lease::Action,
    },
    /// Run a program with GPUs of its own
    Run(run::Arguments),
    /// Show the running queries, or cancel one
    Queries {
        #[command(subcommand)]
        action: Option<queries::Action>,
    },
    /// Run SQL
    Sql(sql::Arguments),
    /// Show how a statement would be run
    Explain(sql::ExplainArguments),
    /// Show and check the settings
    Config {
        #[command(subcommand)]
        action: config::Action,
    },
    /// Look for what is wrong on this node
    Doctor,
    /// Bring YARN to this node's GPUs
    Yarn {
        #[command(subcommand)]
        action: yarn::Action,
    },
    /// Show the versions of this program and of the agent
    Version,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Runs `creel` with this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = run(&cli);
    if let Err(error) = &result
        && !exit::is_quiet(error)
    {
        let text = error.to_string();
        for line in text.lines() {
            // Nobody is left to be told if this fails.
            let _ = writeln!(std::io::stderr(), "creel: {line}");
        }
    }
    exit::code(result)
}

fn run(cli: &Cli) -> Result<(), Error> {
    match &cli.command {
        Command::Config { action } => config::run(action, cli.config.clone(), cli.json),
        Command::Completions { shell } => completions(*shell),
        Command::Yarn { action } => {
            yarn::run(action, cli.run_dir.clone(), cli.config.clone(), cli.json)
        }
        _ => block_on(run_async(cli)),
    }
}

/// Runs to the end, and leaves behind what hangs.
fn block_on(run: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    // Two threads: one may be stuck in a write to standard output.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::Failed(format!("cannot start threads: {error}")))?;
    let result = runtime.block_on(run);
    runtime.shutdown_background();
    result
}

async fn run_async(cli: &Cli) -> Result<(), Error> {
    if let Command::Doctor = cli.command {
        return doctor::run(cli.run_dir.clone(), cli.config.clone(), cli.json).await;
    }
    if let Command::Yarn { action } = &cli.command {
        return yarn::run(action, cli.run_dir.clone(), cli.config.clone(), cli.json);
    }
    let run_dir = RunDir::find(cli.run_dir.clone());
    if let Command::Version = cli.command {
        return version::run(run_dir.ok(), cli.json).await;
    }
    let run_dir = run_dir?;
    let client = Client::new(&run_dir);
    match &cli.command {
        Command::Status => answers::show::<api::Status>(&client, cli.json).await,
        Command::Gpus => answers::show::<api::Gpus>(&client, cli.json).await,
        Command::Executors => answers::show::<api::Executors>(&client, cli.json).await,
        Command::Attachments => answers::show::<api::Attachments>(&client, cli.json).await,
        Command::Leases => answers::show::<api::Leases>(&client, cli.json).await,
        Command::Lease { action } => lease::run(action, &client, cli.json).await,
        Command::Run(arguments) => run::run(arguments, &client).await,
        Command::Queries { action } => queries::run(action.as_ref(), &client, cli.json).await,
        Command::Sql(arguments) => sql::run(arguments, &run_dir, cli.json).await,
        Command::Explain(arguments) => sql::explain(arguments, &run_dir, cli.json).await,
        Command::Config { .. }
        | Command::Doctor
        | Command::Yarn { .. }
        | Command::Version
        | Command::Completions { .. } => {
            unreachable!("handled before")
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "creel", &mut script);
    stdout::write(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_all_commands_stand_anywhere() {
        let cli =
            Cli::try_parse_from(["creel", "queries", "cancel", "q1", "--json", "--run-dir", "/r"]);
        let cli = cli.unwrap();
        assert!(cli.json);
        assert_eq!(cli.run_dir, Some("/r".into()));
    }

    #[test]
    fn sql_comes_from_one_source_and_with_settings() {
        for source in [&["-c", "SELECT 1"][..], &["-f", "a.sql"], &["-"]] {
            let settings = ["--set", "sql.batch_size=1", "--set", "a.b=c"];
            let arguments = ["creel", "sql"].iter().chain(source).chain(&settings);
            assert!(Cli::try_parse_from(arguments).is_ok(), "{source:?}");
        }
    }

    #[test]
    fn what_is_run_keeps_its_own_flags() {
        let cli = Cli::try_parse_from(["creel", "run", "--gpus", "2", "prog", "--json", "-x"]);
        let cli = cli.unwrap();
        assert!(!cli.json);
        assert!(matches!(cli.command, Command::Run(_)));
    }

    #[test]
    fn wrong_usage_is_code_2() {
        for arguments in [
            &["creel"][..],
            &["creel", "nosuch"],
            &["creel", "sql"],
            &["creel", "sql", "--set", "sql.batch_size=1"],
            &["creel", "sql", "-c", "SELECT 1", "-"],
            &["creel", "sql", "-c", "SELECT 1", "--format", "xml"],
            &["creel", "sql", "-c", "SELECT 1", "--set", "sql.batch_size"],
            &["creel", "completions", "cobol"],
            &["creel", "lease"],
            &["creel", "run"],
            &["creel", "run", "--gpus", "0", "--", "true"],
            &["creel", "run", "--wait", "soon", "--", "true"],
            &["creel", "yarn", "apply", "--queue", "gpu", "--label", "a b"],
            &["creel", "yarn", "node-label", "--label", "1g.5gb"],
        ] {
            let error = Cli::try_parse_from(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
        }
    }
}
