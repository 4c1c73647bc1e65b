// The first and the last kernel of a captured program: the first copies what differs from launch to launch to the addresses where
// the others read it, the last what they return to where a launch wants it.
//
// The host writes what to copy into a slot of pinned memory, which these kernels read over the bus, so that a launch takes one call
// to the driver and not another one for each copy. There are several slots, since the host runs ahead of the device; launches take
// them in turn, and the last block of each tells the host that its slot is free again.
//
// Traffic in bytes: n copied bytes are read and written, and each block reads 24 for each copy over the bus.

#include "common.cuh"
#include "arrivals.cuh"

struct Copies {
    u64 target, source, nbytes;
};

// In device memory: how many launches there were, and the blocks of this one that have arrived.
struct Turn {
    u64 taken;
    u32 arrivals;
};

template <typename Word>
__device__ __forceinline__ void copy_words(const Copies& c) {
    Word* target = (Word*)c.target;
    const Word* source = (const Word*)c.source;
    u64 count = c.nbytes / sizeof(Word), step = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += 4 * step) {
        Word words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (i + j * step < count) words[j] = source[i + j * step];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (i + j * step < count) target[i + j * step] = words[j];
    }
}

// Makes the copies from `first` to `last` of this launch, whose slot is free afterwards if `ends`. `box` begins with the number of
// launches whose slots are free, and its slots of `room` bytes begin 256 bytes later.
extern "C" __global__ void bring(u64 box, i64 room, i64 slots, i64 first, i64 last, bool ends, Turn* turn) {
    __shared__ Copies copies[32];
    u64 taken = turn->taken;
    // What the host has written since an earlier launch must not come from a cache.
    const volatile u64* slot = (const volatile u64*)(box + 256 + taken % (u64)slots * (u64)room);
    for (; first < last; first += 32) {
        int some = (int)(last - first < 32 ? last - first : 32);
        __syncthreads();
        for (int k = threadIdx.x; k < 3 * some; k += blockDim.x) ((u64*)copies)[k] = slot[3 * first + k];
        __syncthreads();
        for (int k = 0; k < some; ++k) {
            const Copies c = copies[k];
            u64 bits = c.target | c.source | c.nbytes;
            if (c.source - (u64)slot < (u64)room) {
                // Numbers, in the slot itself: for the last block, since the bus takes longer than the other copies.
                if (blockIdx.x == gridDim.x - 1)
                    for (u64 i = threadIdx.x; i < c.nbytes / 8; i += blockDim.x)
                        ((u64*)c.target)[i] = ((const volatile u64*)c.source)[i];
            } else if (!(bits & 15)) copy_words<Pack<u64, 2>>(c);
            else if (!(bits & 3)) copy_words<u32>(c);
            else copy_words<unsigned char>(c);
        }
    }
    if (ends && last_of(&turn->arrivals, 0, (int)gridDim.x) && !threadIdx.x) {
        turn->taken = taken + 1;
        // All blocks have read the slot, in an order that so far holds for the device alone.
        __threadfence_system();
        *(volatile u64*)box = taken + 1;
    }
}
