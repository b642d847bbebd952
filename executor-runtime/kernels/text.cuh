// A string as pointer and length, wherever its bytes are.
#pragma once

#include "types.cuh"

struct Text {
    const u8* bytes;
    i32 length;
    i32 unused;
};
static_assert(sizeof(Text) == 16, "the host allocates 16 bytes for each");

// Negative, zero or positive as `a` comes before, with or after `b`: by bytes, as Arrow orders UTF-8.
static OUT_OF_LINE i32 compare(Text a, Text b) {
    i32 common = a.length < b.length ? a.length : b.length;
    for (i32 i = 0; i < common; i++) {
        i32 difference = static_cast<i32>(a.bytes[i]) - static_cast<i32>(b.bytes[i]);
        if (difference != 0) return difference;
    }
    return a.length < b.length ? -1 : a.length > b.length;
}

static OUT_OF_LINE bool equal(Text a, Text b) {
    if (a.length != b.length) return false;
    if (a.bytes == b.bytes) return true;
    for (i32 i = 0; i < a.length; i++) {
        if (a.bytes[i] != b.bytes[i]) return false;
    }
    return true;
}
