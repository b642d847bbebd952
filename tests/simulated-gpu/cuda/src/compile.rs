//! Builds kernels for the host: the product's `.cu` files, with g++ and the shim's header.
//!
//! ```text
//!   filter/select.cu ──rewritten──▶ source/0/filter/select.cu
//!                                     │ g++ -E: which functions are kernels
//!                                     ▼
//!   unit-….cpp: shim header, source in an unnamed namespace, table of its kernels
//!                                     │ g++ -c
//!                                     ▼
//!   kernels.so: all units, the scheduler, and the table of modules
//! ```
//!
//! One construct of CUDA C++ has no equal in C++ and is rewritten, on its line: a block-scope
//! `extern __shared__ TYPE NAME[];` becomes a pointer to the launch's dynamic shared memory.
//! All else is the header's. Objects are kept under the hash of what they are made of.

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What to build.
#[derive(Clone, Debug)]
pub struct Build {
    /// The directories of the sources: each `.cu` file below is a module, `.cuh` files are included.
    pub roots: Vec<PathBuf>,
    /// Where what is made on the way goes; what is there already is used.
    pub work: PathBuf,
    /// The library to make.
    pub library: PathBuf,
    /// Whether accesses are checked by AddressSanitizer.
    pub sanitize: bool,
}

const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    // As the device's arithmetic: wrapping integers, no fusion that the source doesn't ask for.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    // The sources are written for another compiler, which has its own.
    "-w",
];

const RUNTIME: &str = include_str!("../shim/runtime.cpp");

/// The headers of the sources and of the runtime.
const HEADERS: &[(&str, &str)] = &[
    ("cuda_shim.h", include_str!("../shim/cuda_shim.h")),
    ("runtime.h", include_str!("../shim/runtime.h")),
    ("unit.h", include_str!("../shim/unit.h")),
];

/// A source of the library.
struct Unit {
    name: String,
    text: String,
    flags: Vec<String>,
    /// The text of the `.cu` file in it. Such a file includes headers, but no other `.cu` file.
    source: String,
}

impl Build {
    /// Builds the library; what went wrong is said in words, with the compiler's own.
    pub fn run(&self) -> Result<(), String> {
        fs::create_dir_all(&self.work).map_err(|error| failed(&self.work, &error))?;
        let shim = self.shim();
        fs::create_dir_all(&shim).map_err(|error| failed(&shim, &error))?;
        for (name, text) in HEADERS {
            let path = shim.join(name);
            fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        }
        let own = |name: &str, text| Unit {
            name: name.to_owned(),
            text,
            flags: self.flags(),
            source: String::new(),
        };
        let mut units = vec![own("runtime", RUNTIME.to_owned())];
        let mut count = 0;
        for (number, root) in self.roots.iter().enumerate() {
            let copy = self.work.join("source").join(number.to_string());
            let _ = fs::remove_dir_all(&copy);
            let mut sources = Vec::new();
            rewrite_tree(root, &copy, &mut sources)?;
            sources.sort();
            for source in sources {
                units.push(self.unit(count, &copy, &source)?);
                count += 1;
            }
        }
        units.push(own("table", table(count)));
        self.link(&self.compile(&units)?)
    }

    fn shim(&self) -> PathBuf {
        self.work.join("shim")
    }

    /// The unit of a module.
    fn unit(&self, number: usize, root: &Path, source: &Path) -> Result<Unit, String> {
        let name = source.strip_prefix(root).unwrap_or(source).with_extension("");
        let name = name.display();
        let section = format!("simulated_shared_{number}");
        let mut flags = self.flags();
        flags.push(format!("-I{}", root.display()));
        if self.sanitize {
            flags.push(format!("-fsanitize-sections={section}"));
        }
        let head = format!(
            "#define SIMULATED_SHARED \"{section}\"\n#include \"cuda_shim.h\"\n\
             #include \"unit.h\"\nnamespace {{\n#include \"{}\"\n",
            source.display()
        );
        let listing =
            self.preprocess(&format!("#define SIMULATED_LIST_KERNELS\n{head}}}\n"), &flags)?;
        let kernels = kernels(&listing);
        if kernels.is_empty() {
            return Err(format!("{}: no extern \"C\" __global__ function", source.display()));
        }
        let row = |kernel: &String| format!("  SIMULATED_KERNEL({kernel}),\n");
        let rows = kernels.iter().map(row).collect::<Vec<_>>().concat();
        let text = format!(
            "{head}// So that the section is there.\n\
             [[gnu::used]] __shared__ char simulated_section[16];\n\
             constexpr simulated::Kernel simulated_kernels[] = {{\n{rows}}};\n}}\n\
             extern \"C\" char __start_{section}[], __stop_{section}[];\n\
             namespace simulated {{\nextern const Module module_{number};\n\
             const Module module_{number} = {{\"{name}\", simulated_kernels, {count}, \
             __start_{section}, __stop_{section}}};\n}}\n",
            count = kernels.len(),
        );
        Ok(Unit { name: format!("unit-{number}"), text, flags, source: read(source)? })
    }

    fn flags(&self) -> Vec<String> {
        let mut flags: Vec<String> = FLAGS.iter().map(|&flag| flag.to_owned()).collect();
        flags.push(format!("-I{}", self.shim().display()));
        if self.sanitize {
            flags.extend(["-fsanitize=address".to_owned(), "-g1".to_owned()]);
        }
        flags
    }

    fn preprocess(&self, text: &str, flags: &[String]) -> Result<String, String> {
        let path = self.work.join("listing.cpp");
        fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        let mut command = Command::new(compiler());
        command.args(flags).args(["-E", "-P"]).arg(&path);
        run(&mut command)
    }

    /// Compiles what has changed, as many at a time as there are jobs.
    fn compile(&self, units: &[Unit]) -> Result<Vec<PathBuf>, String> {
        let mut included = Vec::new();
        headers(&self.work.join("source"), &mut included)?;
        let mut objects = Vec::new();
        let mut missing = Vec::new();
        for Unit { name, text, flags, source } in units {
            let mut hash = DefaultHasher::new();
            (HEADERS, &included, flags, text, source).hash(&mut hash);
            let object = self.work.join(format!("{name}-{:016x}.o", hash.finish()));
            if !object.exists() {
                let path = self.work.join(format!("{name}.cpp"));
                fs::write(&path, text).map_err(|error| failed(&path, &error))?;
                let new = object.with_extension("new");
                let mut command = Command::new(compiler());
                command.args(flags).arg("-c").arg(&path).arg("-o").arg(&new);
                missing.push((command, new, object.clone()));
            }
            objects.push(object);
        }
        let jobs = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2);
        while !missing.is_empty() {
            let now: Vec<_> = missing.drain(..missing.len().min(jobs)).collect();
            let mut running = Vec::new();
            for (mut command, new, object) in now {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                running.push((command.spawn().map_err(|error| no_compiler(&error))?, new, object));
            }
            for (child, new, object) in running {
                let output = child.wait_with_output().map_err(|error| no_compiler(&error))?;
                if !output.status.success() {
                    return Err(String::from_utf8_lossy(&output.stderr).into_owned());
                }
                fs::rename(&new, &object).map_err(|error| failed(&object, &error))?;
            }
        }
        Ok(objects)
    }

    fn link(&self, objects: &[PathBuf]) -> Result<(), String> {
        let new = self.library.with_extension("new");
        let mut command = Command::new(compiler());
        command.args(["-shared", "-Wl,--as-needed"]);
        if self.sanitize {
            command.arg("-fsanitize=address");
        } else {
            command.arg("-Wl,-z,defs");
        }
        run(command.args(objects).arg("-o").arg(&new))?;
        fs::rename(&new, &self.library).map_err(|error| failed(&self.library, &error))
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| failed(path, &error))
}

/// The text of the table of modules.
fn table(count: usize) -> String {
    let mut text = String::from("#include \"runtime.h\"\nnamespace simulated {\n");
    for number in 0..count {
        writeln!(text, "extern const Module module_{number};").expect("a string takes all");
    }
    text += "extern const Module *const modules[];\nconst Module *const modules[] = {";
    for number in 0..count {
        write!(text, "&module_{number}, ").expect("a string takes all");
    }
    writeln!(
        text,
        "nullptr}};\nextern const unsigned module_count;\n\
         const unsigned module_count = {count};\n}}"
    )
    .expect("a string takes all");
    text
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned())
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

fn no_compiler(error: &std::io::Error) -> String {
    format!("{}: {error}: scripts/setup installs it", compiler())
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| no_compiler(&error))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Copies `.cu` and `.cuh` files, rewritten, and collects the `.cu` files.
fn rewrite_tree(from: &Path, to: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(from).map_err(|error| failed(from, &error))?;
    fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| failed(from, &error))?.path();
        let Some(name) = path.file_name() else { continue };
        let copy = to.join(name);
        if path.is_dir() {
            rewrite_tree(&path, &copy, found)?;
            continue;
        }
        let Some("cu" | "cuh" | "h") = path.extension().and_then(|kind| kind.to_str()) else {
            continue;
        };
        let text = read(&path)?;
        // Reports name the file as it is.
        let text = format!("#line 1 \"{}\"\n{}", path.display(), rewrite(&text));
        fs::write(&copy, text).map_err(|error| failed(&copy, &error))?;
        if path.extension().is_some_and(|kind| kind == "cu") {
            found.push(copy);
        }
    }
    Ok(())
}

/// The texts of all headers below, in the order of their names.
fn headers(directory: &Path, all: &mut Vec<String>) -> Result<(), String> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            headers(&path, all)?;
        } else if path.extension().is_some_and(|kind| kind != "cu") {
            all.push(read(&path)?);
        }
    }
    Ok(())
}

/// Turns each `extern __shared__ [ALIGNMENT] TYPE NAME[];` into a pointer of that name.
fn rewrite(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("extern __shared__") {
        let (before, declaration) = rest.split_at(at);
        result += before;
        let Some(end) = declaration.find(';') else { break };
        let inner = declaration["extern __shared__".len()..end].trim();
        match inner.strip_suffix(']').map(str::trim_end).and_then(|inner| inner.strip_suffix('[')) {
            Some(variable) => {
                let name = variable.trim_end().rsplit(|c: char| !is_name(c)).next().unwrap_or("");
                let kind = variable.trim_end().strip_suffix(name).unwrap_or("").trim();
                let kind = without_alignment(kind);
                let lines = "\n".repeat(declaration[..end].matches('\n').count());
                write!(
                    result,
                    "{kind} *const {name} = \
                     static_cast<{kind} *>(::simulated::block.dynamic_shared){lines}"
                )
                .expect("a string takes all");
            }
            None => result += &declaration[..end],
        }
        rest = &declaration[end..];
    }
    result + rest
}

/// What is left of a type without `__align__(…)` or `alignas(…)` before it.
fn without_alignment(kind: &str) -> &str {
    let Some(rest) = kind.strip_prefix("__align__").or_else(|| kind.strip_prefix("alignas")) else {
        return kind;
    };
    rest.split_once(')').map_or(kind, |(_, kind)| kind.trim())
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// The names of the kernels in preprocessed text.
fn kernels(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split("__simulated_kernel__").skip(1) {
        let Some((declaration, _)) = part.split_once('(') else { continue };
        let name = declaration.trim().trim_start_matches("void").trim();
        if !name.is_empty() && name.chars().all(is_name) && !names.iter().any(|old| old == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_shared_memory_becomes_a_pointer() {
        assert_eq!(
            rewrite("a; extern __shared__ unsigned long long tile[]; b"),
            "a; unsigned long long *const tile = \
             static_cast<unsigned long long *>(::simulated::block.dynamic_shared); b"
        );
        let aligned = rewrite("extern __shared__ __align__(16)\nunsigned char bytes [ ];");
        assert!(aligned.starts_with("unsigned char *const bytes = "), "{aligned}");
        assert!(aligned.ends_with("dynamic_shared)\n;"), "{aligned}");
        assert_eq!(rewrite("__shared__ int a[4];"), "__shared__ int a[4];");
    }

    #[test]
    fn kernels_are_found_by_name() {
        let text = "extern \"C\" __simulated_kernel__ void a(int *x) {}\n\
                    template <typename T> void b(T);\n\
                    extern \"C\" { __simulated_kernel__ void\n c(); void d(); }\n\
                    extern \"C\" __simulated_kernel__ void a(int *x);";
        assert_eq!(kernels(text), ["a", "c"]);
    }
}
