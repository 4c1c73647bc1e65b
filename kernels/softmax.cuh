// The largest of a row and the sum of its exponentials, in one pass.
//
// Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867.

// The largest of some numbers, and the sum of exp(number - largest).
template <typename A> struct Peak {
    A top = -infinity<A>(), total = 0;

    // What a softmax divides by: beside an infinite logit there is no share that is a number.
    __device__ __forceinline__ A whole() const { return top == infinity<A>() ? not_a_number<A>() : total; }

    __device__ __forceinline__ void take(A x) {
        if (x > top) {
            total = total * exp(top - x) + 1;
            top = x;
        } else {
            // Of equals the difference is 0, though that of infinities is not.
            total += x == top ? (A)1 : exp(x - top);
        }
    }

    __device__ __forceinline__ void take(A other, A sum) {
        if (other > top) {
            total = total * exp(top - other) + sum;
            top = other;
        } else {
            total += other == top ? sum : sum * exp(other - top);
        }
    }
};

template <typename A>
__device__ __forceinline__ Peak<A> team_peak(Peak<A> peak, const Team& team, A* room) {
    for (int offset = 16; team.lanes > 1 && offset; offset >>= 1) {
        A top = __shfl_xor_sync(0xffffffffu, peak.top, offset), total = __shfl_xor_sync(0xffffffffu, peak.total, offset);
        peak.take(top, total);
    }
    if (team.lanes <= 32) return peak;
    __syncthreads();
    if (!(threadIdx.x & 31)) room[threadIdx.x >> 5] = peak.top, room[8 + (threadIdx.x >> 5)] = peak.total;
    __syncthreads();
    peak.top = room[0], peak.total = room[8];
    for (int k = 1; k < 8; ++k) peak.take(room[k], room[8 + k]);
    return peak;
}
