// What one instruction does to one row: values in, value out, and the fault if there is none.
#pragma once

#include "calendar.cuh"
#include "instruction.cuh"
#include "int128.cuh"
#include "order.cuh"

// Whether the value is one of `bits` bits; `value` is made one.
__device__ inline bool narrow(i64& value, u32 bits) {
    i64 wide = value;
    u32 shift = 64 - bits;
    value = static_cast<i64>(static_cast<u64>(wide) << shift) >> shift;
    return value == wide;
}

static OUT_OF_LINE i64 date_part(Part part, i64 days) {
    Civil civil = civil_of_days(days);
    switch (part) {
        case Part::Year: return civil.year;
        case Part::Quarter: return (civil.month + 2) / 3;
        case Part::Month: return civil.month;
        case Part::Day: return civil.day;
        case Part::DayOfYear: return day_of_year(days);
        case Part::IsoWeek: return iso_week(days);
        default: return iso_year(days);
    }
}

static OUT_OF_LINE i64 integer_division(Op op, i64 a, i64 b) {
    i64 whole = op == Op::Divide || op == Op::Remainder ? a / b : floor_div(a, b);
    return op == Op::Divide || op == Op::FloorDivide ? whole : a - whole * b;
}

__device__ inline bool integer_arithmetic(const Instruction& code, i64 a, i64 b, i64& out,
                                          Fault& fault) {
    if (code.op == Op::ToInteger) {
        out = a;
        return narrow(out, code.bits);
    }
    bool checked = code.immediate & CHECKED;
    fault = Fault::Overflow;
    switch (code.op) {
        case Op::Add:
            out = static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b));
            if (checked && ((a ^ out) & (b ^ out)) < 0) return false;
            break;
        case Op::Negate:
            b = a;
            a = 0;
            // fall through
        case Op::Subtract:
            out = static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b));
            if (checked && ((a ^ b) & (a ^ out)) < 0) return false;
            break;
        case Op::Multiply: {
            i128 product = static_cast<i128>(a) * b;
            out = static_cast<i64>(product);
            if (checked && !fits_i64(product)) return false;
            break;
        }
        case Op::DatePart: out = date_part(static_cast<Part>(code.immediate), a); return true;
        default: {
            if (b == 0) {
                fault = Fault::DivideByZero;
                return false;
            }
            // The one quotient that has no place, at any width.
            i64 smallest = static_cast<i64>(SIGN) >> (64 - code.bits);
            if (b == -1 && a == smallest) {
                out = 0;
                return code.op == Op::Remainder;
            }
            out = integer_division(code.op, a, b);
            return true;
        }
    }
    return narrow(out, code.bits) || !checked;
}

__device__ inline bool within(i128 value, i128 limit) { return value <= limit && value >= -limit; }

__device__ inline bool decimal_arithmetic(const Instruction& code, i128 a, i128 b, i128 limit,
                                          i128& out, Fault& fault) {
    if (code.op == Op::Rescale) {
        if (code.immediate & DOWN) {
            out = divide_rounded(a, b);
        } else if (!mul_checked(a, b, out)) {
            return false;
        }
        return within(out, limit);
    }
    fault = Fault::Overflow;
    switch (code.op) {
        case Op::Add: return add_checked(a, b, out);
        case Op::Subtract: return sub_checked(a, b, out);
        case Op::Negate: return sub_checked(0, a, out);
        case Op::Multiply: return mul_checked(a, b, out);
        default:
            if (b == 0) {
                fault = Fault::DivideByZero;
                return false;
            }
            if (b == -1 && a == smallest_i128()) return false;
            out = quotient(a, b);
            if (code.op == Op::Remainder) out = a - out * b;
            return true;
    }
}

static OUT_OF_LINE float remainder_of(float a, float b) { return fmodf(a, b); }
static OUT_OF_LINE double remainder_of(double a, double b) { return fmod(a, b); }

template <class T>
__device__ T float_arithmetic(Op op, T a, T b) {
    switch (op) {
        case Op::Add: return a + b;
        case Op::Subtract: return a - b;
        case Op::Multiply: return a * b;
        case Op::Divide: return a / b;
        case Op::Remainder: return remainder_of(a, b);
        default: return -a;
    }
}

__device__ inline u32 relation(i32 order) { return order < 0 ? LESS : order == 0 ? EQUAL : GREATER; }

template <class T>
__device__ u32 relation(T a, T b, u32) {
    return a < b ? LESS : a == b ? EQUAL : GREATER;
}
__device__ inline u32 relation(float a, float b, u32 wanted) {
    return relation(order_key(a), order_key(b), wanted);
}
__device__ inline u32 relation(double a, double b, u32 wanted) {
    return relation(order_key(a), order_key(b), wanted);
}
__device__ inline u32 relation(Text a, Text b, u32 wanted) {
    // Equality looks at lengths first.
    u32 order = wanted & (LESS | GREATER);
    if (order == 0 || order == (LESS | GREATER)) return equal(a, b) ? EQUAL : LESS;
    return relation(compare(a, b));
}

// The double towards zero, as an integer of `bits`.
__device__ inline bool integer_of(double value, u32 bits, i64& out) {
    double whole = trunc(value);
    double limit = static_cast<double>(1ull << (bits - 1));
    if (!(whole >= -limit && whole < limit)) return false;
    out = static_cast<i64>(whole);
    return true;
}

// Rounded half away from zero.
static OUT_OF_LINE bool decimal_of(double value, double factor, i128& out) {
    double whole = round(factor * value);
    constexpr double limit = 170141183460469231731687303715884105728.0;  // 2^127
    if (!(whole >= -limit && whole < limit)) return false;
    out = static_cast<i128>(whole);
    return true;
}
