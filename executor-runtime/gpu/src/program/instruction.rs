//! What the interpreter reads (`kernels/expression/instruction.cuh`).

use std::fmt;

use super::data_type::Class;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// a + b
    Add = 0,
    /// a - b
    Subtract,
    /// a × b
    Multiply,
    /// a ÷ b, integers towards zero
    Divide,
    /// what a ÷ b leaves, with the sign of a
    Remainder,
    /// -a
    Negate,
    /// a ÷ b towards negative infinity; b is positive
    FloorDivide,
    /// what that leaves, never negative
    FloorRemainder,
    /// a [`Part`] of the day a
    DatePart,
    /// whether a stands to b in one of the [`relation`]s
    Compare,
    /// whether a is one of the constants from b on
    In,
    /// a AND b
    And,
    /// a OR b
    Or,
    /// NOT a
    Not,
    /// whether a is in one of the [`state`]s
    Test,
    /// a if c is true, else b
    Select,
    /// a as an integer of so many bits
    ToInteger,
    /// a as a float
    ToFloat32,
    /// a as a double
    ToFloat64,
    /// a × b, at most c
    ToDecimal,
    /// a × b or a ÷ b, at most c
    Rescale,
    /// a to an output
    Output,
}

/// What a day has; Op::DatePart's immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Part {
    /// Of the calendar.
    Year = 0,
    /// 1 to 4.
    Quarter,
    /// 1 to 12.
    Month,
    /// 1 to 31.
    Day,
    /// From 1 on.
    DayOfYear,
    /// Of ISO 8601.
    IsoWeek,
    /// The year that the ISO week belongs to.
    IsoYear,
}

/// Bits of the immediate of casts and of integers' arithmetic.
pub mod flag {
    /// Null where there is no value.
    pub const SAFE: u32 = 1;
    /// Op::Rescale divides.
    pub const DOWN: u32 = 2;
    /// Integers fault instead of wrapping.
    pub const CHECKED: u32 = 4;
}

/// Bits of Op::Compare's immediate.
pub mod relation {
    /// a < b
    pub const LESS: u32 = 1;
    /// a = b
    pub const EQUAL: u32 = 2;
    /// a > b
    pub const GREATER: u32 = 4;
    /// Null is a value, equal to itself.
    pub const NULL_SAFE: u32 = 8;
}

/// Bits of Op::Test's immediate.
pub mod state {
    /// Not null and false.
    pub const FALSE: u32 = 1;
    /// Not null and true; of other types than Bool, not null.
    pub const TRUE: u32 = 2;
    /// Null.
    pub const NULL: u32 = 4;
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A temporary.
    Slot(u16),
    /// A column.
    Column(u16),
    /// A constant.
    Constant(u16),
    /// Zero; also where there is no operand.
    Zero,
    /// Null.
    Null,
}

/// How many columns, or constants, operands can name.
pub const OPERANDS: usize = 1 << 14;

impl Operand {
    fn encode(self) -> u16 {
        match self {
            Operand::Slot(index) => index,
            Operand::Column(index) => 1 << 14 | index,
            Operand::Constant(index) => 2 << 14 | index,
            Operand::Zero => 3 << 14,
            Operand::Null => 3 << 14 | 1,
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Slot(index) => write!(to, "s{index}"),
            Operand::Column(index) => write!(to, "c{index}"),
            Operand::Constant(index) => write!(to, "k{index}"),
            Operand::Zero => to.write_str("-"),
            Operand::Null => to.write_str("null"),
        }
    }
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    /// How its operands are worked on.
    pub class: Class,
    /// Width of an integer result; of Op::In, 1 if the list has a null.
    pub bits: u8,
    /// The slot of the result.
    pub target: u16,
    /// Operands.
    pub operands: [Operand; 3],
    /// By operation: flags, relations, states, a part, a count, an output.
    pub immediate: u32,
}

impl Instruction {
    /// As the kernel reads it.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0] = self.op as u8;
        bytes[1] = self.class as u8;
        bytes[2] = self.bits;
        let [a, b, c] = self.operands.map(Operand::encode);
        for (to, half) in bytes[4..12].chunks_exact_mut(2).zip([self.target, a, b, c]) {
            to.copy_from_slice(&half.to_le_bytes());
        }
        bytes[12..].copy_from_slice(&self.immediate.to_le_bytes());
        bytes
    }
}

/// Such as `s0 = Multiply.I128 c1 s0 - #0`.
impl fmt::Display for Instruction {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instruction { op, class, bits, target, operands: [a, b, c], immediate } = self;
        if *op != Op::Output {
            write!(to, "s{target} = ")?;
        }
        write!(to, "{op:?}.{class:?}")?;
        if *bits != 0 {
            write!(to, "/{bits}")?;
        }
        write!(to, " {a} {b} {c} #{immediate}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../kernels/expression/instruction.cuh");

    /// The enumerators of an enum of the header.
    fn enumerators(declaration: &str) -> Vec<&'static str> {
        let (_, body) = HEADER.split_once(declaration).expect(declaration);
        let (body, _) = body.split_once('}').expect("its end");
        body.trim_start_matches(" {")
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .flat_map(|line| line.split(','))
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect()
    }

    fn constant(name: &str) -> u32 {
        let (_, rest) = HEADER.split_once(&format!("constexpr u32 {name} = ")).expect(name);
        rest.split(';').next().expect("a number").parse().expect("a number")
    }

    #[test]
    fn numbers_are_the_kernels() {
        let ops: Vec<String> = (Op::Add as u8..=Op::Output as u8)
            .map(|number| format!("{:?}", OPS[usize::from(number)]))
            .collect();
        assert_eq!(ops, enumerators("enum class Op : u8"));
        assert!(OPS.iter().enumerate().all(|(number, &op)| op as usize == number));
        let parts = [
            Part::Year,
            Part::Quarter,
            Part::Month,
            Part::Day,
            Part::DayOfYear,
            Part::IsoWeek,
            Part::IsoYear,
        ];
        assert_eq!(
            parts.map(|part| format!("{part:?}")).to_vec(),
            enumerators("enum class Part : u32")
        );
        let classes = [Class::Bool, Class::I64, Class::F32, Class::F64, Class::I128, Class::Text];
        assert_eq!(
            classes.map(|it| format!("{it:?}")).to_vec(),
            enumerators("enum class Type : u8")
        );
        assert_eq!(
            ["SAFE", "DOWN", "CHECKED", "LESS", "EQUAL", "GREATER", "NULL_SAFE"].map(constant),
            [
                flag::SAFE,
                flag::DOWN,
                flag::CHECKED,
                relation::LESS,
                relation::EQUAL,
                relation::GREATER,
                relation::NULL_SAFE
            ]
        );
        assert_eq!(
            ["IS_FALSE", "IS_TRUE", "IS_NULL"].map(constant),
            [state::FALSE, state::TRUE, state::NULL]
        );
    }

    const OPS: [Op; 22] = [
        Op::Add,
        Op::Subtract,
        Op::Multiply,
        Op::Divide,
        Op::Remainder,
        Op::Negate,
        Op::FloorDivide,
        Op::FloorRemainder,
        Op::DatePart,
        Op::Compare,
        Op::In,
        Op::And,
        Op::Or,
        Op::Not,
        Op::Test,
        Op::Select,
        Op::ToInteger,
        Op::ToFloat32,
        Op::ToFloat64,
        Op::ToDecimal,
        Op::Rescale,
        Op::Output,
    ];

    #[test]
    fn an_instruction_is_sixteen_bytes() {
        let instruction = Instruction {
            op: Op::Add,
            class: Class::I128,
            bits: 32,
            target: 3,
            operands: [Operand::Slot(1), Operand::Column(2), Operand::Null],
            immediate: 0x0102_0304,
        };
        assert_eq!(instruction.to_bytes(), [0, 4, 32, 0, 3, 0, 1, 0, 2, 0x40, 1, 0xC0, 4, 3, 2, 1]);
        assert_eq!(instruction.to_string(), "s3 = Add.I128/32 s1 c2 null #16909060");
    }
}
