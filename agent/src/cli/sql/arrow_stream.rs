//! An Arrow IPC stream, as pyarrow's `ipc.open_stream` reads it.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;

use super::format::Encoder;

/// See the module.
#[derive(Default)]
pub(super) struct ArrowStream {
    writer: Option<StreamWriter<Vec<u8>>>,
}

impl ArrowStream {
    /// What was written since the last time.
    fn take(&mut self) -> Vec<u8> {
        self.writer.as_mut().map(|writer| std::mem::take(writer.get_mut())).unwrap_or_default()
    }
}

impl Encoder for ArrowStream {
    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        self.writer = Some(StreamWriter::try_new(Vec::new(), schema)?);
        Ok(self.take())
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        if let Some(writer) = &mut self.writer {
            writer.write(batch)?;
        }
        Ok(self.take())
    }

    fn end(&mut self) -> Result<Vec<u8>, ArrowError> {
        if let Some(writer) = &mut self.writer {
            writer.finish()?;
        }
        Ok(self.take())
    }
}

#[cfg(test)]
mod tests {
    use arrow::ipc::reader::StreamReader;

    use super::super::format::tests::{encoded, sample};
    use super::*;

    #[test]
    fn a_reader_gets_the_same_batches() {
        let batches = [sample().slice(0, 1), sample().slice(1, 1)];
        let bytes = encoded(ArrowStream::default(), &batches);
        let reader = StreamReader::try_new(&bytes[..], None).unwrap();
        assert_eq!(reader.schema(), batches[0].schema());
        // NaN differs from itself, so its column is left out.
        let without_nan = |batch: &RecordBatch| batch.project(&[0, 1, 2, 4, 5]).unwrap();
        let read: Vec<_> = reader.map(|batch| without_nan(&batch.unwrap())).collect();
        assert_eq!(read, batches.each_ref().map(without_nan));
    }
}
