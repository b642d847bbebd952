//! The list of `nvidia-smi -L`.

use std::fmt::Write;

use super::View;

/// A line for each GPU, and one for each of its slices, as the MIG user guide of NVIDIA shows
/// them: `GPU 0: NAME (UUID: GPU-…)` and `  MIG 3g.20gb     Device  0: (UUID: MIG-…)`.
pub fn text(view: &View<'_>) -> String {
    let mut text = String::new();
    let known = |value: &Option<String>| {
        let value = value.as_deref().unwrap_or("N/A");
        value.replace(char::is_control, "?")
    };
    for seen in &view.gpus {
        let (name, uuid) = (known(&seen.gpu.name), known(&seen.gpu.uuid));
        let _ = writeln!(text, "GPU {}: {name} (UUID: {uuid})", seen.index);
        for slice in &seen.slices {
            let (profile, uuid) = (known(&slice.profile), known(&slice.uuid));
            let _ = writeln!(text, "  MIG {profile:<11} Device {:>2}: (UUID: {uuid})", slice.index);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    #[test]
    fn gpus_and_slices() {
        let snapshot = snapshot();
        assert_eq!(
            text(&View::of(&snapshot, None, |_| false)),
            "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n\
             \x20 MIG 3g.20gb     Device  0: (UUID: MIG-0)\n\
             \x20 MIG 3g.20gb     Device  1: (UUID: MIG-1)\n\
             GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-2)\n\
             GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-3)\n"
        );
    }
}
