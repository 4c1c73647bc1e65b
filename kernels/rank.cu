// Sorting along a dimension, in place, and the selection of some ranks. Batcher, Sorting Networks, 1968.
//
// Traffic in bytes, n elements of s: about log2(n)^2 / 2 launches read n (s + 8) each and write the elements that are exchanged.
// Every comparison puts the smaller of two first, so a line needs no padding to a power of two: padding at its end would
// never move. Equal elements keep their order, by their positions; NaN is the largest.

#include "common.cuh"

template <typename A> __device__ __forceinline__ bool less(A a, A b) { return a < b || (b != b && a == a); }

// A line has `width` elements, `tail` apart. Initialises values and places with x and its positions.
template <typename T>
__global__ void begin(const T* x, T* values, i64* places, i64 n, i64 width, i64 tail) {
    EACH(i, n) {
        values[i] = x[i];
        places[i] = i / tail % width;
    }
}

// One step: element i of each line and its partner, i ^ mask, are exchanged if they are out of order.
template <typename T>
__global__ void exchange(T* values, i64* places, i64 n, i64 width, i64 tail, i64 mask, int descending) {
    EACH(at, n) {
        i64 i = at / tail % width, partner = i ^ mask;
        if (partner <= i || partner >= width) continue;
        i64 other = at + (partner - i) * tail;
        WIDE(T) a = (WIDE(T))values[at], b = (WIDE(T))values[other];
        bool after = descending ? less(a, b) : less(b, a), before = descending ? less(b, a) : less(a, b);
        if (!after && (before || places[at] < places[other])) continue;
        T value = values[at];
        i64 place = places[at];
        values[at] = values[other];
        places[at] = places[other];
        values[other] = value;
        places[other] = place;
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
