//! What a PTX text says of itself: its version, its target, and its kernels with their parameters.
//! (PTX ISA, "Directives".)

/// A PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ptx {
    /// `.version`, major and minor.
    pub(crate) version: (u32, u32),
    /// `.target sm_N`, as ten times major plus minor.
    pub(crate) target: u32,
    /// The target has a letter, as `sm_90a`: for that chip alone.
    pub(crate) exact: bool,
    /// Its kernels.
    pub(crate) entries: Vec<Entry>,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) name: String,
    /// Sizes of its parameters in bytes.
    pub(crate) parameters: Vec<u32>,
    /// The most threads of a block, from `.maxntid`.
    pub(crate) max_threads: Option<u32>,
    /// Static shared memory in bytes: what it declares, and what the module declares for all.
    pub(crate) shared: u32,
}

/// The newest PTX that a driver of a CUDA version compiles, by that version as `cuDriverGetVersion`
/// gives it. (PTX ISA, "Release Notes".)
pub(crate) fn newest(cuda: i32) -> (u32, u32) {
    let (major, minor) = ((cuda / 1000) as u32, (cuda % 1000 / 10) as u32);
    match (major, minor) {
        (..=10, _) => (6, 3),
        (11, minor) => (7, minor),
        // 12.0 has 8.0; 12.5 and 12.6 have 8.5, 12.7 and 12.8 are one behind.
        (12, 6) => (8, 5),
        (12, minor @ 7..) => (8, minor - 1),
        (12, minor) => (8, minor),
        (major, minor) => (major - 4, minor),
    }
}

impl Ptx {
    /// Parses a text; absent: it is no PTX.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = without_comments(text);
        let version = directive(&text, ".version")?;
        let (major, minor) = version.split_once('.')?;
        let target = directive(&text, ".target")?;
        let target = target.split(',').next()?.trim().strip_prefix("sm_")?;
        let digits = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let mut outside = String::new();
        let mut entries = Vec::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(".entry") {
            outside += &rest[..at];
            let (entry, after) = Entry::parse(&rest[at + ".entry".len()..])?;
            entries.push(entry);
            rest = after;
        }
        outside += rest;
        let common = shared(&outside);
        for entry in &mut entries {
            entry.shared += common;
        }
        Some(Self {
            version: (major.parse().ok()?, minor.parse().ok()?),
            target: digits.parse().ok()?,
            exact: digits.len() < target.len(),
            entries,
        })
    }
}

impl Entry {
    /// Parses what is behind `.entry`, and gives what is behind its body.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let (head, _) = text.split_once('{')?;
        let body_start = head.len();
        let mut depth = 0_usize;
        let body_end = text[body_start..].char_indices().find_map(|(at, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (depth == 0).then_some(body_start + at + 1)
        })?;
        let name = head.trim_start().split(|c: char| c == '(' || c.is_whitespace()).next()?;
        let parameters = match head.split_once('(') {
            Some((_, list)) => list.split_once(')')?.0,
            None => "",
        };
        let parameters =
            parameters.split(".param").skip(1).map(declared_size).collect::<Option<Vec<u32>>>()?;
        let max_threads = head.split_once(".maxntid").map(|(_, list)| {
            let sizes = list.split('.').next().unwrap_or("").split(',');
            sizes.filter_map(|size| size.trim().parse::<u32>().ok()).product()
        });
        let entry = Self {
            name: name.to_owned(),
            parameters,
            max_threads,
            shared: shared(&text[body_start..body_end]),
        };
        Some((entry, &text[body_end..]))
    }
}

fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The size of a variable or parameter, from its type on: `.align 8 .b8 name[24]`, `.u64 name`.
fn declared_size(text: &str) -> Option<u32> {
    let declaration = text.split([',', ';']).next()?.trim();
    let kind = declaration
        .split_whitespace()
        .find_map(|word| word.strip_prefix('.').filter(|word| !word.starts_with("align")))
        .filter(|kind| *kind != "ptr")?;
    let bits: u32 = kind.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
    let count = match declaration.split_once('[') {
        Some((_, count)) => count.split_once(']')?.0.trim().parse().ok()?,
        None => 1,
    };
    Some(bits / 8 * count)
}

/// The bytes of shared memory that a text declares; what a launch gives (`[]`) is none of them.
fn shared(text: &str) -> u32 {
    text.split(".shared")
        .skip(1)
        // `ld.shared.u32` is an instruction.
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .filter_map(declared_size)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// .version 1.0\n.version 8.0\n.target sm_70\n.address_size 64\n\
        .extern .shared .align 8 .b8 slots[];\n\
        .visible .entry first(\n\t.param .u64 first_param_0,\n\
        \t.param .align 8 .b8 first_param_1[24], .param .u32 first_param_2\n)\n\
        .maxntid 128, 1, 1\n{\n\t.shared .align 4 .b8 tile[1024];\n\
        \tld.shared.u32 %r1, [tile];\n{ ret; }\n}\n\
        .visible .entry second()\n{\nret;\n}\n";

    #[test]
    fn a_text_is_read() {
        let ptx = Ptx::parse(TEXT).unwrap();
        assert_eq!((ptx.version, ptx.target, ptx.exact), ((8, 0), 70, false));
        assert_eq!(
            ptx.entries,
            [
                Entry {
                    name: "first".to_owned(),
                    parameters: vec![8, 24, 4],
                    max_threads: Some(128),
                    shared: 1024
                },
                Entry {
                    name: "second".to_owned(),
                    parameters: vec![],
                    max_threads: None,
                    shared: 0
                },
            ]
        );
        let exact = Ptx::parse(&TEXT.replace("sm_70", "sm_90a")).unwrap();
        assert_eq!((exact.target, exact.exact), (90, true));
    }

    #[test]
    fn what_is_no_text_is_none() {
        for text in ["", "hello", ".version 8.0", ".version 8.0\n.target sm_70\n.entry a("] {
            assert_eq!(Ptx::parse(text), None, "{text}");
        }
    }

    #[test]
    fn versions_go_with_drivers() {
        let known = [(11040, (7, 4)), (12000, (8, 0)), (12060, (8, 5)), (12080, (8, 7))];
        for (cuda, ptx) in known.into_iter().chain([(12090, (8, 8)), (13000, (9, 0))]) {
            assert_eq!(newest(cuda), ptx, "{cuda}");
        }
    }
}
