//! Writing answers where the caller wants them.

use std::ffi::{CString, c_char};

use crate::Code;

/// Writes a value.
///
/// # Safety
///
/// `target` is null, or valid for a write of a `T`.
pub(super) unsafe fn put<T>(target: *mut T, value: T) -> Result<(), Code> {
    if target.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid by this function's contract.
    unsafe { target.write(value) };
    Ok(())
}

/// Writes a string and its terminating zero.
///
/// # Safety
///
/// `target` is null, or valid for writes of `length` bytes.
pub(super) unsafe fn put_str(target: *mut c_char, length: u32, text: &str) -> Result<(), Code> {
    if target.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let text = CString::new(text).map_err(|_| Code::UNKNOWN)?;
    let bytes = text.as_bytes_with_nul();
    if bytes.len() > length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the buffer has room for these bytes, by the check above and the contract.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    Ok(())
}

/// Writes a list as NVML's lists are asked for: `count` says how much room there is, and becomes
/// how many there are.
///
/// # Safety
///
/// `count` is null or valid for reads and writes; `target` is null or valid for writes of `*count`
/// values.
pub(super) unsafe fn put_list<T: Copy>(
    count: *mut u32,
    target: *mut T,
    list: &[T],
) -> Result<(), Code> {
    if count.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid by the contract.
    let room = unsafe { count.replace(list.len() as u32) } as usize;
    if list.len() > room {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    if list.is_empty() {
        return Ok(());
    }
    if target.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: there is room for the list, by the check above and the contract.
    unsafe { target.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    Ok(())
}

/// A C array that holds a string, cut to its size.
pub(super) fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (target, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *target = c_char::from_ne_bytes([byte]);
    }
    array
}
