// Shared by all kernel families: storage types, reductions over teams of threads, positions in strided tensors.
//
// A block has 256 threads, unless a family says otherwise. A team is one thread, a power of two of threads within a warp, or the
// whole block, and works on one row. Every thread of a team gets the team's result, reduced in an order that does not change
// from run to run. All teams of a warp take part in its shuffles together: teams smaller than a warp take one row each, and
// then exit.

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

#ifdef __CUDACC_RTC__
__device__ __forceinline__ float half_to_float(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ __forceinline__ u16 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

// Two bytes of storage; arithmetic is in float.
struct half {
    u16 bits;
    half() = default;
    __device__ __forceinline__ explicit half(float x) : bits(float_to_half(x)) {}
    __device__ __forceinline__ operator float() const { return half_to_float(bits); }
};

struct bfloat {
    u16 bits;
    bfloat() = default;
    __device__ __forceinline__ explicit bfloat(float x) {
        u32 whole = __float_as_uint(x);
        // Rounds to nearest, ties to even; a NaN stays NaN.
        bits = x != x ? (u16)(whole >> 16 | 64) : (u16)((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
    __device__ __forceinline__ operator float() const { return __uint_as_float((u32)bits << 16); }
};

// The type of the arithmetic for elements stored as T.
template <typename T> struct Wide { typedef i64 type; };
template <> struct Wide<float> { typedef float type; };
template <> struct Wide<double> { typedef double type; };
template <> struct Wide<half> { typedef float type; };
template <> struct Wide<bfloat> { typedef float type; };
#define WIDE(T) typename Wide<T>::type

// A number as T stores it. Conversion to an unsigned byte goes through 64 bits: the device's direct conversion gives 0 for every
// negative number, whereas -1 gives 255 on a CPU.
template <typename T, typename A> struct Stored {
    static __device__ __forceinline__ T of(A x) { return (T)x; }
};
template <> struct Stored<unsigned char, float> {
    static __device__ __forceinline__ unsigned char of(float x) { return (unsigned char)(i64)x; }
};
template <> struct Stored<unsigned char, double> {
    static __device__ __forceinline__ unsigned char of(double x) { return (unsigned char)(i64)x; }
};
template <typename T, typename A> __device__ __forceinline__ T stored(A x) { return Stored<T, A>::of(x); }

// NVRTC has no math.h.
template <typename A> __device__ __forceinline__ A infinity() { return (A)__uint_as_float(0x7f800000); }
template <typename A> __device__ __forceinline__ A not_a_number() { return (A)__uint_as_float(0x7fc00000); }
template <typename A> __device__ __forceinline__ A lowest() { return -infinity<A>(); }
template <> __device__ __forceinline__ i64 lowest<i64>() { return (i64)((u64)1 << 63); }
template <typename A> __device__ __forceinline__ A highest() { return infinity<A>(); }
template <> __device__ __forceinline__ i64 highest<i64>() { return (i64)~((u64)1 << 63); }
template <typename A> __device__ __forceinline__ A size_of(A x) { return x < 0 ? -x : x; }

// A thread's elements in a loop over n elements by all threads of the grid.
#define EACH(i, n) for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)

// N neighbors in one access.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T of[N]; };

// -- folds (reductions) ----------------------------------------------------------------------------------------------

struct Sum {
    template <typename A> static __device__ __forceinline__ A first() { return 0; }
    template <typename A, typename T> static __device__ __forceinline__ A load(T x) { return (A)x; }
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};

struct Times {
    template <typename A> static __device__ __forceinline__ A first() { return 1; }
    template <typename A, typename T> static __device__ __forceinline__ A load(T x) { return (A)x; }
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a * b; }
};

// NaN counts as both the largest and the smallest element, as in NumPy.
struct Most {
    template <typename A> static __device__ __forceinline__ A first() { return lowest<A>(); }
    template <typename A, typename T> static __device__ __forceinline__ A load(T x) { return (A)x; }
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a > b || a != a ? a : b; }
    template <typename A> static __device__ __forceinline__ bool better(A a, A b) { return a > b; }
};

struct Least {
    template <typename A> static __device__ __forceinline__ A first() { return highest<A>(); }
    template <typename A, typename T> static __device__ __forceinline__ A load(T x) { return (A)x; }
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a < b || a != a ? a : b; }
    template <typename A> static __device__ __forceinline__ bool better(A a, A b) { return a < b; }
};

struct Any {
    template <typename A> static __device__ __forceinline__ A first() { return 0; }
    template <typename A, typename T> static __device__ __forceinline__ A load(T x) { return x != (T)0; }
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a > b ? a : b; }
};

struct All {
    template <typename A> static __device__ __forceinline__ A first() { return 1; }
    template <typename A, typename T> static __device__ __forceinline__ A load(T x) { return x != (T)0; }
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a < b ? a : b; }
};

// The row that this thread works on, and the thread's rank within its team.
struct Team {
    i64 row;
    int rank, lanes;
    __device__ __forceinline__ explicit Team(int lanes) : lanes(lanes) {
        int bits = __ffs(lanes) - 1;  // shifts, since a division takes as long as some elements
        row = (i64)blockIdx.x * (blockDim.x >> bits) + (threadIdx.x >> bits);
        rank = threadIdx.x & (lanes - 1);
    }
    // The offset of the first exchange between two threads.
    __device__ __forceinline__ int farthest() const { return lanes < 32 ? lanes / 2 : 16; }
};

// `room` is 8 elements of shared memory.
template <typename Op, typename A>
__device__ __forceinline__ A team_fold(A v, const Team& team, A* room) {
    for (int offset = team.farthest(); offset; offset >>= 1) v = Op::of(v, (A)__shfl_xor_sync(0xffffffffu, v, offset));
    if (team.lanes <= 32) return v;
    __syncthreads();  // until all threads have read the previous result
    if (!(threadIdx.x & 31)) room[threadIdx.x >> 5] = v;
    __syncthreads();
    v = room[0];
    for (int k = 1; k < 8; ++k) v = Op::of(v, room[k]);
    return v;
}

// -- positions -------------------------------------------------------------------------------------------------------

// Some dimensions of up to six tensors; strides are in elements. `count` is at least 1. `small` says that there are fewer than
// 2^32 positions, so that they are divided in 32 bits, which is much cheaper.
struct Axes {
    i64 count, small, shape[8], strides[6][8];
};

template <int K, typename I>
__device__ __forceinline__ void walk(const Axes& axes, I i, i64* found) {
#pragma unroll 1
    for (int d = (int)axes.count - 1; d > 0; --d) {
        I n = (I)axes.shape[d], next = i / n, rest = i - next * n;
#pragma unroll
        for (int k = 0; k < K; ++k) found[k] += (i64)rest * axes.strides[k][d];
        i = next;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) found[k] += (i64)i * axes.strides[k][0];
}

// The position of element i of these dimensions, in row-major order, in each of K tensors.
template <int K>
__device__ __forceinline__ void locate(const Axes& axes, i64 i, i64 (&found)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k) found[k] = 0;
    if (axes.small) walk<K>(axes, (u32)i, found);
    else walk<K>(axes, (u64)i, found);
}

// The same for the first tensor alone.
__device__ __forceinline__ i64 at(const Axes& axes, i64 i) {
    i64 found[1];
    locate(axes, i, found);
    return found[0];
}

// `rows` reductions over `width` elements each.
struct Layout {
    i64 rows, width;
    Axes kept, folded;
};
