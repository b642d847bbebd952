//! Which types there are: the answers to `GetXdbcTypeInfo`.

use std::sync::LazyLock;

use arrow_flight::sql::metadata::{XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder};
use arrow_flight::sql::{Nullable, Searchable, XdbcDataType, XdbcDatetimeSubcode};

/// The answers.
pub static TYPE_INFO: LazyLock<XdbcTypeInfoData> = LazyLock::new(|| {
    let mut types = XdbcTypeInfoDataBuilder::new();
    types.append(other("BOOLEAN", XdbcDataType::XdbcBit, 1));
    for (name, data_type, digits) in [
        ("TINYINT", XdbcDataType::XdbcTinyint, 3),
        ("SMALLINT", XdbcDataType::XdbcSmallint, 5),
        ("INTEGER", XdbcDataType::XdbcInteger, 10),
        ("BIGINT", XdbcDataType::XdbcBigint, 19),
    ] {
        types.append(number(name, data_type, digits, 10));
    }
    types.append(number("FLOAT", XdbcDataType::XdbcReal, 24, 2));
    types.append(number("DOUBLE", XdbcDataType::XdbcDouble, 53, 2));
    types.append(XdbcTypeInfo {
        create_params: Some(vec!["precision".to_owned(), "scale".to_owned()]),
        minimum_scale: Some(0),
        maximum_scale: Some(38),
        ..number("DECIMAL", XdbcDataType::XdbcDecimal, 38, 10)
    });
    types.append(quoted("VARCHAR", XdbcDataType::XdbcVarchar, i32::MAX));
    types.append(XdbcTypeInfo {
        literal_prefix: Some("X'".to_owned()),
        ..quoted("BYTEA", XdbcDataType::XdbcVarbinary, i32::MAX)
    });
    types.append(XdbcTypeInfo {
        // ODBC's SQL_CODE_DATE is 1, which the generated names call a year.
        datetime_subcode: Some(XdbcDatetimeSubcode::XdbcSubcodeYear),
        ..dated("DATE", XdbcDataType::XdbcDate, 10)
    });
    types.append(XdbcTypeInfo {
        datetime_subcode: Some(XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
        ..dated("TIMESTAMP", XdbcDataType::XdbcTimestamp, 29)
    });
    types.build().expect("the answers are of the right types")
});

fn other(name: &str, data_type: XdbcDataType, size: i32) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.to_owned(),
        data_type,
        column_size: Some(size),
        literal_prefix: None,
        literal_suffix: None,
        create_params: None,
        nullable: Nullable::NullabilityNullable,
        case_sensitive: false,
        searchable: Searchable::Full,
        unsigned_attribute: None,
        fixed_prec_scale: false,
        auto_increment: None,
        local_type_name: Some(name.to_owned()),
        minimum_scale: None,
        maximum_scale: None,
        sql_data_type: data_type,
        datetime_subcode: None,
        num_prec_radix: None,
        interval_precision: None,
    }
}

fn number(name: &str, data_type: XdbcDataType, digits: i32, radix: i32) -> XdbcTypeInfo {
    XdbcTypeInfo {
        unsigned_attribute: Some(false),
        num_prec_radix: Some(radix),
        ..other(name, data_type, digits)
    }
}

fn quoted(name: &str, data_type: XdbcDataType, size: i32) -> XdbcTypeInfo {
    XdbcTypeInfo {
        literal_prefix: Some("'".to_owned()),
        literal_suffix: Some("'".to_owned()),
        case_sensitive: true,
        ..other(name, data_type, size)
    }
}

fn dated(name: &str, data_type: XdbcDataType, size: i32) -> XdbcTypeInfo {
    XdbcTypeInfo {
        literal_prefix: Some(format!("{name} '")),
        case_sensitive: false,
        sql_data_type: XdbcDataType::XdbcDatetime,
        ..quoted(name, data_type, size)
    }
}
