//! A column in device memory, as kernels take it (`kernels/column.cuh`).

/// How the values of a column lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Layout {
    /// A bitmap.
    Bool = 0,
    /// 8-bit integers.
    I8,
    /// 16-bit integers.
    I16,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// 128-bit integers, aligned to 16 bytes.
    I128,
    /// Arrow's Utf8: offsets of 32 bits, and bytes.
    String,
    /// Keys of 8 bits, signed or not, into a dictionary of strings.
    Dictionary8,
    /// Keys of 16 bits.
    Dictionary16,
    /// Keys of 32 bits.
    Dictionary32,
    /// Keys of 64 bits.
    Dictionary64,
    /// A pointer and a length for each row, 16 bytes: strings that lie anywhere.
    Text,
}

impl Layout {
    /// Bytes of a row's value, if all have the same number; a Bool has an eighth, a String an offset
    /// and its own.
    pub fn width(self) -> Option<usize> {
        match self {
            Layout::Bool | Layout::String => None,
            Layout::I8 | Layout::Dictionary8 => Some(1),
            Layout::I16 | Layout::Dictionary16 => Some(2),
            Layout::I32 | Layout::F32 | Layout::Dictionary32 => Some(4),
            Layout::I64 | Layout::F64 | Layout::Dictionary64 => Some(8),
            Layout::I128 | Layout::Text => Some(16),
        }
    }
}

/// Bytes that `rows` bits of a bitmap take: whole 32-bit words, since kernels read and write those.
pub fn bitmap_bytes(rows: usize) -> usize {
    rows.div_ceil(32) * 4
}

/// A column, by addresses in device memory. A null address is an absent buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Column {
    /// Values of fixed width, or a dictionary's keys; the first row's at the address.
    pub values: u64,
    /// A bitmap of the rows that aren't null; 0 if none is.
    pub validity: u64,
    /// Offsets of a String's rows, or of the dictionary's values: one more than there are.
    pub offsets: u64,
    /// Bytes of strings.
    pub bytes: u64,
    /// A bitmap of the dictionary's values that aren't null; 0 if none is.
    pub dictionary_validity: u64,
    /// The first row's bit in a Bool's values.
    pub values_bit: u32,
    /// The first row's bit in the validity.
    pub validity_bit: u32,
    /// The first value's bit in the dictionary's validity.
    pub dictionary_validity_bit: u32,
    /// How values lie in memory.
    pub layout: Layout,
    /// Fills up to the size that kernels see.
    pub unused: [u8; 3],
}

impl Column {
    /// A column of values of fixed width, none of them null.
    pub fn fixed(layout: Layout, values: u64) -> Self {
        Column {
            values,
            validity: 0,
            offsets: 0,
            bytes: 0,
            dictionary_validity: 0,
            values_bit: 0,
            validity_bit: 0,
            dictionary_validity_bit: 0,
            layout,
            unused: [0; 3],
        }
    }

    /// A column of strings, none of them null.
    pub fn string(offsets: u64, bytes: u64) -> Self {
        Column { offsets, bytes, ..Column::fixed(Layout::String, 0) }
    }

    /// The same with nulls.
    #[must_use]
    pub fn with_validity(self, validity: u64, first_bit: u32) -> Self {
        Column { validity, validity_bit: first_bit, ..self }
    }

    /// As kernels read it.
    pub fn to_bytes(&self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let words =
            [self.values, self.validity, self.offsets, self.bytes, self.dictionary_validity];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let bits = [self.values_bit, self.validity_bit, self.dictionary_validity_bit];
        for (to, bit) in bytes[40..52].chunks_exact_mut(4).zip(bits) {
            to.copy_from_slice(&bit.to_le_bytes());
        }
        bytes[52] = self.layout as u8;
        bytes
    }
}

/// Where a result goes (`kernels/expression/instruction.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Values by layout: a bitmap of whole words for Bool.
    pub values: u64,
    /// A bitmap of whole words.
    pub validity: u64,
    /// How values are written: Text for strings.
    pub layout: Layout,
}

impl Output {
    /// As kernels read it.
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.values.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.validity.to_le_bytes());
        bytes[16] = self.layout as u8;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_what_kernels_take() {
        assert_eq!(size_of::<Column>(), 56);
        let column = Column {
            dictionary_validity: 5,
            values_bit: 6,
            dictionary_validity_bit: 8,
            ..Column::fixed(Layout::Dictionary16, 1)
        };
        let column = Column { offsets: 3, bytes: 4, ..column }.with_validity(2, 7);
        let bytes = column.to_bytes();
        let words: Vec<u64> = bytes[..40]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        assert_eq!(words, [1, 2, 3, 4, 5]);
        assert_eq!(bytes[40..], [6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 10, 0, 0, 0]);
    }

    #[test]
    fn layouts_have_the_kernels_numbers() {
        let header = include_str!("../../../kernels/column.cuh");
        let (_, body) = header.split_once("enum class Layout : u8 {").expect("the enum");
        let (body, _) = body.split_once('}').expect("its end");
        let names: Vec<&str> = body.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
        let ours = [
            Layout::Bool,
            Layout::I8,
            Layout::I16,
            Layout::I32,
            Layout::I64,
            Layout::F32,
            Layout::F64,
            Layout::I128,
            Layout::String,
            Layout::Dictionary8,
            Layout::Dictionary16,
            Layout::Dictionary32,
            Layout::Dictionary64,
            Layout::Text,
        ];
        assert_eq!(ours.map(|layout| format!("{layout:?}")).to_vec(), names);
        assert!(ours.iter().enumerate().all(|(number, &layout)| layout as usize == number));
    }

    #[test]
    fn bitmaps_are_whole_words() {
        assert_eq!([0, 1, 32, 33].map(bitmap_bytes), [0, 4, 4, 8]);
    }
}
