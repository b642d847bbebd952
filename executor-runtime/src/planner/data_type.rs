//! Types that go to the device.

use creel_gpu::program;
use creel_gpu::program::DataType as DeviceType;
use datafusion::arrow::datatypes::{DataType, TimeUnit};

/// What a column of the type is on the device; absent if it can't go there.
///
/// A timestamp is its number, whatever its time zone. Strings are strings, however Arrow keeps
/// them: plain, as views, or by a dictionary.
pub fn on_device(data_type: &DataType) -> Option<DeviceType> {
    Some(match data_type {
        DataType::Boolean => DeviceType::Bool,
        DataType::Int8 => DeviceType::Int8,
        DataType::Int16 => DeviceType::Int16,
        DataType::Int32 => DeviceType::Int32,
        DataType::Int64 => DeviceType::Int64,
        DataType::Float32 => DeviceType::Float32,
        DataType::Float64 => DeviceType::Float64,
        DataType::Date32 => DeviceType::Date32,
        DataType::Timestamp(unit, _) => DeviceType::Timestamp(time_unit(*unit)),
        DataType::Decimal64(precision, scale) if is_in(*precision, *scale) => {
            DeviceType::Decimal64(*precision, *scale)
        }
        DataType::Decimal128(precision, scale) if is_in(*precision, *scale) => {
            DeviceType::Decimal128(*precision, *scale)
        }
        DataType::Dictionary(key, value) if key.is_integer() && is_string(value) => {
            DeviceType::Utf8
        }
        string if is_string(string) => DeviceType::Utf8,
        _ => return None,
    })
}

/// The same for a column that may be the state of an aggregate: AVG counts in UInt64, which is an
/// Int64 on the device, since no count has 64 bits.
pub fn of_state(data_type: &DataType) -> Option<DeviceType> {
    match data_type {
        DataType::UInt64 => Some(DeviceType::Int64),
        other => on_device(other),
    }
}

/// The same for what is computed on the device: no dictionary is made there.
pub fn of_result(data_type: &DataType) -> Option<DeviceType> {
    match data_type {
        DataType::Dictionary(..) => None,
        other => on_device(other),
    }
}

fn is_string(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_in(precision: u8, scale: i8) -> bool {
    u8::try_from(scale).is_ok_and(|scale| scale <= precision)
}

fn time_unit(unit: TimeUnit) -> program::TimeUnit {
    match unit {
        TimeUnit::Second => program::TimeUnit::Second,
        TimeUnit::Millisecond => program::TimeUnit::Millisecond,
        TimeUnit::Microsecond => program::TimeUnit::Microsecond,
        TimeUnit::Nanosecond => program::TimeUnit::Nanosecond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_go_to_the_device() {
        let dictionary =
            |key: DataType, value: DataType| DataType::Dictionary(Box::new(key), Box::new(value));
        let nanoseconds = DeviceType::Timestamp(program::TimeUnit::Nanosecond);
        for (data_type, on_it) in [
            (DataType::Boolean, DeviceType::Bool),
            (DataType::Int8, DeviceType::Int8),
            (DataType::Float32, DeviceType::Float32),
            (DataType::Date32, DeviceType::Date32),
            (DataType::Timestamp(TimeUnit::Nanosecond, None), nanoseconds),
            (DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())), nanoseconds),
            (DataType::Decimal64(18, 18), DeviceType::Decimal64(18, 18)),
            (DataType::Decimal128(38, 0), DeviceType::Decimal128(38, 0)),
            (DataType::Utf8, DeviceType::Utf8),
            (DataType::LargeUtf8, DeviceType::Utf8),
            (DataType::Utf8View, DeviceType::Utf8),
            (dictionary(DataType::UInt16, DataType::Utf8), DeviceType::Utf8),
            (dictionary(DataType::Int64, DataType::Utf8View), DeviceType::Utf8),
        ] {
            assert_eq!(on_device(&data_type), Some(on_it), "{data_type}");
        }
    }

    #[test]
    fn types_that_stay() {
        let of_numbers = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int64));
        for data_type in [
            DataType::Null,
            DataType::UInt8,
            DataType::UInt64,
            DataType::Float16,
            DataType::Date64,
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Decimal128(10, -2),
            DataType::Decimal128(3, 4),
            DataType::Decimal256(40, 2),
            DataType::Binary,
            of_numbers,
        ] {
            assert_eq!(on_device(&data_type), None, "{data_type}");
        }
    }

    #[test]
    fn counts_are_states_alone_and_dictionaries_are_never_results() {
        assert_eq!(of_state(&DataType::UInt64), Some(DeviceType::Int64));
        assert_eq!(of_state(&DataType::UInt32), None);
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        assert_eq!(of_result(&dictionary), None);
        assert_eq!(of_result(&DataType::Utf8View), Some(DeviceType::Utf8));
    }
}
