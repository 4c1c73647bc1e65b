// The sum of the squares of many tensors, and their scaling by a number in memory: the clipping of gradients by their norm.
//
// Traffic in bytes, n elements of s in all: the squares read n s, the scaling reads and writes n s; 16 bytes at a time, each
// tensor's tail by elements. Sums are made in the same order in every run: a thread's elements, a block's threads, the blocks.

#include "common.cuh"
#include "tensors.cuh"

// The elements of a block's tensor that the block takes.
template <typename T>
struct Chunk {
    T* of;
    i64 start, whole, end;

    __device__ __forceinline__ explicit Chunk(const Group& group) {
        int tensor = owner(group);
        of = (T*)group.tensors[0][tensor];
        i64 n = group.sizes[tensor];
        start = (blockIdx.x - group.first[tensor]) * group.chunk;
        end = start + group.chunk < n ? start + group.chunk : n;
        whole = (u64)of & 15 ? start : end - (end - start) % (16 / (i64)sizeof(T));
    }
};

// Each block adds up the squares of its elements.
template <typename T>
__global__ void square_parts(const __grid_constant__ Group group, WIDE(T)* parts) {
    typedef WIDE(T) A;
    const int N = 16 / sizeof(T);
    __shared__ A room[8];
    Chunk<T> chunk(group);
    A sum = 0;
    for (i64 i = chunk.start + threadIdx.x * N; i < chunk.whole; i += 256 * N) {
        Pack<T, N> x = *(const Pack<T, N>*)(chunk.of + i);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += (A)x.of[k] * (A)x.of[k];
    }
    for (i64 i = chunk.whole + threadIdx.x; i < chunk.end; i += 256) sum += (A)chunk.of[i] * (A)chunk.of[i];
    sum = team_fold<Sum>(sum, Team(256), room);
    if (!threadIdx.x) parts[blockIdx.x] = sum;
}

// One block adds up the parts.
template <typename A>
__global__ void square_total(const A* parts, i64 count, A* out) {
    __shared__ A room[8];
    A sum = 0;
    for (i64 i = threadIdx.x; i < count; i += 256) sum += parts[i];
    sum = team_fold<Sum>(sum, Team(256), room);
    if (!threadIdx.x) *out = sum;
}

template <typename T>
__global__ void scale(const __grid_constant__ Group group, const T* factor) {
    typedef WIDE(T) A;
    const int N = 16 / sizeof(T);
    Chunk<T> chunk(group);
    A by = (A)*factor;
    for (i64 i = chunk.start + threadIdx.x * N; i < chunk.whole; i += 256 * N) {
        Pack<T, N> x = *(const Pack<T, N>*)(chunk.of + i);
#pragma unroll
        for (int k = 0; k < N; ++k) x.of[k] = (T)((A)x.of[k] * by);
        *(Pack<T, N>*)(chunk.of + i) = x;
    }
    for (i64 i = chunk.whole + threadIdx.x; i < chunk.end; i += 256) chunk.of[i] = (T)((A)chunk.of[i] * by);
}
