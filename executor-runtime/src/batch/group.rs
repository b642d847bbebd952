//! Rows by key, and what is computed of each group.

use creel_gpu::device::Region;
use creel_gpu::kernels::column::{self, Layout, bitmap_bytes};
use creel_gpu::memory::ledger::DeviceBuffer;
use creel_gpu::primitives::aggregate::{self, Function, Input, Way};
use creel_gpu::primitives::filter::Predicate;
use creel_gpu::primitives::gather::Indices;
use creel_gpu::primitives::group::{self, Grouping, Keys, Memory};
use datafusion::arrow::datatypes::{DataType, SchemaRef};

use super::draft::{Draft, DraftColumn, New};
use super::select::gather;
use super::{Batch, Column, Held, hold};
use crate::gpu::{GpuError, Work};
use crate::operators::computation::Operation;

const PURPOSE: &str = "groups";

/// Groups that a table has room for at first, if there are so many rows.
const FIRST_GUESS: u32 = 1 << 12;

/// Bytes of a group's fixed-point sum of floats while it is added up.
const FLOAT_STATE: u32 = 16;

/// What is computed: of which column, by its place, or of the rows themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// The column.
    pub argument: Option<usize>,
    /// What of it.
    pub operation: Operation,
}

/// One row for each group: its keys, which are the first columns of the batch, then the results of
/// the reductions. `schema` has their types. Groups come in the order in which they first appear; without
/// keys there is one group, even of no rows.
pub fn group(
    work: &Work<'_>,
    batch: &Batch,
    keys: usize,
    reductions: &[Reduction],
    schema: &SchemaRef,
) -> Result<Batch, GpuError> {
    let held = hold(batch.columns(), work)?;
    let mut draft = Draft::default();
    let mut grouping = None;
    let mut groups = 1;
    if keys > 0 {
        let found = find(work, &held, &batch.columns()[..keys], batch.rows())?;
        groups = found.groups;
        let leaders = Indices { region: Region::from(&found.leaders), count: groups };
        for column in &batch.columns()[..keys] {
            let column = gather(work, &held, column, leaders, false, &mut draft)?;
            draft.push(column);
        }
        grouping = Some(found);
    }
    let mut states = States {
        work,
        held: &held,
        batch,
        ids: grouping.as_ref().map(|it| Region::from(&it.ids)),
        groups,
        has_rows: keys > 0 || batch.rows() > 0,
        counts: Vec::new(),
        draft,
    };
    for (reduction, field) in reductions.iter().zip(&schema.fields()[keys..]) {
        let column = states.compute(*reduction, field.data_type())?;
        states.draft.push(column);
    }
    Ok(states.draft.finish(work, groups))
}

/// The groups of a batch's rows.
struct Found {
    /// The group of each row.
    ids: DeviceBuffer,
    /// The first row of each group.
    leaders: DeviceBuffer,
    groups: u32,
}

fn find(
    work: &Work<'_>,
    held: &Held<'_>,
    columns: &[Column],
    rows: u32,
) -> Result<Found, GpuError> {
    let (stream, count) = (work.stream(), u64::from(rows));
    let (keys, _descriptions) = describe(work, held, columns, rows)?;
    let hashes = work.allocate(count * 4, "hashes of keys")?;
    group::hash(stream, &keys, Region::from(&hashes))?;
    let ids = work.allocate(count * 4, "groups of rows")?;
    let leading = work.allocate(bitmap_bytes(rows as usize) as u64, "first rows of groups")?;
    let predicate = Predicate { truth: Region::from(&leading), validity: None, rows };
    let workspace = work.allocate(predicate.workspace_bytes().max(8), "counts of groups")?;
    let mut slots = group::slots(rows.min(FIRST_GUESS));
    loop {
        let table = work.allocate(slots * 8, "a table of groups")?;
        let memory = Memory {
            hashes: Region::from(&hashes),
            table: Region::from(&table),
            ids: Region::from(&ids),
            leaders: Region::from(&leading),
            workspace: Region::from(&workspace),
        };
        match group::find(stream, &keys, slots, &memory)? {
            Grouping::Groups(groups) => {
                let leaders = work.allocate(u64::from(groups) * 4, "first rows of groups")?;
                group::number(stream, &keys, groups, &memory, Region::from(&leaders))?;
                return Ok(Found { ids, leaders, groups });
            }
            // There are no more groups than rows.
            Grouping::TableFull(next) => slots = next.min(group::slots(rows)),
        }
    }
}

/// Keys as kernels take them, and the memory that they are described in.
fn describe(
    work: &Work<'_>,
    held: &Held<'_>,
    columns: &[Column],
    rows: u32,
) -> Result<(Keys, DeviceBuffer), GpuError> {
    let described: Vec<u8> =
        columns.iter().flat_map(|column| held.kernel(column).to_bytes()).collect();
    let descriptions = work.allocate(described.len() as u64, "keys' descriptions")?;
    work.stream().upload(&described, Region::from(&descriptions))?;
    let keys = Keys { columns: Region::from(&descriptions), count: columns.len() as u32, rows };
    Ok((keys, descriptions))
}

/// A hash of the first columns of each row, as a column of Int32 after those that the batch has.
pub fn with_hashes(work: &Work<'_>, batch: &Batch, keys: usize) -> Result<Batch, GpuError> {
    let held = hold(batch.columns(), work)?;
    let (keys, _descriptions) = describe(work, &held, &batch.columns()[..keys], batch.rows())?;
    let mut draft = Draft::default();
    let hashes = draft.buffer(work, u64::from(batch.rows()) * 4, "hashes of keys")?;
    group::hash(work.stream(), &keys, draft.region(hashes))?;
    for column in batch.columns() {
        draft.push(DraftColumn::shared(column));
    }
    draft.push(DraftColumn::fixed(DataType::Int32, Layout::I32, hashes, None));
    Ok(draft.finish(work, batch.rows()))
}

/// The states of groups, in a draft.
struct States<'a, 'w> {
    work: &'a Work<'w>,
    held: &'a Held<'a>,
    batch: &'a Batch,
    ids: Option<Region>,
    groups: u32,
    /// Whether every group has a row.
    has_rows: bool,
    /// How many values of an argument each group has, as far as it was needed.
    counts: Vec<(Option<usize>, New)>,
    draft: Draft,
}

impl States<'_, '_> {
    fn compute(
        &mut self,
        reduction: Reduction,
        data_type: &DataType,
    ) -> Result<DraftColumn, GpuError> {
        let Reduction { argument, operation } = reduction;
        let data_type = data_type.clone();
        match operation {
            Operation::Count => {
                let counts = self.count(argument)?;
                Ok(DraftColumn::fixed(data_type, Layout::I64, counts, None))
            }
            Operation::SumOfCounts => {
                let sums = self.states(argument, Function::SumI64)?;
                Ok(DraftColumn::fixed(data_type, Layout::I64, sums, None))
            }
            Operation::Sum => {
                let (layout, sums) = match data_type {
                    DataType::Float64 => (Layout::F64, self.float_sums(argument)?),
                    DataType::Decimal128(..) => {
                        (Layout::I128, self.states(argument, Function::SumI128)?)
                    }
                    _ => (Layout::I64, self.states(argument, Function::SumI64)?),
                };
                let validity = self.validity(argument)?;
                Ok(DraftColumn::fixed(data_type, layout, sums, validity))
            }
            Operation::Min => self.extreme(argument, false),
            Operation::Max => self.extreme(argument, true),
        }
    }

    fn column(&self, argument: Option<usize>) -> Option<&Column> {
        argument.map(|place| &self.batch.columns()[place])
    }

    fn input(&self, argument: Option<usize>) -> Input {
        // Rows are counted by a column without nulls, whose values nobody looks at.
        let rows = column::Column::fixed(Layout::I8, 0);
        Input {
            column: self.column(argument).map_or(rows, |column| self.held.kernel(column)),
            ids: self.ids,
            rows: self.batch.rows(),
            groups: self.groups,
        }
    }

    fn states(&mut self, argument: Option<usize>, function: Function) -> Result<New, GpuError> {
        let bytes = u64::from(self.groups) * u64::from(function.state_bytes());
        let states = self.draft.buffer(self.work, bytes, PURPOSE)?;
        self.fill(argument, function, self.draft.region(states))?;
        Ok(states)
    }

    fn fill(
        &self,
        argument: Option<usize>,
        function: Function,
        states: Region,
    ) -> Result<(), GpuError> {
        let stream = self.work.stream();
        let way = Way::of(stream, self.groups, function.state_bytes());
        Ok(aggregate::aggregate(stream, function, way, &self.input(argument), states)?)
    }

    fn count(&mut self, argument: Option<usize>) -> Result<New, GpuError> {
        // What has no nulls has as many values as rows.
        let argument = argument
            .filter(|_| self.column(argument).is_some_and(|column| column.validity.is_some()));
        if let Some((_, counts)) = self.counts.iter().find(|(known, _)| *known == argument) {
            return Ok(*counts);
        }
        let counts = self.states(argument, Function::Count)?;
        self.counts.push((argument, counts));
        Ok(counts)
    }

    /// The groups that have a value; absent if all have.
    fn validity(&mut self, argument: Option<usize>) -> Result<Option<New>, GpuError> {
        let nullable = self.column(argument).is_some_and(|column| column.validity.is_some());
        if !nullable && self.has_rows {
            return Ok(None);
        }
        let counts = self.count(argument)?;
        let bitmap = self.draft.bitmap(self.work, self.groups, PURPOSE)?;
        let (counts, to) = (self.draft.region(counts), self.draft.region(bitmap));
        aggregate::validity(self.work.stream(), counts, self.groups, to)?;
        Ok(Some(bitmap))
    }

    fn float_sums(&mut self, argument: Option<usize>) -> Result<New, GpuError> {
        let (stream, input) = (self.work.stream(), self.input(argument));
        let way = Way::of(stream, self.groups, FLOAT_STATE);
        let bytes = aggregate::float_workspace_bytes(way, input.rows, self.groups);
        let workspace = self.work.allocate(bytes, "sums of floats")?;
        let sums = self.draft.buffer(self.work, u64::from(self.groups) * 8, PURPOSE)?;
        let to = self.draft.region(sums);
        aggregate::sum_floats(stream, way, &input, Region::from(&workspace), to)?;
        Ok(sums)
    }

    fn extreme(&mut self, argument: Option<usize>, largest: bool) -> Result<DraftColumn, GpuError> {
        let column = self.column(argument).expect("an extreme is of a column").clone();
        let stream = self.work.stream();
        if column.layout == Layout::I128 || column.is_text() {
            let rows = self.work.allocate(u64::from(self.groups) * 4, "rows of extremes")?;
            aggregate::extreme_rows(stream, largest, &self.input(argument), Region::from(&rows))?;
            let indices = Indices { region: Region::from(&rows), count: self.groups };
            return gather(self.work, self.held, &column, indices, true, &mut self.draft);
        }
        let function = if largest { Function::Max } else { Function::Min };
        let bytes = u64::from(self.groups) * u64::from(function.state_bytes());
        let states = self.work.allocate(bytes, "extremes")?;
        self.fill(argument, function, Region::from(&states))?;
        let values = match column.layout.width() {
            Some(width) => {
                self.draft.buffer(self.work, u64::from(self.groups) * width as u64, PURPOSE)?
            }
            None => self.draft.bitmap(self.work, self.groups, PURPOSE)?,
        };
        let to = self.draft.region(values);
        aggregate::extremes(stream, Region::from(&states), self.groups, column.layout, to)?;
        let validity = self.validity(argument)?;
        Ok(DraftColumn::fixed(column.data_type, column.layout, values, validity))
    }
}
