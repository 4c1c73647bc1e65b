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
// a merge, whose distances are smaller than a tile. A line has `width` elements, `tail` apart; x has them with their positions
// `from`, or in order without. The ranks start .. start + length go to values and places.
template <typename T, int TILE>
__global__ void tiles(const T* x, const i64* from, T* values, i64* places, i64 lines, i64 width, i64 tail, i64 start, i64 length,
                      int merge, int descending) {
    __shared__ T found[TILE];
    __shared__ u32 place[TILE];
    // Elements of a line in this block, lines of the block, and where they begin.
    int span = (int)(width < TILE ? width : TILE), many = TILE / span;
    i64 cuts = (width + TILE - 1) / TILE, line = blockIdx.x / cuts * many, begin = blockIdx.x % cuts * TILE;
    if (width - begin < span) span = (int)(width - begin);
    int count = span * (int)(lines - line < many ? lines - line : many);
    for (int e = threadIdx.x; e < count; e += 256) {
        i64 of = line + e / span, i = begin + e % span, at = (of / tail * width + i) * tail + of % tail;
        found[e] = x[at];
        place[e] = (u32)(from ? from[at] : i);
    }
    for (int size = merge ? TILE : 2; size < 2 * span || merge; size *= 2) {
        // A bitonic merge: the second half is compared from its end, then distances are halved.
        for (int mask = merge ? TILE / 2 : size - 1; mask; mask = mask == size - 1 ? size / 4 : mask / 2) {
            __syncthreads();
            for (int e = threadIdx.x; e < count; e += 256) {
                int i = e % span, partner = i ^ mask, other = e + partner - i;
                if (partner <= i || partner >= span) continue;
                if (!misplaced(found[e], place[e], found[other], place[other], descending)) continue;
                swap(found[e], found[other]);
                swap(place[e], place[other]);
            }
        }
        if (merge) break;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < count; e += 256) {
        i64 of = line + e / span, i = begin + e % span - start;
        if (i < 0 || i >= length) continue;
        i64 at = (of / tail * length + i) * tail + of % tail;
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
