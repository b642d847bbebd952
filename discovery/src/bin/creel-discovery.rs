//! Prints the node's GPUs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use creel_discovery::agent::{self, Hints, Said, spark_conf};
use creel_discovery::format::spark;
use creel_discovery::nvml::{self, Unwatched};
use creel_discovery::{Address, Error, Format, Inventory, deadline, device_group, nvidia_smi};

/// Prints the node's NVIDIA GPUs, as the driver (NVML) knows them.
///
/// A node without a driver has none: that is an answer, not an error. In a YARN container, Spark
/// is told what the node's agent leases to the container. Exit codes: 0 answered, 1 the driver
/// failed or did not answer in time, or the container has no lease, 2 wrong usage.
#[derive(Parser)]
#[command(name = "creel-discovery", version)]
struct Cli {
    /// How to print them.
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// What Spark is to call the GPUs.
    #[arg(long, value_enum, default_value_t, env = "CREEL_ADDRESS")]
    address: Address,

    /// For Spark, in a YARN container: how long to wait for GPUs that others still hold, and for
    /// the agent.
    #[arg(long, default_value = "60s", value_parser = wait, env = "CREEL_WAIT", value_name = "TIME")]
    wait: Duration,

    /// How long to wait for the driver: seconds, or with a unit (10s, 500ms).
    #[arg(long, default_value = "10s", value_parser = duration)]
    deadline: Duration,

    /// Instead of the GPUs, print their errors as they happen: one JSON object per Xid event and
    /// line, until standard input ends.
    #[arg(long, conflicts_with_all = ["format", "deadline"])]
    watch: bool,

    /// Ask the driver in this process, without a deadline.
    #[arg(long, hide = true)]
    in_process: bool,

    /// Print which GPUs the control group with this cgroup.procs denies, as a JSON list of minor
    /// numbers.
    #[arg(long, hide = true, requires = "minors", value_name = "PROCS")]
    denied_in: Option<PathBuf>,

    /// Minor numbers to try.
    #[arg(long, hide = true, value_delimiter = ',')]
    minors: Vec<u32>,

    /// Where the devices are.
    #[arg(long, hide = true, default_value = "/dev")]
    devices: PathBuf,

    /// Also when nobody waits any more, and keep the answer there as a snapshot.
    #[arg(long, hide = true, requires = "in_process")]
    keep: Option<PathBuf>,
}

fn wait(text: &str) -> Result<Duration, String> {
    if text.trim_end_matches(['s', 'm']) == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(format!("'{unit}' is no unit of time: use ms, s or min")),
    };
    number
        .trim()
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * scale).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "not a time above 0, as 10s or 500ms".to_owned())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|name| nvidia_smi::is_meant(&name)) {
        // Not a return: threads may still wait for what never comes.
        std::process::exit(nvidia_smi::run(&arguments.collect::<Vec<_>>()));
    }
    let cli = Cli::parse();
    if let Some(procs) = &cli.denied_in {
        std::process::exit(print_denied(&cli, procs).unwrap_or_else(|error| {
            complain(&format!("{}: {error}", procs.display()));
            1
        }));
    }
    let result = match (cli.in_process, cli.watch, &cli.keep) {
        (true, _, Some(directory)) => nvidia_smi::keep(directory, |found| print_here(&cli, found)),
        (true, watch, None) => {
            deadline::end_with_parent();
            if watch {
                watch_here()
            } else {
                nvml::read().and_then(|found| print_here(&cli, &found))
            }
        }
        (false, true, _) => deadline::relay(child().arg("--watch")),
        (false, false, _) if cli.format == Format::Spark => print_lease(&cli),
        (false, false, _) => print_by_child(&cli),
    };
    // Not a return: threads may still wait for what never comes.
    std::process::exit(result.unwrap_or_else(|error| {
        complain(&error.to_string());
        1
    }))
}

fn child() -> Command {
    let mut command = deadline::this_program();
    command.arg("--in-process");
    command
}

fn print_denied(cli: &Cli, procs: &Path) -> io::Result<i32> {
    device_group::join(procs)?;
    let denied = device_group::denied(&cli.devices, &cli.minors);
    print(format!("{}\n", serde_json::to_string(&denied)?).as_bytes())?;
    Ok(0)
}

/// For Spark: what this process's container holds, or outside of one, what there is.
fn print_lease(cli: &Cli) -> Result<i32, Error> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let container = variable("CONTAINER_ID").filter(|id| id.starts_with("container_"));
    let hints = || Hints {
        creel_gpus: variable("CREEL_GPUS").and_then(|count| count.trim().parse().ok()),
        spark_gpus: container.as_ref().and_then(|id| spark_conf::gpus(Path::new("."), id)),
        visible: visible(cli.deadline),
    };
    let sockets = agent::socket::sockets(|name| std::env::var_os(name));
    match agent::ask(&sockets, container.as_deref(), hints, cli.wait) {
        Ok(Said::Lease(lease)) => {
            let addresses = match cli.address {
                Address::Index => lease.addresses,
                Address::Uuid => lease.devices,
            };
            print(spark::line(addresses).as_bytes())?;
            Ok(0)
        }
        Ok(Said::Nothing) => print_by_child(cli),
        Err(reason) => Err(Error::NoLease(reason)),
    }
}

/// UUIDs of what the driver shows to this process; absent where it doesn't answer.
fn visible(deadline: Duration) -> Option<Vec<String>> {
    let output = deadline::run(child().args(["--format", "json"]), deadline).ok()?;
    let inventory = Inventory::from_json(str::from_utf8(&output.stdout).ok()?).ok()?;
    inventory.units().map(|unit| unit.uuid().map(str::to_owned)).collect()
}

fn print_by_child(cli: &Cli) -> Result<i32, Error> {
    let mut child = child();
    child.args(["--format", &name(&cli.format), "--address", &name(&cli.address)]);
    let output = deadline::run(&mut child, cli.deadline)?;
    io::stderr().write_all(&output.stderr).ok();
    if output.status.success() {
        print(&output.stdout)?;
    }
    Ok(output.status.code().unwrap_or(1))
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn print_here(cli: &Cli, inventory: &Inventory) -> Result<i32, Error> {
    if inventory.driver.is_none() {
        no_driver();
    }
    print(cli.format.text(inventory, cli.address).as_bytes())?;
    Ok(0)
}

fn watch_here() -> Result<i32, Error> {
    let end = nvml::watch(|event| {
        let line = serde_json::to_string(&event).expect("an event is JSON") + "\n";
        print(line.as_bytes()).is_ok()
    })?;
    match end {
        Unwatched::NoDriver => no_driver(),
        Unwatched::Unsupported => complain("no GPU of this node reports errors as they happen"),
        Unwatched::Deaf => {}
    }
    Ok(0)
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn no_driver() {
    complain(&format!("no NVIDIA driver: looked for {}", nvml::LIBRARIES.join(" and ")));
}

fn complain(text: &str) {
    writeln!(io::stderr(), "creel-discovery: {text}").ok();
}
