//! Columns of tests: on the host as options, on the device as Arrow has them.

use std::collections::HashMap;

use creel_gpu::kernels::column::{Column, Layout};

use crate::gpu::{Gpu, Number};

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Integer(i64),
    F32(f32),
    F64(f64),
    I128(i128),
    Text(String),
}

impl Value {
    /// Alike where groups are: -0 is +0, and a NaN is itself.
    pub(crate) fn key(&self) -> String {
        match self {
            Value::F32(value) => format!("f{:x}", if *value == 0.0 { 0 } else { value.to_bits() }),
            Value::F64(value) => format!("d{:x}", if *value == 0.0 { 0 } else { value.to_bits() }),
            other => format!("{other:?}"),
        }
    }
}

/// A column's rows.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) layout: Layout,
    pub(crate) values: Vec<Option<Value>>,
}

impl Rows {
    pub(crate) fn new(layout: Layout, values: Vec<Option<Value>>) -> Self {
        Rows { layout, values }
    }

    /// Uploads them. Bitmaps begin in the middle of a word.
    pub(crate) fn put(&self, gpu: &Gpu) -> Column {
        let column = match self.layout {
            Layout::Bool => Column {
                values: gpu
                    .put_bits(13, self.values.iter().map(|it| *it == Some(Value::Bool(true))))
                    .address(),
                values_bit: 13,
                ..Column::fixed(Layout::Bool, 0)
            },
            Layout::I8 => self.numbers(gpu, |it| it as i8, i8::MIN),
            Layout::I16 => self.numbers(gpu, |it| it as i16, i16::MIN),
            Layout::I32 => self.numbers(gpu, |it| it as i32, i32::MIN),
            Layout::I64 => self.numbers(gpu, |it| it, i64::MIN),
            Layout::F32 => self.each(gpu, f32::NAN, |it| match it {
                Value::F32(value) => *value,
                other => panic!("{other:?} is no float"),
            }),
            Layout::F64 => self.each(gpu, f64::NAN, |it| match it {
                Value::F64(value) => *value,
                other => panic!("{other:?} is no double"),
            }),
            Layout::I128 => self.each(gpu, i128::MIN, |it| match it {
                Value::I128(value) => *value,
                other => panic!("{other:?} is no decimal"),
            }),
            Layout::String => {
                let (offsets, bytes) =
                    strings(gpu, self.values.iter().map(|it| text_of(it.as_ref())));
                Column::string(offsets, bytes)
            }
            layout => self.dictionary(gpu, layout),
        };
        if self.values.iter().all(Option::is_some) {
            return column;
        }
        let validity = gpu.put_bits(7, self.values.iter().map(Option::is_some));
        column.with_validity(validity.address(), 7)
    }

    fn each<T: Number>(&self, gpu: &Gpu, null: T, of: impl Fn(&Value) -> T) -> Column {
        let values: Vec<T> = self.values.iter().map(|it| it.as_ref().map_or(null, &of)).collect();
        Column::fixed(self.layout, gpu.put(&values).address())
    }

    fn numbers<T: Number>(&self, gpu: &Gpu, of: impl Fn(i64) -> T, null: T) -> Column {
        self.each(gpu, null, |it| match it {
            Value::Integer(value) => of(*value),
            other => panic!("{other:?} is no integer"),
        })
    }

    /// Null keys lead beyond the dictionary; one of its values is null, and taken by every other
    /// null row.
    fn dictionary(&self, gpu: &Gpu, layout: Layout) -> Column {
        let mut texts: Vec<Option<&str>> = vec![None];
        let mut numbers = HashMap::new();
        let mut null_rows = 0;
        let mut validity = vec![];
        let keys: Vec<u64> = self
            .values
            .iter()
            .map(|value| {
                validity.push(true);
                match text_of(value.as_ref()) {
                    Some(text) => *numbers.entry(text).or_insert_with(|| {
                        texts.push(Some(text));
                        texts.len() as u64 - 1
                    }),
                    None if null_rows % 2 == 0 => {
                        null_rows += 1;
                        0
                    }
                    None => {
                        null_rows += 1;
                        *validity.last_mut().expect("just pushed") = false;
                        u64::MAX
                    }
                }
            })
            .collect();
        let keys = match layout {
            Layout::Dictionary8 => gpu.put(&keys.iter().map(|&it| it as u8).collect::<Vec<_>>()),
            Layout::Dictionary16 => gpu.put(&keys.iter().map(|&it| it as u16).collect::<Vec<_>>()),
            Layout::Dictionary32 => gpu.put(&keys.iter().map(|&it| it as u32).collect::<Vec<_>>()),
            _ => gpu.put(&keys),
        };
        let (offsets, bytes) = strings(gpu, texts.iter().copied());
        let dictionary = gpu.put_bits(5, texts.iter().map(Option::is_some));
        Column {
            dictionary_validity: dictionary.address(),
            dictionary_validity_bit: 5,
            offsets,
            bytes,
            ..Column::fixed(layout, keys.address())
        }
        .with_validity(gpu.put_bits(9, validity).address(), 9)
    }
}

fn text_of(value: Option<&Value>) -> Option<&str> {
    match value {
        Some(Value::Text(text)) => Some(text),
        None => None,
        Some(other) => panic!("{other:?} is no text"),
    }
}

/// Offsets that don't begin with 0, as those of a sliced array.
fn strings<'a>(gpu: &Gpu, texts: impl Iterator<Item = Option<&'a str>>) -> (u64, u64) {
    let mut bytes = b"before".to_vec();
    let mut offsets = vec![bytes.len() as i32];
    for text in texts {
        bytes.extend(text.unwrap_or_default().bytes());
        offsets.push(bytes.len() as i32);
    }
    (gpu.put(&offsets).address(), gpu.put(&bytes).address())
}
