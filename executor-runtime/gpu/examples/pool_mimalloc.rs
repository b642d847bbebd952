//! mimalloc on the traces of the example `pool`.

#[path = "pool/heap.rs"]
mod heap;
#[path = "pool/measure.rs"]
mod measure;
#[path = "pool/trace.rs"]
mod trace;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    heap::run("mimalloc", 16 << 30);
}
