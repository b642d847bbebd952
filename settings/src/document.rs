//! What is written about the settings, for operators: the default file and the manual's page.

use std::fmt::Write;

use crate::alias::ALIASES;
use crate::declaration::{SETTINGS, Setting};

/// The settings by table, in the order of their declaration.
fn tables() -> impl Iterator<Item = (&'static str, &'static [Setting])> {
    let table = |setting: &Setting| setting.name.rsplit_once('.').map_or("", |(table, _)| table);
    SETTINGS
        .chunk_by(move |one, next| table(one) == table(next))
        .map(move |settings| (table(&settings[0]), settings))
}

/// `creel.toml` as it is installed: every setting with its help, commented out at its default.
pub fn default_file() -> String {
    let mut file = String::from(
        "# The settings of Creel's agent and executors, each at its default.\n\
         # `creel config check` says what is wrong with this file, and where.\n\
         # `creel config list` shows what is in force and where it came from.\n",
    );
    for (table, settings) in tables() {
        write!(file, "\n[{table}]\n").expect("a String takes all");
        for (place, setting) in settings.iter().enumerate() {
            let gap = if place == 0 { "" } else { "\n" };
            let key = &setting.name[table.len() + 1..];
            let value = setting.kind.toml(setting.default);
            write!(
                file,
                "{gap}# {}\n# Expects {}.\n# {key} = {value}\n",
                setting.help, setting.kind
            )
            .expect("a String takes all");
        }
    }
    file
}

/// `docs/configuration.md`: how settings are given, and a table of all.
pub fn markdown() -> String {
    let mut page = String::from(PREAMBLE);
    for (table, settings) in tables() {
        write!(page, "\n### `[{table}]`\n\n| setting | default | expects | changed by | what it is for |\n|---|---|---|---|---|\n")
            .expect("a String takes all");
        for setting in settings {
            let Setting { name, default, kind, help, .. } = setting;
            let default =
                if default.is_empty() { "(empty)".into() } else { format!("`{default}`") };
            let scope = match setting.scope {
                crate::Scope::Node => "operator",
                crate::Scope::Session => "operator, session",
            };
            writeln!(page, "| `{name}` | {default} | {kind} | {scope} | {help} |")
                .expect("a String takes all");
        }
    }
    page.push_str("\n## Names of others\n\n| name | setting |\n|---|---|\n");
    for (alias, name) in ALIASES {
        writeln!(page, "| `{alias}` | `{name}` |").expect("a String takes all");
    }
    page
}

const PREAMBLE: &str = "\
# Settings

<!-- Written from settings/src/declaration.rs. -->

Every setting has one name, one default and one line of help, in one place; this page, the parser,
`creel config` and the default `creel.toml` come from there.

## Where they are read from

Each overrides those before it:

1. the default;
2. the settings file: `--config FILE`, else `/etc/creel/creel.toml` if there is one;
3. the environment: `CREEL_EXECUTOR_MEMORY` sets `executor.memory`;
4. flags: `--set executor.memory=\"4 GiB\"`.

A client changes the settings of its own session with `creel sql --set NAME=VALUE`, with Flight
SQL session options, or with `SET creel.NAME = VALUE` in SQL. Those that only the operator of the
node may change are refused there, by name.

```toml
# creel.toml: a table for each group; dotted keys are the same.
[executor]
memory = \"4 GiB\"
threads = 8
```

The names that the RAPIDS Accelerator for Apache Spark has for the same settings are taken wherever
ours are: `spark.rapids.memory.gpu.allocFraction` is `gpu.memory.alloc_fraction`. The table of them
is at the end.

An unknown name or a bad value is an error with its file, its line, what was expected and the
nearest known name. All mistakes of a file are reported at once. `creel config check` reports
them without an agent, `creel config list` shows every value in force and where it came from.

## Values

| kind | notation |
|---|---|
| size | A number and a unit: `64 MiB`, `10g`, `1.5GiB`; a plain number is bytes. Every unit is binary, as Spark's are: `k`, `kb` and `KiB` are 1024 bytes. |
| memory | A size, or a percentage of the memory that there is: `60%`. |
| fraction | A number from 0 to 1: `0.9`. |
| duration | Whole numbers with units, the larger first: `500ms`, `30s`, `5m`, `1h 30m`, `2d`. |
| path | An absolute path. |

## All settings
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Settings, file};

    /// The crate's directory, asked for when the test runs: one target directory may serve several
    /// clones, and what was compiled in one of them must not look into another.
    fn manifest_dir() -> std::ffi::OsString {
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests")
    }

    /// Compares a checked-in file with what it is to be; with `UPDATE_EXPECT` set, writes it.
    fn checked_in(path: &str, expected: &str) {
        let path = Path::new(&manifest_dir()).join("..").join(path);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, expected).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap_or_default() == expected,
            "{} is not what the declaration of the settings says; this rewrites it:\n\
             UPDATE_EXPECT=1 cargo test -p creel-settings document",
            path.display()
        );
    }

    #[test]
    fn the_default_file_is_checked_in() {
        checked_in("packaging/creel.toml", &default_file());
    }

    #[test]
    fn the_page_of_the_manual_is_checked_in() {
        checked_in("docs/configuration.md", &markdown());
    }

    #[test]
    fn the_default_file_sets_each_default_once_uncommented() {
        let mut settings = Settings::default();
        let (set, errors) = file::apply(&default_file(), Path::new("creel.toml"), &mut settings);
        assert!(set.is_empty() && errors.is_empty());

        let is_value = |line: &&str| line.starts_with('[') || line.contains(" = ");
        let file = default_file();
        let lines: Vec<_> =
            file.lines().filter(is_value).map(|line| line.trim_start_matches("# ")).collect();
        let uncommented = lines.join("\n");
        let (set, errors) = file::apply(&uncommented, Path::new("creel.toml"), &mut settings);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(set.len(), SETTINGS.len());
        assert_eq!(settings, Settings::default());
    }
}
