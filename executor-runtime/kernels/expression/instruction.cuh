// The program of an expression, as the host encodes it (`creel_gpu::program`).
//
// An operand is 16 bits: two of kind, fourteen of index.
#pragma once

#include "column.cuh"
#include "types.cuh"

// What values are while they are worked on: narrower integers, dates, timestamps and decimals of
// 64 bits as I64, decimals of 128 as I128.
enum class Type : u8 { Bool, I64, F32, F64, I128, Text };

enum class Op : u8 {
    // target = a ∘ b. Integers wrap at `bits`, or fault if CHECKED; decimals always fault.
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    // target = -a
    Negate,
    // target = a ∘ b, rounded to negative infinity; b > 0.
    FloorDivide,
    FloorRemainder,
    // target = part `immediate` of the day a
    DatePart,
    // target = whether a stands to b in one of the relations of `immediate`
    Compare,
    // target = whether a is one of the `immediate` constants from b on
    In,
    // Three-valued.
    And,
    Or,
    Not,
    // target = whether a is in one of the states of `immediate`; never null
    Test,
    // target = c is true ? a : b
    Select,
    // target = a as an integer of `bits`; a decimal is divided by b
    ToInteger,
    ToFloat32,
    // A decimal is divided by b, a double.
    ToFloat64,
    // target = a × b, no larger than c
    ToDecimal,
    // target = a × b, or a ÷ b if DOWN, no larger than c
    Rescale,
    // output `immediate` = a
    Output,
};

constexpr u32 SAFE = 1;     // casts: null instead of a fault
constexpr u32 DOWN = 2;     // Rescale
constexpr u32 CHECKED = 4;  // arithmetic of integers

constexpr u32 LESS = 1;
constexpr u32 EQUAL = 2;
constexpr u32 GREATER = 4;
constexpr u32 NULL_SAFE = 8;  // null is a value, equal to itself

constexpr u32 IS_FALSE = 1;
constexpr u32 IS_TRUE = 2;
constexpr u32 IS_NULL = 4;

enum class Part : u32 { Year, Quarter, Month, Day, DayOfYear, IsoWeek, IsoYear };

enum class Operand : u32 { Slot, Column, Constant, Literal };

// Indices of the operand Literal.
constexpr u32 ZERO = 0;
constexpr u32 NULL_VALUE = 1;

struct Instruction {
    Op op;
    Type type;  // of a, and of b where it isn't a constant of another
    u8 bits;    // width of an integer result; In: whether the list has a null
    u8 unused;
    u16 target;
    u16 a;
    u16 b;
    u16 c;
    u32 immediate;
};
static_assert(sizeof(Instruction) == 16, "creel_gpu::program::encode");

// An integer with its sign in `high`, a float's bits in `low`, or a string in the program's text:
// where it starts and how long it is.
struct Constant {
    u64 low;
    u64 high;
};

// Where a result goes: values by layout (Text for strings), and a bitmap of whole words.
struct Output {
    void* values;
    u32* validity;
    Layout layout;
    u8 unused[7];
};
static_assert(sizeof(Output) == 24, "creel_gpu::program::Output");

// Why a row has no result.
enum class Fault : u32 { Overflow = 1, DivideByZero = 2, OutOfRange = 3 };
