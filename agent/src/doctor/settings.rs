//! Whether the settings are valid.

use std::path::Path;

use creel_settings::{Loaded, SETTINGS, Settings, Sources};

use super::Finding;

const CHECK: &str = "settings";

/// Variables with the prefix of settings that are none.
const OTHER_VARIABLES: [&str; 3] = ["CREEL_RUN_DIR", "CREEL_DISCOVERY", "CREEL_EXECUTOR"];

/// The settings, or the defaults where they are wrong, and what is wrong.
pub(super) fn check(sources: &Sources) -> (Loaded, Vec<Finding>) {
    let (loaded, mut findings) = match Settings::load(sources) {
        Ok(loaded) => {
            let file = sources.file.as_deref().map(Path::display);
            let what = file.map_or("all defaults: there is no settings file".into(), |file| {
                format!("{file} has no mistakes")
            });
            (loaded, vec![Finding::ok(CHECK, what)])
        }
        Err(errors) => {
            let remedy =
                "correct it: the agent does not start with it; `creel config list` shows all names";
            let finding =
                |error: &creel_settings::Error| Finding::error(CHECK, error.to_string(), remedy);
            (Loaded::default(), errors.each().iter().map(finding).collect())
        }
    };
    findings.extend(unknown_variables(sources));
    (loaded, findings)
}

/// Variables that look like settings. The agent can't refuse them: other programs have theirs.
fn unknown_variables(sources: &Sources) -> impl Iterator<Item = Finding> {
    let names = sources.environment.iter().filter_map(|(name, _)| name.to_str());
    names
        .filter(|name| name.starts_with("CREEL_") && !OTHER_VARIABLES.contains(name))
        .filter(|name| !SETTINGS.iter().any(|setting| setting.variable() == **name))
        .map(|name| {
            Finding::warning(
                CHECK,
                format!("the environment variable {name} is no setting"),
                "correct its name or remove it; executor.memory is CREEL_EXECUTOR_MEMORY",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::write;
    use super::*;

    #[test]
    fn every_mistake_is_a_finding() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "creel.toml", "[executor]\nmemroy = 1\nthreads = 2.5\n");
        let file = Some(directory.path().join("creel.toml"));
        let (loaded, findings) = check(&Sources { file, ..Sources::default() });
        assert_eq!(loaded, Loaded::default());
        assert_eq!(findings.len(), 2);
        assert!(findings.iter().all(|finding| finding.state == State::Error));
        assert!(
            findings[0].what.contains("creel.toml:2")
                && findings[0].what.contains("executor.memory")
        );
    }

    #[test]
    fn a_variable_that_is_nearly_a_setting_is_a_warning() {
        let environment =
            [("CREEL_EXECUTOR_MEMROY", "1g"), ("CREEL_RUN_DIR", "/r"), ("PATH", "/bin")];
        let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
        let (_, findings) = check(&Sources { environment, ..Sources::default() });
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[0].state, State::Ok);
        assert_eq!(findings[1].state, State::Warning);
        assert!(findings[1].what.contains("CREEL_EXECUTOR_MEMROY"));
    }
}
