// Sorting along a dimension, and the selection of some ranks. Batcher, Sorting Networks, 1968.
//
// Traffic in bytes, n elements of s in lines of w: lines of up to 2048 elements are sorted in shared memory, which reads n s and
// writes the ranks that are asked for. Longer ones take about (log2(w) - 10)^2 / 2 launches, which read n (s + 8) each and write
// what is exchanged. Every comparison puts the smaller of two first, so a line needs no padding to a power of two: padding at its
// end would never move. Equal elements keep their order, by their positions; NaN is the largest.

#include "common.cuh"

template <typename A> __device__ __forceinline__ bool less(A a, A b) { return a < b || (b != b && a == a); }

// Is the earlier one of two elements to come later?
template <typename T, typename P>
__device__ __forceinline__ bool misplaced(T one, P place, T other, P behind, int descending) {
    WIDE(T) a = (WIDE(T))one, b = (WIDE(T))other;
    bool after = descending ? less(a, b) : less(b, a), before = descending ? less(b, a) : less(a, b);
    return after || (!before && place > behind);
}

template <typename A> __device__ __forceinline__ void swap(A& a, A& b) {
    A was = a;
    a = b;
    b = was;
}

// A block sorts a tile of a line, or several lines that fit into a tile, in shared memory; with `merge` only the last steps of
// a merge, whose distances are smaller than a tile. A line has `width` elements, `tail` apart, fewer than 2^32; in shared memory
// it takes 1 << bits. x has the elements with their positions `from`, or in order without. The ranks start .. start + length go
// to values and places.
template <typename T, int TILE>
__global__ void tiles(const T* x, const i64* from, T* values, i64* places, i64 lines, i64 width, i64 tail, i64 start, i64 length,
                      int bits, int merge, int descending) {
    __shared__ T found[TILE];
    __shared__ u32 place[TILE];
    // Elements of a line in this block, and where they begin; the block's lines.
    i64 cuts = (width + TILE - 1) / TILE, begin = blockIdx.x % cuts * TILE, line = blockIdx.x / cuts * (TILE >> bits);
    int span = (int)(width - begin < TILE ? width - begin : TILE), room = 1 << bits;
    int many = (int)(lines - line < TILE >> bits ? lines - line : TILE >> bits);
    for (int e = threadIdx.x; e < many << bits; e += 256) {
        i64 of = line + (e >> bits), i = begin + (e & (room - 1)), lead = tail == 1 ? of : of / tail;
        if ((e & (room - 1)) >= span) continue;
        i64 at = (lead * width + i) * tail + of - lead * tail;
        found[e] = x[at];
        place[e] = (u32)(from ? from[at] : i);
    }
    for (int size = merge ? TILE : 2; size <= room; size *= 2) {
        // A bitonic merge: the second half is compared from its end, then distances are halved.
        for (int mask = merge ? TILE / 2 : size - 1; mask; mask = mask == size - 1 ? size / 4 : mask / 2) {
            bool mirrored = !merge && mask == size - 1;
            int far = mirrored ? size / 2 : mask;
            __syncthreads();
            for (int pair = threadIdx.x; pair < many << bits >> 1; pair += 256) {
                int e = (pair & ~(far - 1)) * 2 + (pair & (far - 1)), other = mirrored ? e ^ mask : e + far;
                if ((other & (room - 1)) >= span) continue;
                if (!misplaced(found[e], place[e], found[other], place[other], descending)) continue;
                swap(found[e], found[other]);
                swap(place[e], place[other]);
            }
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < many << bits; e += 256) {
        i64 of = line + (e >> bits), i = begin + (e & (room - 1)) - start, lead = tail == 1 ? of : of / tail;
        if ((e & (room - 1)) >= span || i < 0 || i >= length) continue;
        i64 at = (lead * length + i) * tail + of - lead * tail;
        values[at] = found[e];
        places[at] = place[e];
    }
}

// One step: element i of each line and its partner, i ^ mask, are exchanged if they are out of order.
template <typename T>
__global__ void exchange(T* values, i64* places, i64 n, i64 width, i64 tail, i64 mask, int descending) {
    EACH(at, n) {
        i64 i = at / tail % width, partner = i ^ mask, other = at + (partner - i) * tail;
        if (partner <= i || partner >= width) continue;
        if (!misplaced(values[at], places[at], values[other], places[other], descending)) continue;
        swap(values[at], values[other]);
        swap(places[at], places[other]);
    }
}

// The ranks start .. start + length of sorted lines; n is the number of results.
template <typename T>
__global__ void pick(const T* values, const i64* places, T* out, i64* out_places, i64 n, i64 width, i64 tail, i64 start,
                     i64 length) {
    EACH(i, n) {
        i64 at = (i / tail / length * width + start + i / tail % length) * tail + i % tail;
        out[i] = values[at];
        out_places[i] = places[at];
    }
}
