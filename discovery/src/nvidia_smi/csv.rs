//! The table of `nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]`.
//!
//! As `nvidia-smi --help-query-gpu` and its output have it: one line for each GPU (a GPU with MIG
//! on is one), values between comma and blank, `[N/A]` for what is unknown; the header has the
//! field's first name and its unit, and keeps the unit with `nounits`.

use super::{Seen, View};
use crate::inventory::ComputeMode;

/// What is asked for.
#[derive(Debug)]
pub struct Query {
    fields: Vec<&'static Field>,
    header: bool,
    units: bool,
}

/// A field.
#[derive(Debug)]
struct Field {
    /// Its names, the header's first.
    names: &'static [&'static str],
    unit: &'static str,
    value: fn(&View<'_>, &Seen<'_>) -> Option<String>,
}

/// The fields that are known here; a question with another one is for the driver's nvidia-smi.
static FIELDS: &[Field] = &[
    Field::new(&["index"], "", |_, seen| Some(seen.index.to_string())),
    Field::new(&["count"], "", |view, _| Some(view.gpus.len().to_string())),
    Field::new(&["name", "gpu_name"], "", |_, seen| seen.gpu.name.clone()),
    Field::new(&["uuid", "gpu_uuid"], "", |_, seen| seen.gpu.uuid.clone()),
    Field::new(&["pci.bus_id", "gpu_bus_id"], "", |_, seen| seen.gpu.pci_bus_id.clone()),
    Field::new(&["driver_version"], "", |view, _| view.driver?.version.clone()),
    Field::new(&["compute_cap"], "", |_, seen| seen.gpu.compute_capability.clone()),
    Field::new(&["compute_mode"], "", |_, seen| {
        let mode = match seen.gpu.compute_mode? {
            ComputeMode::Default => "Default",
            ComputeMode::ExclusiveThread => "Exclusive_Thread",
            ComputeMode::Prohibited => "Prohibited",
            ComputeMode::ExclusiveProcess => "Exclusive_Process",
        };
        Some(mode.to_owned())
    }),
    Field::new(&["mig.mode.current"], "", |_, seen| mode(seen.gpu.mig.enabled)),
    Field::new(&["mig.mode.pending"], "", |_, seen| mode(seen.gpu.mig.pending)),
    Field::new(&["memory.total"], "MiB", |_, seen| mib(seen.gpu.memory.total)),
    Field::new(&["memory.reserved"], "MiB", |_, seen| mib(seen.gpu.memory.reserved)),
    Field::new(&["memory.used"], "MiB", |_, seen| mib(seen.gpu.memory.used)),
    Field::new(&["memory.free"], "MiB", |_, seen| mib(seen.gpu.memory.free)),
    Field::new(&["utilization.gpu"], "%", |_, seen| number(seen.gpu.utilization.gpu)),
    Field::new(&["utilization.memory"], "%", |_, seen| number(seen.gpu.utilization.memory)),
    Field::new(&["temperature.gpu"], "", |_, seen| number(seen.gpu.temperature.gpu)),
    Field::new(&["power.draw"], "W", |_, seen| watts(seen.gpu.power.draw)),
    Field::new(&["power.limit"], "W", |_, seen| watts(seen.gpu.power.limit)),
];

impl Field {
    const fn new(
        names: &'static [&'static str],
        unit: &'static str,
        value: fn(&View<'_>, &Seen<'_>) -> Option<String>,
    ) -> Self {
        Self { names, unit, value }
    }

    fn header(&self) -> String {
        match self.unit {
            "" => self.names[0].to_owned(),
            unit => format!("{} [{unit}]", self.names[0]),
        }
    }

    fn cell(&self, view: &View<'_>, seen: &Seen<'_>, units: bool) -> String {
        match ((self.value)(view, seen), self.unit) {
            (None, _) => "[N/A]".to_owned(),
            (Some(value), unit) if units && !unit.is_empty() => format!("{value} {unit}"),
            (Some(value), _) => value.replace(char::is_control, "?"),
        }
    }
}

fn mode(on: Option<bool>) -> Option<String> {
    on.map(|on| if on { "Enabled" } else { "Disabled" }.to_owned())
}

fn mib(bytes: Option<u64>) -> Option<String> {
    bytes.map(|bytes| (bytes >> 20).to_string())
}

fn number(number: Option<u32>) -> Option<String> {
    number.map(|number| number.to_string())
}

fn watts(milliwatts: Option<u32>) -> Option<String> {
    milliwatts.map(|milliwatts| format!("{:.2}", f64::from(milliwatts) / 1000.0))
}

/// The question of such arguments; absent: it isn't answered here.
pub(super) fn parse(fields: &str, format: &str) -> Option<Query> {
    let field = |name: &str| FIELDS.iter().find(|field| field.names.contains(&name.trim()));
    let fields = fields.split(',').map(field).collect::<Option<_>>()?;
    let (mut csv, mut header, mut units) = (false, true, true);
    for word in format.split(',') {
        match word.trim() {
            "csv" => csv = true,
            "noheader" => header = false,
            "nounits" => units = false,
            _ => return None,
        }
    }
    csv.then_some(Query { fields, header, units })
}

/// The table.
pub fn text(view: &View<'_>, query: &Query) -> String {
    let line = |cells: Vec<String>| cells.join(", ") + "\n";
    let mut text = String::new();
    if query.header {
        text += &line(query.fields.iter().map(|field| field.header()).collect());
    }
    for seen in &view.gpus {
        let cells = query.fields.iter().map(|field| field.cell(view, seen, query.units));
        text += &line(cells.collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    fn table(fields: &str, format: &str) -> String {
        text(&View::of(&snapshot(), None, |_| false), &parse(fields, format).unwrap())
    }

    #[test]
    fn header_and_units_as_nvidia_smi_has_them() {
        let fields = "index,gpu_name,gpu_bus_id,memory.total,utilization.gpu,temperature.gpu,power.draw,mig.mode.current";
        assert_eq!(
            table(fields, "csv"),
            "index, name, pci.bus_id, memory.total [MiB], utilization.gpu [%], temperature.gpu, power.draw [W], mig.mode.current\n\
             0, NVIDIA A100-SXM4-40GB, 00000000:00:00.0, 40960 MiB, 7 %, 30, [N/A], Enabled\n\
             2, NVIDIA A100-SXM4-40GB, 00000000:02:00.0, 40960 MiB, 7 %, 30, [N/A], Enabled\n\
             3, NVIDIA A100-SXM4-40GB, 00000000:03:00.0, 40960 MiB, 7 %, 30, [N/A], Disabled\n"
        );
        assert_eq!(
            table("memory.used, count", "csv,nounits"),
            "memory.used [MiB], count\n2048, 3\n2048, 3\n2048, 3\n"
        );
        assert_eq!(table("index", "noheader,csv"), "0\n2\n3\n");
        assert_eq!(watts(Some(85_004)).as_deref(), Some("85.00"));
    }

    #[test]
    fn what_is_not_known_here_is_not_answered() {
        assert!(parse("index,clocks.sm", "csv").is_none());
        assert!(parse("", "csv").is_none());
        assert!(parse("index", "noheader").is_none());
        assert!(parse("index", "csv,pretty").is_none());
    }

    #[test]
    fn every_field_has_a_name_of_its_own() {
        let mut names: Vec<_> = FIELDS.iter().flat_map(|field| field.names).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
