//! Showing a plan's changes.

use std::fmt::Write;

use similar::TextDiff;

use crate::directory::Directory;
use crate::plan::Plan;

const CONTEXT: usize = 3;

/// The changes as a unified diff, which `patch` takes if the files are in UTF-8; empty if there
/// are none.
pub fn diff(directory: &Directory, plan: &Plan) -> String {
    let mut all = String::new();
    for (file, after) in &plan.after {
        let path = directory.file(*file).display().to_string();
        let before = directory.documents().get(file);
        let old = if before.is_some() { path.as_str() } else { "/dev/null" };
        let lines = TextDiff::from_lines(before.map_or("", |before| before.text()), after.text());
        let mut diff = lines.unified_diff();
        let diff = diff.context_radius(CONTEXT).header(old, &path);
        write!(all, "{diff}").expect("a string takes any text");
    }
    all
}
