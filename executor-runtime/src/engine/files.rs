//! Tables by path: `FROM 'orders.parquet'`, `FROM 'dir/*.parquet'`, `FROM '/data/orders/'`.
//!
//! A relative path is below the working directory of the client's process. A path is a file, a
//! directory (of a data set as Spark writes them, partitions `key=value` included), or a pattern
//! with `*`, `?`, `[…]` and `**`. The ending says the format. Files are opened by this process,
//! which is the client's user, so the kernel decides what may be read.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use datafusion::arrow::error::ArrowError;
use datafusion::catalog::{Session, TableProvider, UrlTableFactory};
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};
use parking_lot::RwLock;
use url::Url;

use crate::error::ExecutorError;

/// Endings of the formats that can be read.
const FORMATS: [&str; 4] = ["parquet", "csv", "json", "arrow"];

/// Files that an error names at the most.
const NAMED_FILES: usize = 3;

/// Makes a location absolute: a relative path is below `directory`. A URL of a file becomes its path.
pub fn resolve(location: &str, directory: Option<&Path>) -> crate::Result<String> {
    if let Some((scheme, _)) = location.split_once("://") {
        if scheme != "file" {
            return Err(ExecutorError::Invalid(format!(
                "cannot read '{location}': there is no reader for {scheme}:// here"
            )));
        }
        let path = Url::parse(location).ok().and_then(|url| url.to_file_path().ok());
        let path = path.and_then(|path| path.into_os_string().into_string().ok());
        return path.ok_or_else(|| {
            ExecutorError::Invalid(format!("cannot read '{location}': it is no URL of a file"))
        });
    }
    if Path::new(location).is_absolute() {
        return Ok(location.to_owned());
    }
    let Some(directory) = directory else {
        return Err(ExecutorError::Invalid(format!(
            "cannot find '{location}': the working directory of the client is unknown; use an absolute path"
        )));
    };
    // `join` keeps the slash that marks a directory.
    let path = directory.join(location);
    path.into_os_string().into_string().map_err(|path| {
        ExecutorError::Invalid(format!(
            "cannot use '{}': the path is no valid UTF-8",
            path.display()
        ))
    })
}

fn has_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

fn ending(path: &str) -> Option<String> {
    Path::new(path).extension()?.to_str().map(str::to_lowercase)
}

fn is_format(ending: &str) -> bool {
    FORMATS.contains(&ending)
}

/// Makes tables of names that are paths.
#[derive(Clone, Debug)]
pub struct PathTables {
    directory: Option<PathBuf>,
    state: Arc<OnceLock<Weak<RwLock<SessionState>>>>,
}

impl PathTables {
    /// For a client in that working directory.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, state: Arc::default() }
    }

    /// Tells for which session the tables are; once.
    pub fn serve(&self, context: &SessionContext) {
        // Weak, since the session holds the tables.
        self.state.get_or_init(|| context.state_weak_ref());
    }

    fn session(&self) -> Result<SessionState> {
        let state = self.state.get().and_then(Weak::upgrade);
        let state = state.ok_or_else(|| DataFusionError::Internal("the session is gone".into()))?;
        let session = state.read().clone();
        Ok(session)
    }

    async fn open(&self, name: &str) -> Result<Arc<dyn TableProvider>> {
        let location = resolve(name, self.directory.as_deref()).map_err(plan_error)?;
        let state = self.session()?;
        let urls = tokio::task::spawn_blocking(move || expand(&location))
            .await
            .map_err(|error| DataFusionError::External(Box::new(error)))??;
        table(&state, name, urls).await
    }
}

#[async_trait]
impl UrlTableFactory for PathTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let path = name.contains('/')
            || has_pattern(name)
            || ending(name).is_some_and(|ending| is_format(&ending));
        if !path {
            return Ok(None);
        }
        self.open(name).await.map(Some)
    }
}

fn plan_error(error: ExecutorError) -> DataFusionError {
    match error {
        ExecutorError::Engine(error) => error,
        error => DataFusionError::Plan(error.to_string()),
    }
}

fn cannot_read(path: &Path, reason: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::Plan(format!("cannot read '{}': {reason}", path.display()))
}

/// The files that a path stands for: itself, or what a pattern matches.
fn expand(location: &str) -> Result<Vec<ListingTableUrl>> {
    let path = Path::new(location);
    match path.metadata() {
        Ok(metadata) if metadata.is_file() || metadata.is_dir() => {
            return Ok(vec![table_url(path, metadata.is_dir())?]);
        }
        // Opening a pipe waits for its writer, and a device may have no end.
        Ok(_) => return Err(cannot_read(path, "it is no regular file")),
        // A file of that very name would have been meant.
        Err(error) if error.kind() == io::ErrorKind::NotFound && has_pattern(location) => {}
        Err(error) => return Err(cannot_read(path, error)),
    }
    // `new` respects case, the default does not.
    let options =
        glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let matches = glob::glob_with(location, options)
        .map_err(|error| cannot_read(path, format!("it is no pattern: {error}")))?;
    let mut urls = Vec::new();
    for found in matches {
        let found = found.map_err(|error| cannot_read(error.path(), error.error()))?;
        if found.is_file() {
            urls.push(table_url(&found, false)?);
        }
    }
    if urls.is_empty() {
        return Err(cannot_read(path, "no file matches"));
    }
    Ok(urls)
}

fn table_url(path: &Path, directory: bool) -> Result<ListingTableUrl> {
    let url = if directory { Url::from_directory_path(path) } else { Url::from_file_path(path) };
    let url = url.map_err(|()| cannot_read(path, "the path is not absolute"))?;
    ListingTableUrl::try_new(url, None)
}

/// The table of those files.
async fn table(
    state: &SessionState,
    name: &str,
    urls: Vec<ListingTableUrl>,
) -> Result<Arc<dyn TableProvider>> {
    let named = Path::new(name);
    let Some(first) = urls.first().cloned() else { return Err(cannot_read(named, "no file")) };
    let store = state.runtime_env().object_store(&first)?;
    let format = format_of(state, store.as_ref(), named, &urls).await?;
    let factory = state
        .get_file_format_factory(&format)
        .ok_or_else(|| cannot_read(named, format!("there is no reader for .{format}")))?;
    let format = factory.create(state, &HashMap::default())?;
    let ending = format!(".{}", format.get_ext().trim_start_matches('.'));
    let directory = first.is_collection();
    let options = ListingOptions::new(format)
        // A single file is read whatever the case of its ending is.
        .with_file_extension(if directory { ending.as_str() } else { "" });

    let mut config =
        ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options.clone());
    if directory {
        config = config.infer_partitions_from_path(state).await?;
    }
    let paths = config.table_paths.clone();
    if !directory && let Some(empty) = empty_file(state, &store, &paths).await? {
        return Err(cannot_read(Path::new(&empty), "the file is empty"));
    }
    let config = match config.infer_schema(state).await {
        Ok(config) => config,
        Err(error) => return Err(name_culprit(state, &store, &options, &paths, error).await),
    };
    let table = ListingTable::try_new(config)?
        .with_cache(state.runtime_env().cache_manager.get_file_statistic_cache());
    Ok(Arc::new(table))
}

/// The first file, if all that were named are without a byte: DataFusion passes over such files,
/// and would know no column.
async fn empty_file(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    urls: &[ListingTableUrl],
) -> Result<Option<String>> {
    for url in urls {
        let mut files = url.list_all_files(state, store.as_ref(), "").await?;
        while let Some(file) = files.try_next().await? {
            if file.size > 0 {
                return Ok(None);
            }
        }
    }
    Ok(urls.first().map(|url| absolute(url.prefix().as_ref())))
}

/// The one format of those files, by their endings.
async fn format_of(
    state: &dyn Session,
    store: &dyn ObjectStore,
    name: &Path,
    urls: &[ListingTableUrl],
) -> Result<String> {
    let mut endings = BTreeSet::new();
    for url in urls {
        if !url.is_collection() {
            endings.extend(ending(url.prefix().as_ref()));
            continue;
        }
        let mut files = url.list_all_files(state, store, "").await?;
        while let Some(file) = files.try_next().await.map_err(|error| cannot_read(name, error))? {
            let hidden = file.location.filename().is_none_or(|name| name.starts_with(['_', '.']));
            let known = ending(file.location.as_ref()).filter(|ending| is_format(ending));
            endings.extend(known.filter(|_| !hidden));
        }
        if endings.is_empty() {
            let wanted = FORMATS.map(|format| format!(".{format}")).join(", ");
            return Err(cannot_read(name, format!("the directory holds no {wanted} file")));
        }
    }
    let mut formats = endings.iter();
    match (formats.next(), formats.next()) {
        (Some(format), None) if is_format(format) => Ok(format.clone()),
        (Some(one), Some(other)) => Err(cannot_read(
            name,
            format!("it holds .{one} and .{other} files; name those of one kind by a pattern"),
        )),
        (ending, _) => {
            let ending = ending.map_or_else(|| "no ending".to_owned(), |it| format!("'.{it}'"));
            let wanted = FORMATS.map(|format| format!(".{format}")).join(", ");
            Err(cannot_read(name, format!("its name has {ending}; known are {wanted}")))
        }
    }
}

/// Adds to an error which file it comes from, by reading each on its own.
async fn name_culprit(
    state: &SessionState,
    store: &Arc<dyn ObjectStore>,
    options: &ListingOptions,
    urls: &[ListingTableUrl],
    error: DataFusionError,
) -> DataFusionError {
    for url in urls {
        let Ok(files) = url.list_all_files(state, store.as_ref(), &options.file_extension).await
        else {
            continue;
        };
        let files: Vec<ObjectMeta> = files.filter_map(async |file| file.ok()).collect().await;
        for file in files.into_iter().filter(|file| file.size > 0) {
            let path = absolute(file.location.as_ref());
            let one = options.format.infer_schema(state, store, &[file]).await;
            if let Err(error) = one {
                return error.context(format!("cannot read '{path}'"));
            }
        }
    }
    let first = urls.first().map(|url| absolute(url.prefix().as_ref())).unwrap_or_default();
    error.context(format!("cannot read '{first}'"))
}

/// The path of an object of the local file system.
fn absolute(location: &str) -> String {
    format!("/{location}")
}

/// Adds to an error of a scan which files were scanned: the readers don't say.
pub fn name_files(error: DataFusionError, plan: &dyn ExecutionPlan) -> DataFusionError {
    let of_a_file = match error.find_root() {
        DataFusionError::ParquetError(_) => true,
        DataFusionError::ArrowError(error, _) => matches!(
            **error,
            ArrowError::ParquetError(_)
                | ArrowError::CsvError(_)
                | ArrowError::JsonError(_)
                | ArrowError::IpcError(_)
        ),
        _ => false,
    };
    let files = if of_a_file { scanned_files(plan) } else { BTreeSet::new() };
    let named: Vec<String> =
        files.iter().take(NAMED_FILES).map(|file| format!("'{file}'")).collect();
    match files.len() {
        0 => error,
        1 => error.context(format!("cannot read {}", named[0])),
        count if count <= NAMED_FILES => {
            error.context(format!("cannot read one of {}", named.join(", ")))
        }
        count => error
            .context(format!("cannot read one of {count} files, {} among them", named.join(", "))),
    }
}

fn scanned_files(plan: &dyn ExecutionPlan) -> BTreeSet<String> {
    let source = plan.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
    let scan = source.and_then(|source| source.downcast_ref::<FileScanConfig>());
    let own = scan.into_iter().flat_map(|scan| &scan.file_groups).flat_map(FileGroup::iter);
    let own = own.map(|file| absolute(file.object_meta.location.as_ref()));
    let below = plan.children().into_iter().flat_map(|child| scanned_files(child.as_ref()));
    own.chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_below_the_working_directory() {
        let directory = Some(Path::new("/home/ann"));
        assert_eq!(resolve("x/*.parquet", directory).unwrap(), "/home/ann/x/*.parquet");
        assert_eq!(resolve("x/", directory).unwrap(), "/home/ann/x/");
        assert_eq!(resolve("/x.csv", directory).unwrap(), "/x.csv");
        assert_eq!(resolve("file:///x%20y.csv", directory).unwrap(), "/x y.csv");
        let error = resolve("s3://bucket/x", directory).unwrap_err().to_string();
        assert!(error.contains("no reader for s3://"), "{error}");
        let error = resolve("x.csv", None).unwrap_err().to_string();
        assert!(error.contains("'x.csv'") && error.contains("absolute"), "{error}");
    }

    #[test]
    fn patterns_match_files_and_no_hidden_ones() {
        let directory = tempfile::tempdir().unwrap();
        for file in ["a.csv", "b.csv", ".c.csv", "sub/d.csv", "e[1].csv"] {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x\n1\n").unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let location = directory.path().join(pattern);
            let urls = expand(location.to_str().unwrap()).unwrap();
            urls.iter().map(|url| url.prefix().filename().unwrap().to_owned()).collect()
        };
        assert_eq!(names("*.csv"), ["a.csv", "b.csv", "e[1].csv"]);
        assert_eq!(names("*/d.csv"), ["d.csv"]);
        assert_eq!(names("**/d.csv"), ["d.csv"]);
        assert_eq!(names("e[1].csv"), ["e[1].csv"], "a file of that very name");
        let none = directory.path().join("*.parquet");
        let error = expand(none.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("*.parquet") && error.contains("no file matches"), "{error}");
    }
}
