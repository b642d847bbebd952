//! What was decided for each operator of a plan, and how that is told.

use std::fmt::Write;

use creel_settings::{GpuExplain, GpuMode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::displayable;

use super::reason::{Reason, begin};

/// What was decided for a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why nothing of it runs on the GPU, where that has one reason.
    pub nowhere: Option<Reason>,
    /// What was decided for its operators, from the root down.
    pub decisions: Vec<Decision>,
}

/// What was decided for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its name, as `FilterExec`; if it is for the GPU the name there.
    pub name: String,
    /// What it does, as DataFusion shows it after the name.
    pub what: String,
    /// Why it isn't for the GPU; empty if it is.
    pub reasons: Vec<Reason>,
    /// Whether `gpu.mode = required` insists on it.
    pub is_required: bool,
}

impl Decision {
    /// That an operator is for the GPU, by that name there.
    pub fn on_gpu(plan: &dyn ExecutionPlan, name: &str) -> Self {
        let what = what(plan);
        Self { name: name.to_owned(), what, reasons: Vec::new(), is_required: true }
    }

    /// That an operator is for the CPU.
    pub fn on_cpu(plan: &dyn ExecutionPlan, reasons: Vec<Reason>, is_required: bool) -> Self {
        Self { name: plan.name().to_owned(), what: what(plan), reasons, is_required }
    }

    fn line(&self) -> String {
        if self.reasons.is_empty() {
            return match self.what.as_str() {
                "" => format!("*{}", self.name),
                what => format!("*{}: {what}", self.name),
            };
        }
        format!("!{}: {}", self.name, self.why())
    }

    fn why(&self) -> String {
        let reasons: Vec<String> = self.reasons.iter().map(Reason::to_string).collect();
        reasons.join("; ")
    }
}

/// What an operator does: its line in EXPLAIN, without its name.
fn what(plan: &dyn ExecutionPlan) -> String {
    let line = begin(displayable(plan).one_line());
    let what = line.strip_prefix(plan.name()).unwrap_or(&line);
    what.trim_start_matches(':').trim().to_owned()
}

impl Report {
    /// A report of a plan of which nothing runs on the GPU.
    pub fn nowhere(reason: Reason) -> Self {
        Self { nowhere: Some(reason), decisions: Vec::new() }
    }

    /// What is told, a line for each operator: `*` is for the GPU, `!` is not. None if there is
    /// nothing to tell.
    pub fn text(&self, explain: GpuExplain, mode: GpuMode) -> Option<String> {
        if explain == GpuExplain::None {
            return None;
        }
        let mut text = String::new();
        if let Some(reason) = &self.nowhere {
            let _ = writeln!(text, "nothing runs on the GPU: {reason}");
        } else if mode == GpuMode::ExplainOnly {
            text.push_str(
                "gpu.mode is explain_only: nothing runs on the GPU; what has a * would\n",
            );
        }
        for decision in &self.decisions {
            let is_told = match explain {
                GpuExplain::All => true,
                _ if decision.reasons.is_empty() => mode == GpuMode::ExplainOnly,
                _ => !decision.reasons.iter().all(Reason::is_idle),
            };
            if is_told {
                text.push_str(&decision.line());
                text.push('\n');
            }
        }
        let text = text.trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Why a plan is refused that must run on the GPU; none if all of it does that should.
    pub fn refusal(&self) -> Option<String> {
        if let Some(reason) = &self.nowhere {
            return Some(reason.to_string());
        }
        let lines: Vec<String> = self
            .decisions
            .iter()
            .filter(|decision| decision.is_required && !decision.reasons.is_empty())
            .map(|decision| format!("{}: {}", decision.name, decision.why()))
            .collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let decision = |name: &str, what: &str, reasons: Vec<Reason>, is_required| Decision {
            name: name.to_owned(),
            what: what.to_owned(),
            reasons,
            is_required,
        };
        let idle = Reason::NothingGained("it computes nothing");
        Report {
            nowhere: None,
            decisions: vec![
                decision("SortExec", "[a@0 ASC]", vec![Reason::Operator], false),
                decision("ProjectionExec", "expr=[a@0]", vec![idle], false),
                decision("GpuFilterExec", "a@0 > 1", Vec::new(), true),
                decision("AggregateExec", "", vec![Reason::GroupingSets, Reason::KeepsOrder], true),
            ],
        }
    }

    #[test]
    fn each_level_tells_more() {
        let report = report();
        assert_eq!(report.text(GpuExplain::None, GpuMode::On), None);
        let declined = "!SortExec: there is no GPU form of it\n\
                        !AggregateExec: grouping sets have no GPU form; it keeps the order of its \
                        input, which a GPU's aggregate doesn't";
        assert_eq!(report.text(GpuExplain::NotOnGpu, GpuMode::On).as_deref(), Some(declined));
        let all = report.text(GpuExplain::All, GpuMode::On).unwrap();
        assert_eq!(all.lines().nth(2), Some("*GpuFilterExec: a@0 > 1"));
        assert_eq!(all.lines().count(), 4);
        let would = report.text(GpuExplain::NotOnGpu, GpuMode::ExplainOnly).unwrap();
        assert!(would.starts_with("gpu.mode is explain_only"), "{would}");
        assert!(would.contains("\n*GpuFilterExec"), "{would}");
        assert_eq!(Report::default().text(GpuExplain::All, GpuMode::On), None);
    }

    #[test]
    fn only_what_has_a_gpu_form_is_insisted_on() {
        let refusal = report().refusal().unwrap();
        assert!(refusal.starts_with("AggregateExec: grouping sets"), "{refusal}");
        assert!(!refusal.contains("SortExec"), "{refusal}");
        assert_eq!(Report::default().refusal(), None);
        let lost = Report::nowhere(Reason::NoGpu("it is lost".to_owned()));
        assert_eq!(lost.refusal().as_deref(), Some("there is no GPU: it is lost"));
    }
}
