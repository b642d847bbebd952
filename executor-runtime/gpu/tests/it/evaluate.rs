//! Programs of expressions.

use std::cmp::Ordering;

use creel_gpu::kernels::column::{Column, Layout, Output, bitmap_bytes};
use creel_gpu::primitives::evaluate::{self, ERROR_BYTES, Evaluation, Fault};
use creel_gpu::primitives::{gather, scan};
use creel_gpu::program::{
    Arithmetic, Comparison, DataType, DatePart, Expression, Failure, Scalar, TimeUnit, Truth,
    compile,
};

use crate::gpu::{Gpu, Random, SIZES, on};
use crate::rows::{Rows, Value};

type Cell = Option<Value>;

/// What the device makes of the expressions, or the first row that fails and why.
fn run(
    gpu: &Gpu,
    columns: &[Rows],
    expressions: &[Expression],
    rows: usize,
    selection: Option<&[u32]>,
) -> Result<Vec<Vec<Cell>>, (u32, Fault)> {
    let program = compile(expressions).expect("a program");
    let count = rows as u32;
    let described: Vec<Column> = columns.iter().map(|it| it.put(gpu)).collect();
    let outputs: Vec<Output> = program
        .outputs()
        .iter()
        .map(|&data_type| Output {
            values: gpu.room(evaluate::output_bytes(data_type, count)).address(),
            validity: gpu.room(bitmap_bytes(rows) as u64).address(),
            layout: data_type.layout(),
        })
        .collect();
    let error = gpu.room(ERROR_BYTES);
    let evaluation = Evaluation {
        program: &program,
        code: gpu.put(&program.to_bytes()),
        descriptors: gpu.put(&evaluate::descriptors(&described, &outputs)),
        columns: columns.len() as u32,
        rows: count,
        selection: selection.map(|it| gpu.put(it)),
        error,
    };
    evaluate::start(&gpu.stream, &evaluation).expect("an evaluation");
    if let Some(fault) = evaluate::fault(&gpu.stream, error).expect("no fault of the device") {
        return Err(fault);
    }
    let cells = outputs.iter().zip(program.outputs()).map(|(output, &data_type)| {
        let region = |address, bytes| creel_gpu::device::Region::new(address, bytes);
        let values = region(output.values, evaluate::output_bytes(data_type, count));
        let valid = gpu.get_bits(region(output.validity, bitmap_bytes(rows) as u64), rows);
        let values: Vec<Value> = match output.layout {
            Layout::Bool => gpu.get_bits(values, rows).into_iter().map(Value::Bool).collect(),
            Layout::I8 => integers(gpu.get::<i8>(values, rows)),
            Layout::I16 => integers(gpu.get::<i16>(values, rows)),
            Layout::I32 => integers(gpu.get::<i32>(values, rows)),
            Layout::I64 => integers(gpu.get::<i64>(values, rows)),
            Layout::F32 => gpu.get::<f32>(values, rows).into_iter().map(Value::F32).collect(),
            Layout::F64 => gpu.get::<f64>(values, rows).into_iter().map(Value::F64).collect(),
            Layout::I128 => gpu.get::<i128>(values, rows).into_iter().map(Value::I128).collect(),
            _ => texts(gpu, values, count),
        };
        values.into_iter().zip(valid).map(|(value, valid)| valid.then_some(value)).collect()
    });
    Ok(cells.collect())
}

fn integers<T: Into<i64>>(values: Vec<T>) -> Vec<Value> {
    values.into_iter().map(|it| Value::Integer(it.into())).collect()
}

fn texts(gpu: &Gpu, texts: creel_gpu::device::Region, count: u32) -> Vec<Value> {
    let rows = u64::from(count);
    let lengths = gpu.room(rows * 4);
    gather::text_lengths(&gpu.stream, texts, count, lengths).expect("lengths");
    let workspace = gpu.room(scan::workspace_bytes(rows));
    let total = scan::sum(&gpu.stream, lengths, rows, workspace).expect("a sum");
    let offsets = gpu.room((rows + 1) * 4);
    scan::offsets(&gpu.stream, lengths, rows, workspace, offsets).expect("offsets");
    let bytes = gpu.room(total);
    gather::text_bytes(&gpu.stream, texts, count, offsets, bytes).expect("bytes");
    let bytes = gpu.get::<u8>(bytes, total as usize);
    let offsets = gpu.get::<i32>(offsets, count as usize + 1);
    offsets
        .windows(2)
        .map(|pair| {
            let text = bytes[pair[0] as usize..pair[1] as usize].to_vec();
            Value::Text(String::from_utf8(text).expect("UTF-8"))
        })
        .collect()
}

/// The rows as the device gives them, a NaN and a signed zero told apart.
fn same(found: &[Cell], expected: &[Cell]) -> bool {
    let exact = |cell: &Cell| match cell {
        Some(Value::F32(value)) => format!("f{:x}", value.to_bits()),
        Some(Value::F64(value)) => format!("d{:x}", value.to_bits()),
        other => format!("{other:?}"),
    };
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| exact(a) == exact(b))
}

/// One expression of two columns, against plain Rust; a row that fails is taken out.
fn check(
    gpu: &Gpu,
    what: &str,
    columns: &[Rows],
    expression: &Expression,
    of: impl Fn(&[Cell]) -> Result<Cell, Fault>,
) {
    let rows = columns[0].values.len();
    let cells = |row: usize| -> Vec<Cell> {
        columns.iter().map(|column| column.values[row].clone()).collect()
    };
    let expected: Vec<Result<Cell, Fault>> = (0..rows).map(|row| of(&cells(row))).collect();
    let expressions = std::slice::from_ref(expression);
    let first = expected
        .iter()
        .enumerate()
        .find_map(|(row, it)| it.clone().err().map(|it| (row as u32, it)));
    if let Some(first) = first {
        let found = run(gpu, columns, expressions, rows, None);
        assert_eq!(found.expect_err("a fault"), first, "{what}");
    }
    let good: Vec<u32> = (0..rows as u32).filter(|&row| expected[row as usize].is_ok()).collect();
    let found = run(gpu, columns, expressions, good.len(), Some(&good)).expect("no fault");
    let expected: Vec<Cell> = expected.into_iter().filter_map(Result::ok).collect();
    for (at, (found, expected)) in found[0].iter().zip(&expected).enumerate() {
        let row = good[at] as usize;
        assert!(
            same(std::slice::from_ref(found), std::slice::from_ref(expected)),
            "{what} of {:?}: {found:?} is not {expected:?}",
            cells(row)
        );
    }
}

fn column(number: u16, data_type: DataType) -> Expression {
    Expression::column(number, data_type).expect("a column")
}

/// Values that are interesting for the type, and others; one in eight is null.
fn sample(random: &mut Random, data_type: DataType, rows: usize) -> Rows {
    let layout = match data_type {
        DataType::Utf8 => Layout::String,
        other => other.layout(),
    };
    let values = (0..rows).map(|_| (!random.one_in(8)).then(|| any(random, data_type))).collect();
    Rows::new(layout, values)
}

fn any(random: &mut Random, data_type: DataType) -> Value {
    let small = random.below(21) as i64 - 10;
    let pick = random.below(4);
    let integer = |bits: u32, random: &mut Random| {
        let limit = i64::MAX >> (64 - bits);
        Value::Integer(match pick {
            0 => small,
            1 => limit - random.below(3) as i64,
            2 => -limit - 1 + random.below(3) as i64,
            _ => random.next() as i64 >> (64 - bits),
        })
    };
    match data_type {
        DataType::Bool => Value::Bool(random.one_in(2)),
        DataType::Int8 => integer(8, random),
        DataType::Int16 => integer(16, random),
        DataType::Int32 => integer(32, random),
        DataType::Date32 => Value::Integer(random.below(400_000) as i64 - 200_000),
        DataType::Int64 => integer(64, random),
        DataType::Timestamp(_) => Value::Integer(random.next() as i64 >> (random.below(4) * 8)),
        DataType::Decimal64(precision, _) => {
            let limit = 10i64.pow(precision.into());
            Value::Integer(random.next() as i64 % limit)
        }
        DataType::Decimal128(precision, _) => {
            let limit = 10i128.pow(precision.into());
            let wide = i128::from(random.next() as i64) << 63 | i128::from(random.next() >> 1);
            Value::I128(if pick == 0 { small.into() } else { wide % limit })
        }
        DataType::Float32 => Value::F32(match random.below(10) {
            0 => 0.0,
            1 => -0.0,
            2 => f32::NAN,
            3 => f32::INFINITY,
            4 => f32::NEG_INFINITY,
            5 => f32::from_bits(random.next() as u32 & 0x807F_FFFF),
            _ => (random.next() as i32 >> random.below(32)) as f32 / 16.0,
        }),
        DataType::Float64 => Value::F64(match random.below(10) {
            0 => 0.0,
            1 => -0.0,
            2 => f64::NAN,
            3 => f64::INFINITY,
            4 => f64::NEG_INFINITY,
            5 => f64::from_bits(random.next() & 0x800F_FFFF_FFFF_FFFF),
            _ => (random.next() as i64 >> random.below(64)) as f64 / 16.0,
        }),
        DataType::Utf8 => {
            let length = random.below(12) as usize;
            Value::Text(
                (0..length).map(|_| ['a', 'b', 'é', 'z'][random.below(4) as usize]).collect(),
            )
        }
    }
}

fn integer(cell: &Cell) -> Option<i64> {
    match cell {
        Some(Value::Integer(value)) => Some(*value),
        None => None,
        other => panic!("{other:?} is no integer"),
    }
}

fn wide(cell: &Cell) -> Option<i128> {
    match cell {
        Some(Value::I128(value)) => Some(*value),
        Some(Value::Integer(value)) => Some((*value).into()),
        None => None,
        other => panic!("{other:?} is no decimal"),
    }
}

fn double(cell: &Cell) -> Option<f64> {
    match cell {
        Some(Value::F64(value)) => Some(*value),
        None => None,
        other => panic!("{other:?} is no double"),
    }
}

fn single(cell: &Cell) -> Option<f32> {
    match cell {
        Some(Value::F32(value)) => Some(*value),
        None => None,
        other => panic!("{other:?} is no float"),
    }
}

fn boolean(cell: &Cell) -> Option<bool> {
    match cell {
        Some(Value::Bool(value)) => Some(*value),
        None => None,
        other => panic!("{other:?} is no Bool"),
    }
}

const OPERATORS: [Arithmetic; 5] = [
    Arithmetic::Add,
    Arithmetic::Subtract,
    Arithmetic::Multiply,
    Arithmetic::Divide,
    Arithmetic::Remainder,
];

#[test]
fn arithmetic_of_integers() {
    on("t4", |gpu| {
        let mut random = Random::new(31);
        for (data_type, bits) in [
            (DataType::Int8, 8),
            (DataType::Int16, 16),
            (DataType::Int32, 32),
            (DataType::Int64, 64),
        ] {
            let columns =
                [sample(&mut random, data_type, 1025), sample(&mut random, data_type, 1025)];
            let (a, b) = (column(0, data_type), column(1, data_type));
            let narrow = |wide: i128| Value::Integer((wide as i64) << (64 - bits) >> (64 - bits));
            for operator in OPERATORS {
                let expression = Expression::arithmetic(operator, &a, &b).expect("arithmetic");
                check(gpu, &format!("{operator} of {data_type}"), &columns, &expression, |row| {
                    let (Some(a), Some(b)) = (wide(&row[0]), wide(&row[1])) else {
                        return Ok(None);
                    };
                    let result = match operator {
                        Arithmetic::Add => a + b,
                        Arithmetic::Subtract => a - b,
                        Arithmetic::Multiply => a * b,
                        _ if b == 0 => return Err(Fault::DivideByZero),
                        Arithmetic::Divide if a / b > (i128::from(i64::MAX) >> (64 - bits)) => {
                            return Err(Fault::Overflow);
                        }
                        Arithmetic::Divide => a / b,
                        Arithmetic::Remainder => a % b,
                    };
                    Ok(Some(narrow(result)))
                });
            }
            let negated = Expression::negate(&a).expect("-");
            check(gpu, &format!("- of {data_type}"), &columns, &negated, |row| {
                Ok(wide(&row[0]).map(|it| narrow(-it)))
            });
        }
    });
}

#[test]
fn arithmetic_of_floats() {
    on("t4", |gpu| {
        let mut random = Random::new(32);
        macro_rules! floats {
            ($data_type:expr, $of:ident, $value:path) => {
                let columns =
                    [sample(&mut random, $data_type, 1025), sample(&mut random, $data_type, 1025)];
                let (a, b) = (column(0, $data_type), column(1, $data_type));
                for operator in OPERATORS {
                    let expression = Expression::arithmetic(operator, &a, &b).expect("arithmetic");
                    // The sign of a NaN that arithmetic makes is nobody's.
                    let expression = without_nan(&expression);
                    check(gpu, &format!("{operator}"), &columns, &expression, |row| {
                        let (Some(a), Some(b)) = ($of(&row[0]), $of(&row[1])) else {
                            return Ok(None);
                        };
                        let result = match operator {
                            Arithmetic::Add => a + b,
                            Arithmetic::Subtract => a - b,
                            Arithmetic::Multiply => a * b,
                            Arithmetic::Divide => a / b,
                            Arithmetic::Remainder => a % b,
                        };
                        Ok((!result.is_nan()).then_some($value(result)))
                    });
                }
                let negated = without_nan(&Expression::negate(&a).expect("-"));
                check(gpu, "-", &columns, &negated, |row| {
                    Ok($of(&row[0]).filter(|it| !it.is_nan()).map(|it| $value(-it)))
                });
            };
        }
        floats!(DataType::Float32, single, Value::F32);
        floats!(DataType::Float64, double, Value::F64);
    });
}

/// Null for NaN: it is above infinity, or with the other sign below.
fn without_nan(expression: &Expression) -> Expression {
    let limit = |value: f64| {
        Expression::literal(&match expression.data_type() {
            DataType::Float32 => Scalar::Float32(value as f32),
            _ => Scalar::Float64(value),
        })
        .expect("a literal")
    };
    let compare = |comparison, value| {
        Expression::compare(comparison, expression, &limit(value)).expect("a comparison")
    };
    let number = Expression::and(
        &compare(Comparison::LessOrEqual, f64::INFINITY),
        &compare(Comparison::GreaterOrEqual, f64::NEG_INFINITY),
    );
    let number = number.expect("AND");
    Expression::case(&[(number, expression.clone())], None).expect("CASE")
}

#[test]
fn arithmetic_of_decimals() {
    on("t4", |gpu| {
        let mut random = Random::new(33);
        let pairs = [
            (DataType::Decimal128(15, 2), DataType::Decimal128(15, 2)),
            (DataType::Decimal128(12, 2), DataType::Decimal128(20, 5)),
            (DataType::Decimal128(38, 10), DataType::Decimal128(38, 4)),
            (DataType::Decimal128(38, 0), DataType::Decimal128(20, 0)),
            (DataType::Decimal64(9, 2), DataType::Decimal64(9, 2)),
            (DataType::Decimal64(18, 3), DataType::Decimal64(16, 1)),
        ];
        for (left, right) in pairs {
            let columns = [sample(&mut random, left, 1025), sample(&mut random, right, 1025)];
            let (a, b) = (column(0, left), column(1, right));
            for operator in OPERATORS {
                let Ok(expression) = Expression::arithmetic(operator, &a, &b) else { continue };
                let narrow = matches!(left, DataType::Decimal64(..));
                let scales = (left.decimal().expect("a decimal").1, right.decimal().expect("it").1);
                let what = format!("{left} {operator} {right}");
                check(gpu, &what, &columns, &expression, |row| {
                    let (Some(a), Some(b)) = (wide(&row[0]), wide(&row[1])) else {
                        return Ok(None);
                    };
                    decimal(operator, a, b, scales, narrow).map(|it| {
                        let value =
                            if narrow { Value::Integer(it as i64) } else { Value::I128(it) };
                        Some(value)
                    })
                });
            }
        }
    });
}

/// Arrow's, with its checks: all in 128 bits, or in 64 of them.
fn decimal(
    operator: Arithmetic,
    a: i128,
    b: i128,
    (s1, s2): (i8, i8),
    narrow: bool,
) -> Result<i128, Fault> {
    let fits = |value: Option<i128>| {
        let value = value.filter(|&it| !narrow || i64::try_from(it).is_ok());
        value.ok_or(Fault::Overflow)
    };
    let scaled = |value: i128, power: i8| fits(value.checked_mul(10i128.pow(power.max(0) as u32)));
    let scale = s1.max(s2);
    match operator {
        Arithmetic::Add => fits(scaled(a, scale - s1)?.checked_add(scaled(b, scale - s2)?)),
        Arithmetic::Subtract => fits(scaled(a, scale - s1)?.checked_sub(scaled(b, scale - s2)?)),
        Arithmetic::Multiply => fits(a.checked_mul(b)),
        Arithmetic::Divide => {
            let most = if narrow { 18 } else { 38 };
            let power = (s1 + 4).min(most) - s1 + s2;
            let (a, b) = (scaled(a, power)?, scaled(b, -power)?);
            if b == 0 { Err(Fault::DivideByZero) } else { fits(a.checked_div(b)) }
        }
        Arithmetic::Remainder => {
            let (a, b) = (scaled(a, scale - s1)?, scaled(b, scale - s2)?);
            if b == 0 { Err(Fault::DivideByZero) } else { fits(a.checked_rem(b)) }
        }
    }
}

const COMPARISONS: [Comparison; 8] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessOrEqual,
    Comparison::Greater,
    Comparison::GreaterOrEqual,
    Comparison::Distinct,
    Comparison::NotDistinct,
];

fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::I128(a), Value::I128(b)) => a.cmp(b),
        (Value::F32(a), Value::F32(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
        (Value::F64(a), Value::F64(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        _ => panic!("{a:?} and {b:?} are of two types"),
    }
}

fn holds(comparison: Comparison, a: &Cell, b: &Cell) -> Option<bool> {
    let order = a.as_ref().zip(b.as_ref()).map(|(a, b)| order(a, b));
    match comparison {
        Comparison::Equal => order.map(Ordering::is_eq),
        Comparison::NotEqual => order.map(Ordering::is_ne),
        Comparison::Less => order.map(Ordering::is_lt),
        Comparison::LessOrEqual => order.map(Ordering::is_le),
        Comparison::Greater => order.map(Ordering::is_gt),
        Comparison::GreaterOrEqual => order.map(Ordering::is_ge),
        Comparison::Distinct => Some(order.map_or(a.is_some() != b.is_some(), Ordering::is_ne)),
        Comparison::NotDistinct => Some(order.map_or(a.is_some() == b.is_some(), Ordering::is_eq)),
    }
}

const TYPES: [DataType; 12] = [
    DataType::Bool,
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Float32,
    DataType::Float64,
    DataType::Date32,
    DataType::Timestamp(TimeUnit::Microsecond),
    DataType::Decimal64(5, 2),
    DataType::Decimal128(38, 2),
    DataType::Utf8,
];

#[test]
fn comparisons_of_every_type() {
    on("t4", |gpu| {
        let mut random = Random::new(34);
        for data_type in TYPES {
            let mut columns =
                [sample(&mut random, data_type, 1025), sample(&mut random, data_type, 1025)];
            for row in 0..1025 {
                // Equal ones too.
                if random.one_in(4) {
                    columns[1].values[row] = columns[0].values[row].clone();
                }
            }
            let (a, b) = (column(0, data_type), column(1, data_type));
            for comparison in COMPARISONS {
                let expression = Expression::compare(comparison, &a, &b).expect("a comparison");
                let what = format!("{comparison:?} of {data_type}");
                check(gpu, &what, &columns, &expression, |row| {
                    Ok(holds(comparison, &row[0], &row[1]).map(Value::Bool))
                });
            }
        }
    });
}

#[test]
fn logic_has_three_values() {
    on("t4", |gpu| {
        let mut random = Random::new(35);
        let columns =
            [sample(&mut random, DataType::Bool, 1025), sample(&mut random, DataType::Bool, 1025)];
        let (a, b) = (column(0, DataType::Bool), column(1, DataType::Bool));
        let and = Expression::and(&a, &b).expect("AND");
        check(gpu, "AND", &columns, &and, |row| {
            Ok(match (boolean(&row[0]), boolean(&row[1])) {
                (Some(false), _) | (_, Some(false)) => Some(Value::Bool(false)),
                (Some(true), Some(true)) => Some(Value::Bool(true)),
                _ => None,
            })
        });
        let or = Expression::or(&a, &b).expect("OR");
        check(gpu, "OR", &columns, &or, |row| {
            Ok(match (boolean(&row[0]), boolean(&row[1])) {
                (Some(true), _) | (_, Some(true)) => Some(Value::Bool(true)),
                (Some(false), Some(false)) => Some(Value::Bool(false)),
                _ => None,
            })
        });
        let not = Expression::not(&or).expect("NOT");
        check(gpu, "NOT OR", &columns, &not, |row| {
            Ok(match (boolean(&row[0]), boolean(&row[1])) {
                (Some(true), _) | (_, Some(true)) => Some(Value::Bool(false)),
                (Some(false), Some(false)) => Some(Value::Bool(true)),
                _ => None,
            })
        });
        let truths = [
            (Truth::True, [false, true, false]),
            (Truth::False, [true, false, false]),
            (Truth::Unknown, [false, false, true]),
            (Truth::NotTrue, [true, false, true]),
            (Truth::NotFalse, [false, true, true]),
            (Truth::NotUnknown, [true, true, false]),
        ];
        for (truth, [of_false, of_true, of_null]) in truths {
            let is = Expression::is(&a, truth).expect("IS");
            check(gpu, &format!("IS {truth:?}"), &columns, &is, |row| {
                let holds =
                    boolean(&row[0]).map_or(of_null, |it| if it { of_true } else { of_false });
                Ok(Some(Value::Bool(holds)))
            });
        }
    });
}

#[test]
fn nulls_choices_and_lists_of_every_type() {
    on("t4", |gpu| {
        let mut random = Random::new(36);
        for data_type in TYPES {
            let columns = [
                sample(&mut random, data_type, 1025),
                sample(&mut random, data_type, 1025),
                sample(&mut random, DataType::Bool, 1025),
            ];
            let (a, b) = (column(0, data_type), column(1, data_type));
            let flag = column(2, DataType::Bool);
            let what = |name: &str| format!("{name} of {data_type}");
            check(gpu, &what("IS NULL"), &columns, &Expression::is_null(&a), |row| {
                Ok(Some(Value::Bool(row[0].is_none())))
            });
            check(gpu, &what("IS NOT NULL"), &columns, &Expression::is_not_null(&a), |row| {
                Ok(Some(Value::Bool(row[0].is_some())))
            });
            let case = Expression::case(&[(flag.clone(), a.clone())], Some(&b)).expect("CASE");
            check(gpu, &what("CASE"), &columns, &case, |row| {
                let first = boolean(&row[2]) == Some(true);
                Ok(row[usize::from(!first)].clone())
            });
            let case = Expression::case(&[(flag.clone(), a.clone())], None).expect("CASE");
            check(gpu, &what("CASE without ELSE"), &columns, &case, |row| {
                Ok(row[0].clone().filter(|_| boolean(&row[2]) == Some(true)))
            });
            let either = Expression::coalesce(&[a.clone(), b.clone()]).expect("COALESCE");
            check(gpu, &what("COALESCE"), &columns, &either, |row| {
                Ok(row[0].clone().or_else(|| row[1].clone()))
            });
            let unless = Expression::null_if(&a, &b).expect("NULLIF");
            check(gpu, &what("NULLIF"), &columns, &unless, |row| {
                let equal = holds(Comparison::Equal, &row[0], &row[1]) == Some(true);
                Ok(row[0].clone().filter(|_| !equal))
            });
            if data_type == DataType::Bool {
                continue;
            }
            let listed: Vec<Value> = columns[0].values.iter().flatten().take(5).cloned().collect();
            let scalars: Vec<Scalar> = listed.iter().map(|it| scalar(it, data_type)).collect();
            for with_null in [false, true] {
                let null = with_null.then_some(Scalar::Null(data_type));
                let list: Vec<Scalar> = scalars.iter().cloned().chain(null).collect();
                let within = Expression::in_list(&a, &list).expect("IN");
                check(gpu, &what("IN"), &columns, &within, |row| {
                    let found = row[0]
                        .as_ref()
                        .map(|value| listed.iter().any(|it| order(it, value).is_eq()));
                    Ok(found.filter(|&it| it || !with_null).map(Value::Bool))
                });
            }
            // A literal in place of a column, and null.
            let value = Expression::literal(&scalars[0]).expect("a literal");
            let null = Expression::literal(&Scalar::Null(data_type)).expect("a literal");
            let case = Expression::case(&[(flag.clone(), value)], Some(&null)).expect("CASE");
            check(gpu, &what("CASE of literals"), &columns, &case, |row| {
                Ok((boolean(&row[2]) == Some(true)).then(|| listed[0].clone()))
            });
        }
    });
}

fn scalar(value: &Value, data_type: DataType) -> Scalar {
    match value {
        Value::Bool(value) => Scalar::Bool(*value),
        Value::Integer(value) => Scalar::Integer(*value, data_type),
        Value::F32(value) => Scalar::Float32(*value),
        Value::F64(value) => Scalar::Float64(*value),
        Value::I128(value) => {
            let (precision, scale) = data_type.decimal().expect("a decimal");
            Scalar::Decimal128(*value, precision, scale)
        }
        Value::Text(value) => Scalar::Utf8(value.clone()),
    }
}

#[test]
fn strings_of_a_dictionary_are_strings() {
    on("t4", |gpu| {
        let mut random = Random::new(37);
        let layouts =
            [Layout::Dictionary8, Layout::Dictionary16, Layout::Dictionary32, Layout::Dictionary64];
        for layout in layouts {
            let few = |random: &mut Random| {
                let text = ["", "AIR", "SHIP", "TRUCK"][random.below(4) as usize];
                (!random.one_in(5)).then(|| Value::Text(text.to_owned()))
            };
            let by_key = Rows::new(layout, (0..1025).map(|_| few(&mut random)).collect());
            let plain = Rows::new(Layout::String, (0..1025).map(|_| few(&mut random)).collect());
            let (a, b) = (column(0, DataType::Utf8), column(1, DataType::Utf8));
            let columns = [by_key, plain];
            for comparison in COMPARISONS {
                let expression = Expression::compare(comparison, &a, &b).expect("a comparison");
                check(gpu, &format!("{comparison:?}"), &columns, &expression, |row| {
                    Ok(holds(comparison, &row[0], &row[1]).map(Value::Bool))
                });
            }
            check(gpu, "itself", &columns, &a, |row| Ok(row[0].clone()));
            check(gpu, "IS NULL", &columns, &Expression::is_null(&a), |row| {
                Ok(Some(Value::Bool(row[0].is_none())))
            });
        }
    });
}

/// A cast of a column, both ways of failing.
fn check_cast(
    gpu: &Gpu,
    rows: &Rows,
    from: DataType,
    to: DataType,
    of: impl Fn(&Value) -> Result<Value, Fault>,
) {
    let columns = std::slice::from_ref(rows);
    for failure in [Failure::Error, Failure::Null] {
        let cast = Expression::cast(&column(0, from), to, failure).expect("a cast");
        assert_eq!(cast.data_type(), to);
        check(gpu, &format!("{from} as {to}, {failure:?}"), columns, &cast, |row| {
            match (row[0].as_ref().map(&of), failure) {
                (None, _) | (Some(Err(_)), Failure::Null) => Ok(None),
                (Some(result), _) => result.map(Some),
            }
        });
    }
}

#[test]
fn casts_of_numbers() {
    on("t4", |gpu| {
        let mut random = Random::new(38);
        let integers = [
            (DataType::Int8, 8),
            (DataType::Int16, 16),
            (DataType::Int32, 32),
            (DataType::Int64, 64),
        ];
        let numeric = |value: &Value| match value {
            Value::Bool(value) => f64::from(u8::from(*value)),
            Value::Integer(value) => *value as f64,
            Value::F32(value) => f64::from(*value),
            Value::F64(value) => *value,
            other => panic!("{other:?}"),
        };
        for from in [
            DataType::Bool,
            DataType::Int8,
            DataType::Int32,
            DataType::Int64,
            DataType::Float32,
            DataType::Float64,
        ] {
            let rows = sample(&mut random, from, 1025);
            for (to, bits) in integers {
                if from == to {
                    continue;
                }
                check_cast(gpu, &rows, from, to, |value| {
                    let whole = match value {
                        Value::Integer(value) => i128::from(*value),
                        other if numeric(other).is_nan() => return Err(Fault::OutOfRange),
                        other => numeric(other) as i128,
                    };
                    let limit = 1i128 << (bits - 1);
                    let fits = (-limit..limit).contains(&whole);
                    if fits { Ok(Value::Integer(whole as i64)) } else { Err(Fault::OutOfRange) }
                });
            }
            if from != DataType::Float64 {
                check_cast(gpu, &rows, from, DataType::Float64, |it| Ok(Value::F64(numeric(it))));
            }
            if from != DataType::Float32 {
                check_cast(gpu, &rows, from, DataType::Float32, |it| {
                    Ok(Value::F32(match it {
                        Value::Integer(value) => *value as f32,
                        other => numeric(other) as f32,
                    }))
                });
            }
            if from != DataType::Bool {
                check_cast(gpu, &rows, from, DataType::Bool, |it| {
                    Ok(Value::Bool(match it {
                        Value::Integer(value) => *value != 0,
                        other => numeric(other) != 0.0,
                    }))
                });
            }
        }
    });
}

/// Of a decimal type: a value that it has, in its size.
fn decimal_value(value: Option<i128>, to: DataType, is_limited: bool) -> Result<Value, Fault> {
    let (precision, _) = to.decimal().expect("a decimal");
    let limit = 10i128.pow(precision.into());
    let value = value.filter(|it| !is_limited || (-limit < *it && *it < limit));
    let value = value.ok_or(Fault::OutOfRange)?;
    Ok(match to {
        DataType::Decimal64(..) => Value::Integer(value as i64),
        _ => Value::I128(value),
    })
}

#[test]
fn casts_of_decimals() {
    on("t4", |gpu| {
        let mut random = Random::new(39);
        let decimals = [
            DataType::Decimal128(38, 10),
            DataType::Decimal128(20, 3),
            DataType::Decimal128(9, 0),
            DataType::Decimal128(5, 5),
            DataType::Decimal64(18, 6),
            DataType::Decimal64(7, 1),
        ];
        for to in decimals {
            let (_, scale) = to.decimal().expect("a decimal");
            let power = 10i128.pow(scale as u32);
            for from in [DataType::Int8, DataType::Int32, DataType::Int64] {
                let rows = sample(&mut random, from, 1025);
                check_cast(gpu, &rows, from, to, |it| {
                    let Value::Integer(value) = it else { panic!("{it:?}") };
                    decimal_value(i128::from(*value).checked_mul(power), to, true)
                });
            }
            for from in [DataType::Float32, DataType::Float64] {
                let rows = sample(&mut random, from, 1025);
                check_cast(gpu, &rows, from, to, |it| {
                    let value = match it {
                        Value::F32(value) => f64::from(*value),
                        Value::F64(value) => *value,
                        other => panic!("{other:?}"),
                    };
                    let whole = (10f64.powi(scale.into()) * value).round();
                    let whole = (whole.abs() < 2f64.powi(127)).then_some(whole as i128);
                    decimal_value(whole, to, true)
                });
            }
            for from in decimals.into_iter().filter(|&from| from != to) {
                let rows = sample(&mut random, from, 1025);
                check_cast(gpu, &rows, from, to, |it| {
                    let value = wide(&Some(it.clone())).expect("a value");
                    let ((p1, s1), (p2, s2)) =
                        (from.decimal().expect("it"), to.decimal().expect("it"));
                    let (p1, p2) = (p1 as i8, p2 as i8);
                    if s1 <= s2 {
                        let scaled = value.checked_mul(10i128.pow((s2 - s1) as u32));
                        return decimal_value(scaled, to, p1 + s2 - s1 > p2);
                    }
                    let power = 10i128.pow((s1 - s2) as u32);
                    let (whole, rest) = (value / power, value % power);
                    let rounded =
                        if rest.abs() >= power / 2 { whole + value.signum() } else { whole };
                    decimal_value(Some(rounded), to, p1 - (s1 - s2) >= p2)
                });
            }
            let rows = sample(&mut random, to, 1025);
            let unscaled = |it: &Value| wide(&Some(it.clone())).expect("a value");
            for (integer, bits) in
                [(DataType::Int8, 8), (DataType::Int32, 32), (DataType::Int64, 64)]
            {
                check_cast(gpu, &rows, to, integer, |it| {
                    let whole = unscaled(it) / power;
                    let limit = 1i128 << (bits - 1);
                    let fits = (-limit..limit).contains(&whole);
                    if fits { Ok(Value::Integer(whole as i64)) } else { Err(Fault::OutOfRange) }
                });
            }
            check_cast(gpu, &rows, to, DataType::Float64, |it| {
                Ok(Value::F64(unscaled(it) as f64 / 10f64.powi(scale.into())))
            });
            check_cast(gpu, &rows, to, DataType::Float32, |it| {
                Ok(Value::F32((unscaled(it) as f64 / 10f64.powi(scale.into())) as f32))
            });
        }
    });
}

const UNITS: [TimeUnit; 4] =
    [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

#[test]
fn casts_of_dates_and_timestamps() {
    on("t4", |gpu| {
        let mut random = Random::new(40);
        let dates = sample(&mut random, DataType::Date32, 1025);
        for unit in UNITS {
            let (time, per_day) = (DataType::Timestamp(unit), unit.per_day());
            check_cast(gpu, &dates, DataType::Date32, time, |it| {
                let days = integer(&Some(it.clone())).expect("a date");
                days.checked_mul(per_day).map(Value::Integer).ok_or(Fault::Overflow)
            });
            let times = sample(&mut random, time, 1025);
            check_cast(gpu, &times, time, DataType::Date32, |it| {
                let days = integer(&Some(it.clone())).expect("a time").div_euclid(per_day);
                i32::try_from(days)
                    .map(|it| Value::Integer(it.into()))
                    .map_err(|_| Fault::OutOfRange)
            });
            check_cast(gpu, &times, time, DataType::Int64, |it| Ok(it.clone()));
            for other in UNITS.into_iter().filter(|&other| other != unit) {
                check_cast(gpu, &times, time, DataType::Timestamp(other), |it| {
                    let value = integer(&Some(it.clone())).expect("a time");
                    let (old, new) = (unit.per_second(), other.per_second());
                    let result = if old > new {
                        Some(value / (old / new))
                    } else {
                        value.checked_mul(new / old)
                    };
                    result.map(Value::Integer).ok_or(Fault::Overflow)
                });
            }
        }
    });
}

/// Year, month and day, counted one after the other.
fn civil(days: i64) -> (i64, i64, i64) {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    // 400 years are as long everywhere.
    let (cycles, mut left) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year + cycles * 400, month, left + 1)
}

fn days_before(year: i64) -> i64 {
    let mut days = 0;
    let (cycles, within) = ((year - 1970).div_euclid(400), (year - 1970).rem_euclid(400));
    for year in 1970..1970 + within {
        days += if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 };
    }
    days + cycles * 146_097
}

fn part_of(part: DatePart, value: i64, unit: Option<TimeUnit>) -> i64 {
    let per_second = unit.map_or(1, TimeUnit::per_second);
    let (days, within) = match unit {
        None => (value, 0),
        Some(unit) => (value.div_euclid(unit.per_day()), value.rem_euclid(unit.per_day())),
    };
    let (year, month, day) = civil(days);
    let of_minute = within % (60 * per_second);
    let thursday = days - (days + 3).rem_euclid(7) + 3;
    let iso_year = civil(thursday).0;
    match part {
        DatePart::Year => year,
        DatePart::Quarter => (month + 2) / 3,
        DatePart::Month => month,
        DatePart::Day => day,
        DatePart::DayOfYear => days - days_before(year) + 1,
        DatePart::DayOfWeek => (days + 4).rem_euclid(7),
        DatePart::IsoDayOfWeek => (days + 3).rem_euclid(7) + 1,
        DatePart::IsoYear => iso_year,
        DatePart::Week => (thursday - days_before(iso_year)) / 7 + 1,
        DatePart::Hour => within / (3600 * per_second),
        DatePart::Minute => within / (60 * per_second) % 60,
        DatePart::Second => of_minute / per_second,
        DatePart::Millisecond => (i128::from(of_minute) * 1000 / i128::from(per_second)) as i64,
        DatePart::Microsecond => {
            (i128::from(of_minute) * 1_000_000 / i128::from(per_second)) as i64
        }
    }
}

#[test]
fn parts_of_dates() {
    const PARTS: [DatePart; 14] = [
        DatePart::Year,
        DatePart::Quarter,
        DatePart::Month,
        DatePart::Week,
        DatePart::IsoYear,
        DatePart::Day,
        DatePart::DayOfYear,
        DatePart::DayOfWeek,
        DatePart::IsoDayOfWeek,
        DatePart::Hour,
        DatePart::Minute,
        DatePart::Second,
        DatePart::Millisecond,
        DatePart::Microsecond,
    ];
    assert_eq!(
        [-1, 0, 59, 11_016].map(civil),
        [(1969, 12, 31), (1970, 1, 1), (1970, 3, 1), (2000, 2, 29)]
    );
    on("t4", |gpu| {
        let mut random = Random::new(41);
        let units = UNITS.map(Some).into_iter().chain([None]);
        for unit in units {
            let data_type = unit.map_or(DataType::Date32, DataType::Timestamp);
            let mut rows = sample(&mut random, data_type, 1025);
            // Within some thousand years, where all units are alike.
            if unit.is_some_and(|it| it != TimeUnit::Nanosecond) {
                let limit = unit.map_or(1, TimeUnit::per_day) * 2_000_000;
                for cell in rows.values.iter_mut().flatten() {
                    let Value::Integer(value) = cell else { panic!("{cell:?}") };
                    *value %= limit;
                }
            }
            for part in PARTS {
                let expression =
                    Expression::date_part(part, &column(0, data_type)).expect("a part");
                let what = format!("{part:?} of {data_type}");
                check(gpu, &what, std::slice::from_ref(&rows), &expression, |row| {
                    Ok(integer(&row[0]).map(|it| Value::Integer(part_of(part, it, unit))))
                });
            }
        }
    });
}

#[test]
fn averages_of_decimals() {
    on("t4", |gpu| {
        let mut random = Random::new(42);
        let sum = DataType::Decimal128(38, 2);
        let mut columns =
            [sample(&mut random, sum, 1025), sample(&mut random, DataType::Int8, 1025)];
        columns[1].layout = Layout::I64;
        for cell in columns[1].values.iter_mut().flatten() {
            let Value::Integer(count) = cell else { panic!("{cell:?}") };
            *count = (*count).max(0);
        }
        let average = DataType::Decimal128(19, 6);
        let (a, b) = (column(0, sum), column(1, DataType::Int64));
        let expression = Expression::decimal_average(&a, &b, average).expect("AVG");
        check(gpu, "AVG", &columns, &expression, |row| {
            // The sum is scaled whatever the count.
            let Some(sum) = wide(&row[0]) else { return Ok(None) };
            let scaled = sum.checked_mul(10_000).ok_or(Fault::Overflow)?;
            let quotient = integer(&row[1]).and_then(|count| scaled.checked_div(count.into()));
            let Some(quotient) = quotient else { return Ok(None) };
            decimal_value(Some(quotient), average, true).map(Some)
        });
    });
}

#[test]
fn what_a_branch_guards_does_not_fail() {
    on("t4", |gpu| {
        let mut random = Random::new(43);
        let data_type = DataType::Int32;
        let columns = [sample(&mut random, data_type, 1025), sample(&mut random, data_type, 1025)];
        let (a, b) = (column(0, data_type), column(1, data_type));
        let quotient = Expression::arithmetic(Arithmetic::Divide, &a, &b).expect("/");
        let zero = Expression::literal(&Scalar::Integer(0, data_type)).expect("a literal");
        let guard = Expression::compare(Comparison::NotEqual, &b, &zero).expect("<>");
        let divided = |row: &[Cell]| -> Result<Option<i64>, Fault> {
            match (integer(&row[0]), integer(&row[1])) {
                (Some(_), Some(0)) => Err(Fault::DivideByZero),
                (Some(a), Some(-1)) if a == i64::from(i32::MIN) => Err(Fault::Overflow),
                (Some(a), Some(b)) => Ok(Some(a / b)),
                _ => Ok(None),
            }
        };
        let case =
            Expression::case(&[(guard.clone(), quotient.clone())], Some(&zero)).expect("CASE");
        check(gpu, "CASE", &columns, &case, |row| match integer(&row[1]) {
            None | Some(0) => Ok(Some(Value::Integer(0))),
            _ => divided(row).map(|it| it.map(Value::Integer)),
        });
        let positive = Expression::compare(Comparison::Greater, &quotient, &zero).expect(">");
        let and = Expression::and(&guard, &positive).expect("AND");
        check(gpu, "AND", &columns, &and, |row| {
            let positive = || divided(row).map(|it| it.map(|it| it > 0));
            Ok(match integer(&row[1]).map(|it| it != 0) {
                Some(false) => Some(false),
                Some(true) => positive()?,
                None => positive()?.filter(|it| !it),
            }
            .map(Value::Bool))
        });
        let or = Expression::or(&Expression::not(&guard).expect("NOT"), &positive).expect("OR");
        check(gpu, "OR", &columns, &or, |row| {
            let positive = || divided(row).map(|it| it.map(|it| it > 0));
            Ok(match integer(&row[1]).map(|it| it == 0) {
                Some(true) => Some(true),
                Some(false) => positive()?,
                None => positive()?.filter(|it| *it),
            }
            .map(Value::Bool))
        });
    });
}

#[test]
fn sizes_selections_and_several_outputs() {
    on("h200", |gpu| {
        let mut random = Random::new(44);
        let (money, date) = (DataType::Decimal128(15, 2), DataType::Date32);
        let literal = |scalar| Expression::literal(&scalar).expect("a literal");
        let one = literal(Scalar::Decimal128(100, 15, 2));
        let arithmetic =
            |op, a: &Expression, b: &Expression| Expression::arithmetic(op, a, b).expect("it");
        let rest = arithmetic(Arithmetic::Subtract, &one, &column(1, money));
        let price = arithmetic(Arithmetic::Multiply, &column(0, money), &rest);
        let day = literal(Scalar::Integer(0, date));
        let early = Expression::compare(Comparison::LessOrEqual, &column(2, date), &day);
        let expressions = [price, early.expect("<="), column(3, DataType::Utf8)];
        for size in SIZES {
            let mut small = |limit: i64| {
                let values = (0..size).map(|_| {
                    let value = random.below(limit as u64) as i64 - limit / 2;
                    (!random.one_in(9)).then_some(value)
                });
                values.collect::<Vec<Option<i64>>>()
            };
            let (prices, discounts, dates) = (small(10_000_000), small(100), small(10_000));
            let decimals = |values: &[Option<i64>]| {
                Rows::new(
                    Layout::I128,
                    values.iter().map(|it| it.map(|it| Value::I128(it.into()))).collect(),
                )
            };
            let text = |it: Option<i64>| it.map(|it| Value::Text(it.to_string()));
            let columns = [
                decimals(&prices),
                decimals(&discounts),
                Rows::new(Layout::I32, dates.iter().map(|it| it.map(Value::Integer)).collect()),
                Rows::new(Layout::String, dates.iter().map(|&it| text(it)).collect()),
            ];
            let selection: Vec<u32> = (0..size as u32).rev().filter(|_| random.one_in(3)).collect();
            for selection in [None, Some(&selection[..])] {
                let rows: Vec<usize> = match selection {
                    None => (0..size).collect(),
                    Some(rows) => rows.iter().map(|&row| row as usize).collect(),
                };
                let found = run(gpu, &columns, &expressions, rows.len(), selection);
                let found = found.expect("no fault");
                let price = |&row: &usize| {
                    let (price, discount) = (prices[row]?, discounts[row]?);
                    Some(Value::I128(i128::from(price) * i128::from(100 - discount)))
                };
                assert!(same(&found[0], &rows.iter().map(price).collect::<Vec<_>>()), "{size}");
                let early = |&row: &usize| dates[row].map(|it| Value::Bool(it <= 0));
                assert!(same(&found[1], &rows.iter().map(early).collect::<Vec<_>>()), "{size}");
                let texts = |&row: &usize| text(dates[row]);
                assert!(same(&found[2], &rows.iter().map(texts).collect::<Vec<_>>()), "{size}");
            }
        }
    });
}
