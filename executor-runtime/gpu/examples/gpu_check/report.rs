//! What was measured, as a table and as JSON.

use std::fmt::Write;
use std::time::Duration;

use creel_gpu::device::{Device, Driver};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Rate,
    Time,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Rate => "GB/s",
            Unit::Time => "ns per operation",
        }
    }
}

struct Line {
    name: String,
    unit: Unit,
    value: f64,
    /// The part of a copy's rate.
    of_copy: Option<f64>,
}

pub(crate) struct Report {
    driver: Driver,
    device: Device,
    rows: u32,
    lines: Vec<Line>,
}

/// Bytes in a time, in GB/s.
pub(crate) fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}

impl Report {
    pub(crate) fn new(driver: Driver, device: &Device, rows: u32) -> Self {
        Report { driver, device: device.clone(), rows, lines: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &str, unit: Unit, value: f64, of_copy: Option<f64>) {
        eprintln!("{name}: {value:.1} {}", unit.name());
        self.lines.push(Line { name: name.to_owned(), unit, value, of_copy });
    }

    pub(crate) fn table(&self) -> String {
        let Report { driver, device, rows, .. } = self;
        let (major, minor) = device.capability;
        let mut table = format!(
            "\n{}, compute capability {major}.{minor}, {} MiB, CUDA {}.{} of the driver; {rows} rows\n\n\
             | what | value | unit | of a copy within the device |\n|---|---:|---|---:|\n",
            device.name,
            device.memory >> 20,
            driver.version() / 1000,
            driver.version() % 1000 / 10,
        );
        for Line { name, unit, value, of_copy } in &self.lines {
            let of_copy = of_copy.map_or_else(String::new, |part| format!("{:.0} %", part * 100.0));
            writeln!(table, "| {name} | {value:.1} | {} | {of_copy} |", unit.name())
                .expect("a string has room");
        }
        table
    }

    pub(crate) fn json(&self) -> String {
        let Report { driver, device, rows, .. } = self;
        let (major, minor) = device.capability;
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|Line { name, unit, value, of_copy }| {
                let unit = unit.name();
                let of_copy =
                    of_copy.map_or_else(|| "null".to_owned(), |part| format!("{part:.4}"));
                format!(
                    r#"{{"name":{name:?},"unit":{unit:?},"value":{value:.3},"of_copy":{of_copy}}}"#
                )
            })
            .collect();
        format!(
            r#"{{"bench":"gpu-check","device":{:?},"uuid":{:?},"capability":[{major},{minor}],"memory":{},"multiprocessors":{},"cuda":{},"rows":{rows},"results":[{}]}}"#,
            device.name,
            device.uuid,
            device.memory,
            device.multiprocessors,
            driver.version(),
            lines.join(",")
        )
    }
}
