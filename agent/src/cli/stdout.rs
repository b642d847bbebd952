//! Writing to standard output.

use std::io::Write;

use serde::Serialize;

use crate::error::Error;

/// Writes bytes, at once.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Error::Output)
}

/// Writes a value as one JSON object on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Error> {
    let mut line = serde_json::to_vec(value).map_err(|error| Error::Failed(error.to_string()))?;
    line.push(b'\n');
    write(&line)
}

/// Writes a table, and a last line break.
pub(crate) fn table(table: &comfy_table::Table) -> Result<(), Error> {
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    write(format!("{}\n", lines.join("\n")).as_bytes())
}
