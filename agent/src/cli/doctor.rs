//! `creel doctor`: prints what the doctor finds.

use std::path::PathBuf;

use serde::Serialize;

use super::{human, stdout};
use crate::api;
use crate::doctor::{self, Finding, Node, State};
use crate::error::Error;

#[derive(Debug, Serialize)]
struct Findings {
    schema: u32,
    findings: Vec<Finding>,
}

pub(crate) async fn run(
    run_dir: Option<PathBuf>,
    config: Option<PathBuf>,
    json: bool,
) -> Result<(), Error> {
    let findings = doctor::examine(&Node::of_process(run_dir, config)).await;
    let errors = findings.iter().filter(|finding| finding.state == State::Error).count();
    if json {
        stdout::json(&Findings { schema: api::SCHEMA, findings })?;
    } else {
        stdout::write(text(&findings).as_bytes())?;
    }
    match errors {
        0 => Ok(()),
        1 => Err(Error::Failed("the doctor found an error".into())),
        _ => Err(Error::Failed(format!("the doctor found {errors} errors"))),
    }
}

/// A line for each finding, and its remedy below it.
fn text(findings: &[Finding]) -> String {
    let mut table = human::table(&["STATE", "CHECK", "FINDING"]);
    for finding in findings {
        table.add_row([finding.state.name(), finding.check, &finding.what]);
        if let Some(remedy) = &finding.remedy {
            table.add_row(["", "", &format!("→ {remedy}")]);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_stands_below_its_finding() {
        let findings = [
            Finding { check: "disk", state: State::Ok, what: "90 GiB".into(), remedy: None },
            Finding {
                check: "driver",
                state: State::Error,
                what: "old".into(),
                remedy: Some("update".into()),
            },
        ];
        assert_eq!(
            text(&findings),
            "STATE  CHECK   FINDING\nok     disk    90 GiB\nerror  driver  old\n               → update\n"
        );
    }
}
