//! From trees to a program: what occurs twice is computed once, and temporaries take turns in slots.

use std::collections::HashMap;
use std::fmt;

use super::data_type::Class;
use super::expression::{Constant, Node};
use super::instruction::{Instruction, OPERANDS, Op, Operand};
use super::{DataType, Error, Expression};

/// Threads of a block of the kernel, and rows of a thread.
pub const THREADS: usize = 128;
/// Rows that a thread works on at once.
pub const ROWS: usize = 4;
/// Temporaries at once: their bits fill a register of 64.
const SLOTS: u16 = 16;
/// Shared memory that a block of every chip may ask for without more ado.
const SHARED_BYTES: usize = 48 << 10;

/// What the interpreter runs: results are written to outputs 0, 1, …, in the order of expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
    constants: Vec<[u64; 2]>,
    text: Vec<u8>,
    outputs: Vec<DataType>,
    /// Slots that hold values, and their 8-byte words.
    slots: usize,
    stride: usize,
}

impl Program {
    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The types of the outputs.
    pub fn outputs(&self) -> &[DataType] {
        &self.outputs
    }

    /// 8-byte words of a slot.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Dynamic shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> usize {
        self.slots * self.stride * 8 * ROWS * THREADS
    }

    /// Blocks for so many rows.
    pub fn blocks(rows: usize) -> usize {
        rows.div_ceil(THREADS * ROWS)
    }

    /// All that is uploaded once for the program: instructions, constants, text.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.text_offset() + self.text.len());
        for instruction in &self.instructions {
            bytes.extend(instruction.to_bytes());
        }
        for constant in &self.constants {
            bytes.extend(constant.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend(&self.text);
        bytes
    }

    /// Where in the bytes constants begin.
    pub fn constants_offset(&self) -> usize {
        self.instructions.len() * 16
    }

    /// Where in the bytes text begins.
    pub fn text_offset(&self) -> usize {
        self.constants_offset() + self.constants.len() * 16
    }
}

/// An instruction on each line.
impl fmt::Display for Program {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for instruction in &self.instructions {
            writeln!(to, "{instruction}")?;
        }
        Ok(())
    }
}

/// Levels of a tree: compiling it recurses.
const DEPTH: u32 = 1_000;

/// The program that computes the expressions for every row.
pub fn compile(expressions: &[Expression]) -> Result<Program, Error> {
    if expressions.iter().any(|it| it.depth() > DEPTH) {
        return Err(Error::Depth { limit: DEPTH });
    }
    let mut compiler = Compiler::default();
    let roots: Vec<usize> =
        expressions.iter().map(|it| compiler.intern(it)).collect::<Result<_, _>>()?;
    for &root in &roots {
        compiler.values[root].uses += 1;
    }
    for (output, (&root, expression)) in roots.iter().zip(expressions).enumerate() {
        compiler.emit_output(root, output as u32, expression.data_type())?;
    }
    let program = Program {
        slots: compiler.value_slots.into(),
        stride: compiler.stride.max(1),
        instructions: compiler.instructions,
        constants: compiler.constants,
        text: compiler.text,
        outputs: expressions.iter().map(Expression::data_type).collect(),
    };
    if program.shared_bytes() > SHARED_BYTES {
        return Err(Error::Temporaries);
    }
    Ok(program)
}

/// A distinct node of the expressions.
#[derive(Debug)]
struct Value {
    step: Option<Step>,
    /// How often it is used by what isn't computed yet.
    uses: usize,
    /// Temporaries that computing it takes at once, about.
    need: usize,
    /// Where it is, once it is somewhere.
    at: Option<Operand>,
}

/// How a value is computed from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Step {
    op: Op,
    class: Class,
    result: Class,
    bits: u8,
    operands: Vec<usize>,
    /// Op::In's first constant.
    list: Option<u16>,
    immediate: u32,
}

#[derive(Debug, Default)]
struct Compiler {
    values: Vec<Value>,
    /// By where the node is: a tree whose parts are shared is gone through once.
    by_node: HashMap<usize, usize>,
    by_step: HashMap<Step, usize>,
    by_operand: HashMap<u32, usize>,
    by_constant: HashMap<[u64; 2], u16>,
    by_text: HashMap<Vec<u8>, u64>,
    constants: Vec<[u64; 2]>,
    text: Vec<u8>,
    instructions: Vec<Instruction>,
    /// A bit for each slot that is taken.
    taken: u32,
    value_slots: u16,
    stride: usize,
}

impl Compiler {
    /// The number of the expression's value; equal ones have the same.
    fn intern(&mut self, expression: &Expression) -> Result<usize, Error> {
        let place = std::ptr::from_ref(expression.node()).addr();
        if let Some(&number) = self.by_node.get(&place) {
            return Ok(number);
        }
        let number = self.number(expression.node())?;
        self.by_node.insert(place, number);
        Ok(number)
    }

    fn number(&mut self, node: &Node) -> Result<usize, Error> {
        match node {
            Node::Column(number) => {
                Ok(self.leaf(Operand::Column(*number), 1 << 16 | u32::from(*number)))
            }
            Node::Null => Ok(self.leaf(Operand::Null, 0)),
            Node::Constant(constant) => {
                let number = self.constant(constant)?;
                Ok(self.leaf(Operand::Constant(number), 2 << 16 | u32::from(number)))
            }
            Node::Apply { op, class, result, bits, operands, immediate } => {
                let operands =
                    operands.iter().map(|it| self.intern(it)).collect::<Result<_, _>>()?;
                let (op, class, result) = (*op, *class, *result);
                let (bits, immediate) = (*bits, *immediate);
                Ok(self.step(Step { op, class, result, bits, operands, list: None, immediate }))
            }
            Node::In { class, operand, list, has_null } => {
                let operand = self.intern(operand)?;
                let first = self.block(list)?;
                Ok(self.step(Step {
                    op: Op::In,
                    class: *class,
                    result: Class::Bool,
                    bits: u8::from(*has_null),
                    operands: vec![operand],
                    list: Some(first),
                    immediate: list.len() as u32,
                }))
            }
        }
    }

    fn leaf(&mut self, operand: Operand, key: u32) -> usize {
        let values = &mut self.values;
        *self.by_operand.entry(key).or_insert_with(|| {
            values.push(Value { step: None, uses: 0, need: 0, at: Some(operand) });
            values.len() - 1
        })
    }

    fn step(&mut self, step: Step) -> usize {
        if let Some(&number) = self.by_step.get(&step) {
            return number;
        }
        let mut needs: Vec<usize> =
            step.operands.iter().map(|&operand| self.values[operand].need).collect();
        needs.sort_unstable_by(|a, b| b.cmp(a));
        // The heaviest first: while the others are computed, its result waits.
        let need = needs.iter().enumerate().map(|(waiting, need)| need + waiting).max();
        for &operand in &step.operands {
            self.values[operand].uses += 1;
        }
        let need = need.unwrap_or(0).max(1);
        self.values.push(Value { step: Some(step.clone()), uses: 0, need, at: None });
        self.by_step.insert(step, self.values.len() - 1);
        self.values.len() - 1
    }

    fn bits_of(&mut self, constant: &Constant) -> [u64; 2] {
        match constant {
            Constant::Wide(value) => [*value as u64, (*value >> 64) as u64],
            Constant::Text(text) => {
                let bytes = text.as_bytes();
                let end = &mut self.text;
                let start = *self.by_text.entry(bytes.to_vec()).or_insert_with(|| {
                    end.extend(bytes);
                    (end.len() - bytes.len()) as u64
                });
                [start, bytes.len() as u64]
            }
        }
    }

    fn constant(&mut self, constant: &Constant) -> Result<u16, Error> {
        let bits = self.bits_of(constant);
        if let Some(&number) = self.by_constant.get(&bits) {
            return Ok(number);
        }
        let number = self.next_constant(1)?;
        self.constants.push(bits);
        self.by_constant.insert(bits, number);
        Ok(number)
    }

    /// Constants one after the other; the number of the first.
    fn block(&mut self, list: &[Constant]) -> Result<u16, Error> {
        let first = self.next_constant(list.len())?;
        for constant in list {
            let bits = self.bits_of(constant);
            self.constants.push(bits);
        }
        Ok(first)
    }

    fn next_constant(&self, count: usize) -> Result<u16, Error> {
        let first = self.constants.len();
        if first + count > OPERANDS {
            return Err(Error::Many { what: "constants", limit: OPERANDS });
        }
        Ok(first as u16)
    }

    /// Where the value is; it is computed if it is nowhere yet.
    fn emit(&mut self, number: usize) -> Result<Operand, Error> {
        if let Some(at) = self.values[number].at {
            return Ok(at);
        }
        let step = self.values[number].step.clone().expect("what is nowhere is computed");
        let mut order: Vec<usize> = step.operands.clone();
        order.sort_by_key(|&operand| std::cmp::Reverse(self.values[operand].need));
        for operand in order {
            self.emit(operand)?;
        }
        let mut operands = [Operand::Zero; 3];
        for (to, &operand) in operands.iter_mut().zip(&step.operands) {
            *to = self.values[operand].at.expect("just computed");
        }
        if let Some(first) = step.list {
            operands[1] = Operand::Constant(first);
        }
        // The kernel has read its operands before it writes: the result may take a slot of theirs.
        for &operand in &step.operands {
            self.release(operand);
        }
        let target = self.take(step.result)?;
        let Step { op, class, bits, immediate, .. } = step;
        self.instructions.push(Instruction { op, class, bits, target, operands, immediate });
        self.values[number].at = Some(Operand::Slot(target));
        Ok(Operand::Slot(target))
    }

    fn emit_output(&mut self, root: usize, output: u32, data_type: DataType) -> Result<(), Error> {
        let at = self.emit(root)?;
        self.instructions.push(Instruction {
            op: Op::Output,
            class: data_type.class(),
            bits: 0,
            target: 0,
            operands: [at, Operand::Zero, Operand::Zero],
            immediate: output,
        });
        self.release(root);
        Ok(())
    }

    /// Values take the lowest slots, since those need memory; bits the highest.
    fn take(&mut self, class: Class) -> Result<u16, Error> {
        let is_free = |slot: &u16| self.taken >> slot & 1 == 0;
        let slot = match class {
            Class::Bool => (0..SLOTS).rev().find(is_free),
            _ => (0..SLOTS).find(is_free),
        };
        let slot = slot.ok_or(Error::Temporaries)?;
        self.taken |= 1 << slot;
        if class != Class::Bool {
            self.value_slots = self.value_slots.max(slot + 1);
            self.stride = self.stride.max(class.words());
        }
        Ok(slot)
    }

    /// One use less; after the last, its slot is free.
    fn release(&mut self, number: usize) {
        let value = &mut self.values[number];
        value.uses -= 1;
        if let (0, Some(Operand::Slot(slot))) = (value.uses, value.at) {
            self.taken &= !(1 << slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arithmetic, Comparison, DatePart, Failure, Scalar, TimeUnit, Truth};
    use super::*;

    fn column(number: u16, data_type: DataType) -> Expression {
        Expression::column(number, data_type).expect("a column")
    }

    fn money(number: u16) -> Expression {
        column(number, DataType::Decimal128(15, 2))
    }

    fn one() -> Expression {
        Expression::literal(&Scalar::Decimal128(100, 15, 2)).expect("a literal")
    }

    fn arithmetic(operator: Arithmetic, left: &Expression, right: &Expression) -> Expression {
        Expression::arithmetic(operator, left, right).expect("arithmetic")
    }

    #[test]
    fn what_occurs_twice_is_computed_once() {
        let price = arithmetic(Arithmetic::Subtract, &one(), &money(1));
        let price = arithmetic(Arithmetic::Multiply, &money(0), &price);
        let charge = arithmetic(Arithmetic::Add, &one(), &money(2));
        let charge = arithmetic(Arithmetic::Multiply, &price, &charge);
        let program = compile(&[price.clone(), charge.clone(), price]).expect("a program");
        assert_eq!(
            program.to_string(),
            "s0 = Subtract.I128 k0 c1 - #4\n\
             s0 = Multiply.I128 c0 s0 - #4\n\
             Output.I128 s0 - - #0\n\
             s1 = Add.I128 k0 c2 - #4\n\
             s1 = Multiply.I128 s0 s1 - #4\n\
             Output.I128 s1 - - #1\n\
             Output.I128 s0 - - #2\n"
        );
        assert_eq!(program.shared_bytes(), 2 * 16 * 4 * 128);
        assert_eq!(program.outputs()[1], DataType::Decimal128(38, 6));
        assert_eq!(program.to_bytes().len(), 7 * 16 + 16);
        let _ = charge;
    }

    #[test]
    fn bits_take_no_memory() {
        let date = |days| Scalar::Integer(days, DataType::Date32);
        let shipped = column(0, DataType::Date32);
        let compare = |comparison, left: &Expression, right: &Scalar| {
            let right = Expression::literal(right).expect("a literal");
            Expression::compare(comparison, left, &right).expect("a comparison")
        };
        let from = compare(Comparison::GreaterOrEqual, &shipped, &date(8766));
        let until = compare(Comparison::Less, &shipped, &date(9131));
        let both = Expression::and(&from, &until).expect("AND");
        let program = compile(&[both]).expect("a program");
        assert_eq!(
            program.to_string(),
            "s15 = Compare.I64 c0 k0 - #6\n\
             s14 = Compare.I64 c0 k1 - #1\n\
             s15 = And.Bool s15 s14 - #0\n\
             Output.Bool s15 - - #0\n"
        );
        assert_eq!(program.shared_bytes(), 0);
    }

    #[test]
    fn decimals_have_arrows_types_and_scales() {
        let (a, b) =
            (column(0, DataType::Decimal128(10, 2)), column(1, DataType::Decimal128(12, 4)));
        let of = |operator| arithmetic(operator, &a, &b).data_type();
        assert_eq!(of(Arithmetic::Add), DataType::Decimal128(13, 4));
        assert_eq!(of(Arithmetic::Multiply), DataType::Decimal128(23, 6));
        assert_eq!(of(Arithmetic::Divide), DataType::Decimal128(18, 6));
        assert_eq!(of(Arithmetic::Remainder), DataType::Decimal128(12, 4));
        let program = compile(&[arithmetic(Arithmetic::Add, &a, &b)]).expect("a program");
        assert_eq!(
            program.to_string(),
            "s0 = Multiply.I128 c0 k0 - #4\ns0 = Add.I128 s0 c1 - #4\nOutput.I128 s0 - - #0\n"
        );
        let wide = column(0, DataType::Decimal128(38, 30));
        let product = Expression::arithmetic(Arithmetic::Multiply, &wide, &wide);
        assert!(matches!(product, Err(Error::Scale { .. })));
    }

    #[test]
    fn case_is_a_chain_of_selections() {
        let (flag, value) = (column(0, DataType::Bool), column(1, DataType::Int64));
        let zero = Expression::literal(&Scalar::Integer(0, DataType::Int64)).expect("a literal");
        let case = Expression::case(&[(flag.clone(), value.clone())], Some(&zero)).expect("CASE");
        let program = compile(&[case]).expect("a program");
        assert_eq!(program.to_string(), "s0 = Select.I64/64 c1 k0 c0 #0\nOutput.I64 s0 - - #0\n");
        let mixed = Expression::case(&[(flag.clone(), value)], Some(&flag));
        assert!(matches!(mixed, Err(Error::Operands { .. })));
    }

    #[test]
    fn lists_lie_in_one_piece() {
        let mode = column(0, DataType::Utf8);
        let equal = Expression::literal(&Scalar::Utf8("SHIP".to_owned())).expect("a literal");
        let equal = Expression::compare(Comparison::Equal, &mode, &equal).expect("=");
        let list = ["MAIL", "SHIP"].map(|it| Scalar::Utf8(it.to_owned()));
        let list =
            Expression::in_list(&mode, &[&list[..], &[Scalar::Null(DataType::Utf8)]].concat());
        let program = compile(&[equal, list.expect("IN")]).expect("a program");
        assert_eq!(
            program.to_string(),
            "s15 = Compare.Text c0 k0 - #2\n\
             Output.Bool s15 - - #0\n\
             s15 = In.Text/1 c0 k1 - #2\n\
             Output.Bool s15 - - #1\n"
        );
        assert_eq!(program.text, b"SHIPMAIL");
        assert_eq!(program.constants, [[0, 4], [4, 4], [0, 4]]);
    }

    #[test]
    fn casts_and_parts_of_dates_are_arithmetic() {
        let time = column(0, DataType::Timestamp(TimeUnit::Millisecond));
        let minute = Expression::date_part(DatePart::Minute, &time).expect("a part");
        assert_eq!(minute.data_type(), DataType::Int32);
        let program = compile(&[minute]).expect("a program");
        assert_eq!(
            program.to_string(),
            "s0 = FloorRemainder.I64/64 c0 k0 - #0\n\
             s0 = FloorDivide.I64/64 s0 k1 - #0\n\
             Output.I64 s0 - - #0\n"
        );
        assert_eq!(program.constants, [[3_600_000, 0], [60_000, 0]]);

        let small = column(0, DataType::Decimal64(10, 2));
        let cast =
            Expression::cast(&small, DataType::Decimal64(10, 1), Failure::Null).expect("a cast");
        let program = compile(&[cast]).expect("a program");
        assert_eq!(
            program.to_string(),
            "s0 = ToDecimal.I64 c0 k0 k1 #0\n\
             s0 = Rescale.I128 s0 k2 k1 #3\n\
             s0 = ToInteger.I128/64 s0 k0 - #1\n\
             Output.I64 s0 - - #0\n"
        );
        let text = column(0, DataType::Utf8);
        let cast = Expression::cast(&text, DataType::Int64, Failure::Error);
        assert!(matches!(cast, Err(Error::Cast { .. })));
    }

    #[test]
    fn a_tree_too_wide_is_refused() {
        // Every level needs one more temporary than the one below.
        fn tree(depth: u32, next: &mut u16) -> Expression {
            if depth == 0 {
                *next += 1;
                return column(*next, DataType::Int64);
            }
            let (left, right) = (tree(depth - 1, next), tree(depth - 1, next));
            arithmetic(Arithmetic::Multiply, &left, &right)
        }
        assert!(compile(&[tree(8, &mut 0)]).is_ok());
        assert_eq!(compile(&[tree(13, &mut 0)]), Err(Error::Temporaries));
    }

    #[test]
    fn a_tree_too_deep_is_refused() {
        let mut flag = column(0, DataType::Bool);
        for _ in 0..999 {
            flag = Expression::not(&flag).expect("NOT");
        }
        assert!(compile(std::slice::from_ref(&flag)).is_ok());
        flag = Expression::not(&flag).expect("NOT");
        assert_eq!(compile(&[flag]), Err(Error::Depth { limit: 1_000 }));
    }

    #[test]
    fn what_is_shared_is_gone_through_once() {
        let mut sum = column(0, DataType::Int64);
        for _ in 0..200 {
            sum = arithmetic(Arithmetic::Add, &sum, &sum);
        }
        assert_eq!(compile(&[sum]).expect("a program").instructions().len(), 201);
    }

    #[test]
    fn types_are_checked() {
        let (a, b) = (column(0, DataType::Int32), column(1, DataType::Int64));
        assert!(Expression::arithmetic(Arithmetic::Add, &a, &b).is_err());
        assert!(Expression::compare(Comparison::Equal, &a, &b).is_err());
        assert!(Expression::and(&a, &b).is_err());
        assert!(Expression::not(&a).is_err());
        assert!(Expression::is(&a, Truth::True).is_err());
        assert!(Expression::negate(&column(0, DataType::Utf8)).is_err());
        assert!(Expression::column(0, DataType::Decimal128(5, -1)).is_err());
        assert!(Expression::column(0, DataType::Decimal64(19, 0)).is_err());
        let error = Expression::date_part(DatePart::Hour, &a).expect_err("no date");
        assert_eq!(error.to_string(), "date_part Hour doesn't take Int32 on the GPU");
    }
}
