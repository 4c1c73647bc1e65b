// Blocks of one launch that combine what they have stored: the last one to arrive does, in the order of their numbers, so that no
// result depends on the order in which blocks run (NVIDIA's sample threadFenceReduction).

// Shared by the launches of a stream, one at a time: the parts that blocks have stored, and how many blocks have arrived.
struct Shared {
    i64 parts[32768];
    u32 arrivals[1024];
};

// True for the last of the `parts` blocks that store something for `row`; it can then read what the others stored. One thread
// makes visible what its whole block has stored before the barrier, since a fence also empties the cache that blocks share.
__device__ __forceinline__ bool last_of(u32* arrivals, i64 row, int parts) {
    __shared__ u32 before;
    __syncthreads();
    if (!threadIdx.x) {
        __threadfence();
        before = atomicInc(arrivals + row, (u32)parts - 1);
    }
    __syncthreads();
    if (before != (u32)parts - 1) return false;
    __threadfence();
    return true;
}
