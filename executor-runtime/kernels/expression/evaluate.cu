// Runs the program of an expression over every row: a thread interprets it once for its four rows.
//
// Bytes moved: every column read once for each use, every output written once; temporaries stay on
// the chip. Operands are fetched at one place for each type, and what they hold is then told apart
// by operation: it keeps the kernel small.
#include "arithmetic.cuh"
#include "lanes.cuh"

// Where results go, and the rows of this thread in them.
struct Sink {
    const Output* outputs;
    u64* error;
    u32 first;
    u32 rows;
};

template <class T>
constexpr bool IS_TEXT = false;
template <>
constexpr bool IS_TEXT<Text> = true;

template <class T>
__device__ Bits compare(u32 wanted, const Lanes<T>& a, const Lanes<T>& b) {
    Bits result{0, a.valid & b.valid, a.fault | b.fault};
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        if (IS_TEXT<T> && !(result.valid >> k & 1)) continue;
        u32 holds = (relation(a.value[k], b.value[k], wanted) & wanted) != 0;
        result.truth |= holds << k;
    }
    if (wanted & NULL_SAFE) {
        result.truth &= result.valid;
        if (wanted & EQUAL) result.truth |= ~a.valid & ~b.valid;
        if (wanted & (LESS | GREATER)) result.truth |= a.valid ^ b.valid;
        result.valid = EVERY_ROW;
    }
    return result;
}

template <class T>
__device__ Bits is_in(const Frame& frame, const Instruction& code, const Lanes<T>& a) {
    Bits result{0, a.valid, a.fault};
    u32 first = operand_index(code.b);
    for (u32 i = 0; i < code.immediate; i++) {
        T candidate;
        constant(frame, first + i, candidate);
#pragma unroll
        for (u32 k = 0; k < ROWS; k++) {
            if (IS_TEXT<T> && !(a.valid >> k & 1)) continue;
            result.truth |= static_cast<u32>(relation(a.value[k], candidate, EQUAL) == EQUAL) << k;
        }
    }
    // What isn't in the list might be its null.
    if (code.bits) result.valid &= result.truth;
    return result;
}

// out = each(k, out, fault) for the valid rows; `out` may be what it is made of. Where that is false
// there is no value: null if `safe`, else a fault.
template <class T, class Each>
__device__ void map(Frame& frame, Lanes<T>& out, u32 valid, u32 fault, bool safe, Each each) {
    out.valid = valid;
    out.fault = fault;
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        T value{};
        Fault kind = Fault::OutOfRange;
        bool done = !(valid >> k & 1) || each(k, value, kind);
        out.value[k] = value;
        if (done) continue;
        out.valid &= ~(1u << k);
        if (safe) continue;
        out.fault |= 1u << k;
        frame.kind = kind;
    }
}

// The same for a cast to another type, stored at once.
template <class T, class Each>
__device__ void cast(Frame& frame, const Instruction& code, u32 valid, u32 fault, Each each) {
    Lanes<T> out;
    map(frame, out, valid, fault, code.immediate & SAFE,
        [&](u32 k, T& value, Fault&) { return each(k, value); });
    store(frame, code.target, out);
}

__device__ inline void write(void* values, Layout layout, u32 row, i64 value) {
    switch (layout) {
        case Layout::I8: static_cast<i8*>(values)[row] = static_cast<i8>(value); break;
        case Layout::I16: static_cast<i16*>(values)[row] = static_cast<i16>(value); break;
        case Layout::I32: static_cast<i32*>(values)[row] = static_cast<i32>(value); break;
        default: static_cast<i64*>(values)[row] = value;
    }
}
template <class T>
__device__ void write(void* values, Layout, u32 row, T value) {
    static_cast<T*>(values)[row] = value;
}

// A word of a bitmap for each warp and k; rows that there aren't are 0.
__device__ inline void write_bits(u32* words, const Frame& frame, const Sink& sink, u32 bits) {
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        u32 word = __ballot_sync(ALL_LANES, (bits & frame.present) >> k & 1);
        u32 row = sink.first + k * THREADS;
        if (row % WARP == 0 && row < sink.rows) words[row / WARP] = word;
    }
}

__device__ inline void raise(const Frame& frame, const Sink& sink, u32 fault) {
    fault &= frame.present;
    if (!fault) return;
    u64 row = 0;
#pragma unroll
    for (u32 k = ROWS; k-- > 0;) {
        if (fault >> k & 1) row = frame.row[k];
    }
    atomicMin(sink.error, row << 8 | static_cast<u32>(frame.kind));
}

template <class T>
__device__ void output(const Frame& frame, const Instruction& code, const Sink& sink,
                       const Lanes<T>& a) {
    const Output& out = sink.outputs[code.immediate];
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        if (!(frame.present >> k & 1)) continue;
        write(out.values, out.layout, sink.first + k * THREADS,
              a.valid >> k & 1 ? a.value[k] : T{});
    }
    write_bits(out.validity, frame, sink, a.valid);
    raise(frame, sink, a.fault);
}

// What all types but Bool have in common; false if the operation is none of it.
template <class T>
__device__ bool run_common(Frame& frame, const Instruction& code, const Sink& sink,
                           const Lanes<T>& a, const Lanes<T>& b) {
    Bits result;
    switch (code.op) {
        case Op::Compare: result = compare(code.immediate, a, b); break;
        case Op::In: result = is_in(frame, code, a); break;
        case Op::Test:
            result = Bits{code.immediate & IS_NULL ? ~a.valid : a.valid, EVERY_ROW, a.fault};
            break;
        case Op::Output: output(frame, code, sink, a); return true;
        default: return false;
    }
    store_bits(frame, code.target, result);
    return true;
}

template <class T>
__device__ void select(const Bits& condition, Lanes<T>& a, const Lanes<T>& b) {
    u32 first = condition.is_true();
    a.valid = (a.valid & first) | (b.valid & ~first);
    a.fault = (a.fault & first) | (b.fault & ~first) | condition.fault;
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) a.value[k] = first >> k & 1 ? a.value[k] : b.value[k];
}

__device__ inline void run_bits(Frame& frame, const Instruction& code, const Bits& condition,
                                const Sink& sink) {
    Bits a = fetch_bits(frame, code.a), b = fetch_bits(frame, code.b);
    Bits result{0, 0, a.fault | b.fault};
    switch (code.op) {
        case Op::And: {
            u32 is_false = a.is_false() | b.is_false();
            result.truth = a.is_true() & b.is_true();
            result.valid = result.truth | is_false;
            result.fault = a.fault | (b.fault & ~a.is_false());
            break;
        }
        case Op::Or: {
            u32 is_false = a.is_false() & b.is_false();
            result.truth = a.is_true() | b.is_true();
            result.valid = result.truth | is_false;
            result.fault = a.fault | (b.fault & ~a.is_true());
            break;
        }
        case Op::Not:
            result.truth = ~a.truth;
            result.valid = a.valid;
            break;
        case Op::Test:
            if (code.immediate & IS_TRUE) result.truth |= a.is_true();
            if (code.immediate & IS_FALSE) result.truth |= a.is_false();
            if (code.immediate & IS_NULL) result.truth |= ~a.valid;
            result.valid = EVERY_ROW;
            break;
        case Op::Select: {
            u32 first = condition.is_true();
            result.truth = (a.truth & first) | (b.truth & ~first);
            result.valid = (a.valid & first) | (b.valid & ~first);
            result.fault = (a.fault & first) | (b.fault & ~first) | condition.fault;
            break;
        }
        case Op::Compare: {
            u32 wanted = code.immediate, less = ~a.truth & b.truth, greater = a.truth & ~b.truth;
            if (wanted & LESS) result.truth |= less;
            if (wanted & GREATER) result.truth |= greater;
            if (wanted & EQUAL) result.truth |= ~(less | greater);
            result.valid = a.valid & b.valid;
            result.truth &= result.valid;
            if (wanted & NULL_SAFE) {
                if (wanted & EQUAL) result.truth |= ~a.valid & ~b.valid;
                if (wanted & (LESS | GREATER)) result.truth |= a.valid ^ b.valid;
                result.valid = EVERY_ROW;
            }
            break;
        }
        case Op::ToInteger:
            return cast<i64>(frame, code, a.valid, a.fault, [&](u32 k, i64& out) {
                out = a.truth >> k & 1;
                return true;
            });
        default: {
            const Output& out = sink.outputs[code.immediate];
            write_bits(static_cast<u32*>(out.values), frame, sink, a.is_true());
            write_bits(out.validity, frame, sink, a.valid);
            return raise(frame, sink, a.fault);
        }
    }
    store_bits(frame, code.target, result);
}

__device__ inline void run_integers(Frame& frame, const Instruction& code, const Bits& condition,
                                    const Sink& sink) {
    Lanes<i64> a = fetch<i64>(frame, code.a), b = fetch<i64>(frame, code.b);
    if (run_common(frame, code, sink, a, b)) return;
    switch (code.op) {
        case Op::Select: select(condition, a, b); break;
        case Op::ToFloat32:
            return cast<float>(frame, code, a.valid, a.fault, [&](u32 k, float& out) {
                out = static_cast<float>(a.value[k]);
                return true;
            });
        case Op::ToFloat64:
            return cast<double>(frame, code, a.valid, a.fault, [&](u32 k, double& out) {
                out = static_cast<double>(a.value[k]);
                return true;
            });
        case Op::ToDecimal: {
            i128 power = factor<i128>(frame, code.b), limit = factor<i128>(frame, code.c);
            return cast<i128>(frame, code, a.valid, a.fault, [&](u32 k, i128& out) {
                return mul_checked(a.value[k], power, out) && within(out, limit);
            });
        }
        default:
            map(frame, a, a.valid & b.valid, a.fault | b.fault, code.immediate & SAFE,
                [&](u32 k, i64& out, Fault& kind) {
                    return integer_arithmetic(code, a.value[k], b.value[k], out, kind);
                });
    }
    store(frame, code.target, a);
}

__device__ inline void run_decimals(Frame& frame, const Instruction& code, const Bits& condition,
                                    const Sink& sink) {
    Lanes<i128> a = fetch<i128>(frame, code.a), b = fetch<i128>(frame, code.b);
    if (run_common(frame, code, sink, a, b)) return;
    switch (code.op) {
        case Op::Select: select(condition, a, b); break;
        case Op::ToFloat64: {
            double divisor = factor<double>(frame, code.b);
            return cast<double>(frame, code, a.valid, a.fault, [&](u32 k, double& out) {
                out = static_cast<double>(a.value[k]) / divisor;
                return true;
            });
        }
        case Op::ToInteger:
            return cast<i64>(frame, code, a.valid, a.fault, [&](u32 k, i64& out) {
                i128 whole = quotient(a.value[k], b.value[k]);
                out = static_cast<i64>(whole);
                return fits_i64(whole) && narrow(out, code.bits);
            });
        default: {
            i128 limit = factor<i128>(frame, code.c);
            map(frame, a, a.valid & b.valid, a.fault | b.fault, code.immediate & SAFE,
                [&](u32 k, i128& out, Fault& kind) {
                    return decimal_arithmetic(code, a.value[k], b.value[k], limit, out, kind);
                });
        }
    }
    store(frame, code.target, a);
}

template <class T>
__device__ void run_floats(Frame& frame, const Instruction& code, const Bits& condition,
                           const Sink& sink) {
    Lanes<T> a = fetch<T>(frame, code.a), b = fetch<T>(frame, code.b);
    if (run_common(frame, code, sink, a, b)) return;
    switch (code.op) {
        case Op::Select: select(condition, a, b); break;
        case Op::ToInteger:
            return cast<i64>(frame, code, a.valid, a.fault, [&](u32 k, i64& out) {
                return integer_of(a.value[k], code.bits, out);
            });
        case Op::ToFloat32:
            return cast<float>(frame, code, a.valid, a.fault, [&](u32 k, float& out) {
                out = static_cast<float>(a.value[k]);
                return true;
            });
        case Op::ToFloat64:
            return cast<double>(frame, code, a.valid, a.fault, [&](u32 k, double& out) {
                out = a.value[k];
                return true;
            });
        case Op::ToDecimal: {
            double power = factor<double>(frame, code.b);
            i128 limit = factor<i128>(frame, code.c);
            return cast<i128>(frame, code, a.valid, a.fault, [&](u32 k, i128& out) {
                return decimal_of(a.value[k], power, out) && within(out, limit);
            });
        }
        default:
            map(frame, a, a.valid & b.valid, a.fault | b.fault, false, [&](u32 k, T& out, Fault&) {
                out = float_arithmetic(code.op, a.value[k], b.value[k]);
                return true;
            });
    }
    store(frame, code.target, a);
}

__device__ inline void run_texts(Frame& frame, const Instruction& code, const Bits& condition,
                                 const Sink& sink) {
    Lanes<Text> a = fetch<Text>(frame, code.a), b = fetch<Text>(frame, code.b);
    if (run_common(frame, code, sink, a, b)) return;
    select(condition, a, b);
    store(frame, code.target, a);
}

// One block for every `THREADS * ROWS` rows.
//
// `stride` is 2 if a slot holds 16 bytes, else 1; shared memory is 8 × stride × ROWS × THREADS
// bytes for each slot that holds values. `selection`: the source's row for each row of the output,
// or null for the same. `error` takes the least `row << 8 | Fault` of the source's rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    evaluate(const Instruction* program, u32 length, u32 stride, const Constant* constants,
             const u8* text, const Column* columns, const Output* outputs, u32 rows,
             const u32* selection, u64* error) {
    extern __shared__ u64 slots[];
    Frame frame;
    frame.constants = constants;
    frame.text = text;
    frame.columns = columns;
    frame.slots = slots;
    frame.stride = stride;
    frame.present = 0;
    frame.valid = frame.truth = frame.fault = 0;
    frame.kind = Fault::Overflow;
    Sink sink{outputs, error, blockIdx.x * THREADS * ROWS + threadIdx.x, rows};
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        u32 row = sink.first + k * THREADS;
        if (row < rows) {
            frame.present |= 1u << k;
        } else {
            row = rows - 1;
        }
        frame.row[k] = selection ? selection[row] : row;
    }
    for (u32 at = 0; at < length; at++) {
        Instruction code = program[at];
        Bits condition{0, 0, 0};
        if (code.op == Op::Select) condition = fetch_bits(frame, code.c);
        switch (code.type) {
            case Type::Bool: run_bits(frame, code, condition, sink); break;
            case Type::I64: run_integers(frame, code, condition, sink); break;
            case Type::F32: run_floats<float>(frame, code, condition, sink); break;
            case Type::F64: run_floats<double>(frame, code, condition, sink); break;
            case Type::I128: run_decimals(frame, code, condition, sink); break;
            case Type::Text: run_texts(frame, code, condition, sink); break;
        }
    }
}
