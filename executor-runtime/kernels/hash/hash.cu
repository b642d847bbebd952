// Hashes of rows. Bytes moved for each row: the keys read, 4 written.
#include "keys.cuh"

constexpr u32 THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    hash_rows(const Column* keys, u32 count, u32 rows, u32* hashes) {
    u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row < rows) hashes[row] = hash_of(keys, count, row);
}
