//! Which value holds, of all the entries of a name.
//!
//! Hadoop reads file after file, and a later entry replaces an earlier one, unless that is final
//! (`org.apache.hadoop.conf.Configuration`, `loadProperty`). Every part of YARN reads
//! `core-site.xml`, `yarn-site.xml` and `resource-types.xml`; the CapacityScheduler reads
//! `capacity-scheduler.xml` on top of these (`FileBasedCSConfigurationProvider`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::configuration::{Item, Property};
use crate::directory::{Directory, Documents, File};

/// What every part of YARN reads, in that order.
const YARN: [File; 3] = [File::CoreSite, File::YarnSite, File::ResourceTypes];

/// How deep values may name each other (`Configuration.MAX_SUBST`).
const MAX_SUBSTITUTIONS: usize = 20;

/// Values that hold.
#[derive(Clone, Debug, Default)]
pub struct Effective {
    entries: BTreeMap<String, Entry>,
}

/// The entry of a name that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its value as it stands; absent if no entry has one.
    pub(crate) value: Option<String>,
    pub(crate) is_final: bool,
    /// The file of the directory that has it, itself or by an include.
    pub(crate) file: File,
    /// The file that has it.
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

impl Effective {
    /// What every part of YARN goes by.
    pub fn of_yarn(directory: &Directory, documents: &Documents) -> Self {
        let mut effective = Self::default();
        for file in YARN {
            effective.add(directory, documents, file);
        }
        effective
    }

    /// What the ResourceManager's scheduler goes by.
    pub fn of_scheduler(directory: &Directory, documents: &Documents) -> Self {
        let mut effective = Self::of_yarn(directory, documents);
        effective.add(directory, documents, File::CapacityScheduler);
        effective
    }

    /// The value of a name, with the values that it names in its turn (`${…}`).
    pub fn get(&self, name: &str) -> Option<String> {
        let mut value = self.entry(name)?.value.clone()?;
        for _ in 0..MAX_SUBSTITUTIONS {
            let Some((start, end)) = variable(&value) else { break };
            let Some(with) = self.entry(&value[start + 2..end - 1]).and_then(|e| e.value.clone())
            else {
                break;
            };
            value.replace_range(start..end, &with);
        }
        Some(value)
    }

    /// The items of a list.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.get(name).as_deref().map(items).unwrap_or_default()
    }

    /// The names that have a value, and their values as they stand.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .iter()
            .filter_map(|(name, entry)| Some((name.as_str(), entry.value.as_deref()?)))
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    fn add(&mut self, directory: &Directory, documents: &Documents, file: File) {
        if let Some(document) = documents.get(&file) {
            self.add_items(directory, file, &directory.file(file), document.items());
        }
    }

    fn add_items(&mut self, directory: &Directory, file: File, path: &Path, items: &[Item]) {
        for item in items {
            match item {
                Item::Property(property) => self.add_property(file, path, property),
                Item::Include(include) => match directory.included(path, &include.href) {
                    Some((path, document)) => {
                        self.add_items(directory, file, path, document.items());
                    }
                    None => self.add_items(
                        directory,
                        file,
                        path,
                        include.fallback.as_deref().unwrap_or_default(),
                    ),
                },
            }
        }
    }

    fn add_property(&mut self, file: File, path: &Path, property: &Property) {
        let known = self.entries.get(&property.name);
        if known.is_some_and(|known| known.is_final) {
            return;
        }
        if property.value.is_none() {
            // An entry without a value changes none, and yet may be final.
            if let (true, Some(known)) = (property.is_final, self.entries.get_mut(&property.name)) {
                known.is_final = true;
                return;
            }
            if !property.is_final {
                return;
            }
        }
        let entry = Entry {
            value: property.value.clone(),
            is_final: property.is_final,
            file,
            path: path.to_owned(),
            line: property.line,
        };
        self.entries.insert(property.name.clone(), entry);
    }
}

/// Where the first `${…}` of a value is.
fn variable(value: &str) -> Option<(usize, usize)> {
    let start = value.find("${")?;
    let end = start + value[start..].find('}')? + 1;
    Some((start, end))
}

/// The items of a list (Hadoop, `StringUtils.getTrimmedStrings`).
pub(crate) fn items(list: &str) -> Vec<String> {
    let items = list.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
    items.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn property(name: &str, value: &str, is_final: bool) -> String {
        format!("<property name='{name}' value='{value}' final='{is_final}'/>")
    }

    fn read(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Directory, crate::Error>) {
        let temporary = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = temporary.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("<configuration>{content}</configuration>")).unwrap();
        }
        let directory = Directory::read(temporary.path());
        (temporary, directory)
    }

    fn effective(files: &[(&str, &str)]) -> Effective {
        let (_temporary, directory) = read(files);
        let directory = directory.unwrap();
        Effective::of_scheduler(&directory, directory.documents())
    }

    #[test]
    fn the_later_file_wins_unless_the_earlier_is_final() {
        let site = property("a", "site", false) + &property("b", "site", true);
        let types = property("a", "types", false) + &property("b", "types", false);
        let scheduler = property("a", "scheduler", false);
        let core = property("a", "core", false) + &property("c", "core", false);
        let effective = effective(&[
            ("yarn-site.xml", &site),
            ("resource-types.xml", &types),
            ("capacity-scheduler.xml", &scheduler),
            ("core-site.xml", &core),
        ]);
        let get = |name| effective.get(name).unwrap();
        assert_eq!(
            (get("a"), get("b"), get("c")),
            ("scheduler".into(), "site".into(), "core".into())
        );
    }

    #[test]
    fn an_entry_without_value_changes_none_and_may_be_final() {
        let site = property("a", "1", false)
            + "<property><name>a</name><value></value><final>true</final></property>"
            + &property("a", "2", false);
        let effective = effective(&[("yarn-site.xml", &site)]);
        assert_eq!(effective.get("a").as_deref(), Some("1"));
        assert!(effective.entry("a").unwrap().is_final);
    }

    #[test]
    fn includes_are_read_in_their_place() {
        let site = property("a", "1", false)
            + "<include href='inc/b.xml'/><include href='none.xml'><fallback><property name='c' value='f'/></fallback></include>"
            + "<include href='inc/b.xml'><fallback><property name='d' value='f'/></fallback></include>"
            + &property("e", "${c}-${x}", false);
        let b = property("a", "2", false) + "<include href='c.xml'/>";
        let effective = effective(&[
            ("yarn-site.xml", &site),
            ("inc/b.xml", &b),
            ("inc/c.xml", &property("b", "3", false)),
        ]);
        assert_eq!(effective.get("a").as_deref(), Some("2"));
        assert_eq!(effective.get("b").as_deref(), Some("3"));
        assert_eq!(effective.get("c").as_deref(), Some("f"));
        assert_eq!(effective.get("d"), None);
        assert_eq!(effective.get("e").as_deref(), Some("f-${x}"));
        let entry = effective.entry("a").unwrap();
        assert_eq!(entry.file, File::YarnSite);
        assert!(entry.path.ends_with("inc/b.xml"));
    }

    #[test]
    fn includes_that_lead_nowhere_or_in_circles_are_errors() {
        for (site, words) in [
            ("<include href='none.xml'/>", "no such file"),
            ("<include href='yarn-site.xml'/>", "without end"),
        ] {
            let (_temporary, directory) = read(&[("yarn-site.xml", site)]);
            let error = directory.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_elsewhere_is_told() {
        let (_temporary, directory) =
            read(&[("yarn-site.xml", "<include href='http://config/a.xml'/>")]);
        assert!(directory.unwrap().notices()[0].contains("http://config/a.xml"));
    }

    #[test]
    fn values_that_name_each_other_end() {
        let site = property("a", "${b}", false) + &property("b", "${a}${", false);
        assert!(effective(&[("yarn-site.xml", &site)]).get("a").is_some());
    }
}
