//! Catalogs, schemas, tables and keys, as Flight SQL's metadata commands ask for them.

use std::sync::{Arc, LazyLock};

use arrow_flight::sql::{CommandGetCatalogs, CommandGetDbSchemas, CommandGetTables};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{CatalogProvider, SchemaProvider};
use datafusion::logical_expr::TableType;
use datafusion::prelude::SessionContext;

use crate::engine::result::ResultSchema;
use crate::error::{ExecutorError, Result};

/// The kinds of tables.
pub const TABLE_TYPES: [&str; 3] = ["BASE TABLE", "LOCAL TEMPORARY", "VIEW"];

fn type_name(table_type: TableType) -> &'static str {
    match table_type {
        TableType::Base => TABLE_TYPES[0],
        TableType::Temporary => TABLE_TYPES[1],
        TableType::View => TABLE_TYPES[2],
    }
}

fn flight(error: impl std::fmt::Display) -> ExecutorError {
    ExecutorError::Invalid(error.to_string())
}

fn catalogs(context: &SessionContext) -> Vec<(String, Arc<dyn CatalogProvider>)> {
    let mut names = context.catalog_names();
    names.sort();
    names.into_iter().filter_map(|name| Some((name.clone(), context.catalog(&name)?))).collect()
}

fn schemas(context: &SessionContext) -> Vec<(String, String, Arc<dyn SchemaProvider>)> {
    let mut schemas = Vec::new();
    for (catalog_name, catalog) in catalogs(context) {
        let mut names = catalog.schema_names();
        names.sort();
        for name in names {
            if let Some(schema) = catalog.schema(&name) {
                schemas.push((catalog_name.clone(), name, schema));
            }
        }
    }
    schemas
}

/// The catalogs of a session.
pub fn get_catalogs(context: &SessionContext, command: CommandGetCatalogs) -> Result<RecordBatch> {
    let mut builder = command.into_builder();
    for (name, _) in catalogs(context) {
        builder.append(name);
    }
    builder.build().map_err(flight)
}

/// The schemas of a session.
pub fn get_schemas(context: &SessionContext, command: CommandGetDbSchemas) -> Result<RecordBatch> {
    let mut builder = command.into_builder();
    for (catalog, name, _) in schemas(context) {
        builder.append(catalog, name);
    }
    builder.build().map_err(flight)
}

/// The tables of a session, with their schemas if the command asks for them.
pub async fn get_tables(
    context: &SessionContext,
    command: CommandGetTables,
) -> Result<RecordBatch> {
    let mut builder = command.into_builder();
    for (catalog, schema_name, schema) in schemas(context) {
        let mut names = schema.table_names();
        names.sort();
        for name in names {
            let Some(table) = schema.table(&name).await? else { continue };
            let table_schema = ResultSchema::new(&table.schema()).schema();
            let table_type = type_name(table.table_type());
            builder
                .append(&catalog, &schema_name, &name, table_type, &table_schema)
                .map_err(flight)?;
        }
    }
    builder.build().map_err(flight)
}

/// The schema of the answers about primary keys, of which there are none.
pub static PRIMARY_KEYS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("catalog_name", DataType::Utf8, true),
        Field::new("db_schema_name", DataType::Utf8, true),
        Field::new("table_name", DataType::Utf8, false),
        Field::new("column_name", DataType::Utf8, false),
        Field::new("key_name", DataType::Utf8, true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
});

/// The schema of the answers about foreign keys, of which there are none.
pub static FOREIGN_KEYS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("pk_catalog_name", DataType::Utf8, true),
        Field::new("pk_db_schema_name", DataType::Utf8, true),
        Field::new("pk_table_name", DataType::Utf8, false),
        Field::new("pk_column_name", DataType::Utf8, false),
        Field::new("fk_catalog_name", DataType::Utf8, true),
        Field::new("fk_db_schema_name", DataType::Utf8, true),
        Field::new("fk_table_name", DataType::Utf8, false),
        Field::new("fk_column_name", DataType::Utf8, false),
        Field::new("key_sequence", DataType::Int32, false),
        Field::new("fk_key_name", DataType::Utf8, true),
        Field::new("pk_key_name", DataType::Utf8, true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
});
