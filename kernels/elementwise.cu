// Functions of up to five operands, element by element: arithmetic, comparison, activations and their gradients, copies.
//
// Traffic in bytes: each tensor is read once and the result written once, n elements of their own size each. Numbers, one-element
// tensors and a row that repeats add nothing significant. `map` handles tensors with the same layout, 16 bytes of the widest dtype
// at a time; `map_strided` handles all others, also in wide accesses where adjacent elements allow it; `turn` and `turn_squares`
// copy transposed tensors in tiles. Then<F, G> computes two functions in one pass. gelu: Hendrycks and Gimpel, arXiv:1606.08415.

#include "common.cuh"

// -- functions: C is the type of the arithmetic ------------------------------------------------------------------------

#define UNARY(Name, expression) \
    struct Name { template <typename C> static __device__ __forceinline__ auto of(C x) { return expression; } };
#define BINARY(Name, expression) \
    struct Name { template <typename C> static __device__ __forceinline__ auto of(C x, C y) { return expression; } };

template <typename C> __device__ __forceinline__ C down(C x) { return floor(x); }
template <typename C> __device__ __forceinline__ C up(C x) { return ceil(x); }
template <typename C> __device__ __forceinline__ C nearest(C x) { return rint(x); }
template <> __device__ __forceinline__ i64 down(i64 x) { return x; }
template <> __device__ __forceinline__ i64 up(i64 x) { return x; }
template <> __device__ __forceinline__ i64 nearest(i64 x) { return x; }

UNARY(Copy, x)
UNARY(Neg, -x)
UNARY(Abs, x < 0 ? -x : x == 0 ? (C)0 : x)
UNARY(Sign, x > 0 ? (C)1 : x < 0 ? (C)-1 : (C)0)
UNARY(Floor, down(x))
UNARY(Ceil, up(x))
UNARY(Round, nearest(x))
UNARY(Reciprocal, (C)1 / x)
UNARY(Exp, exp(x))
UNARY(Expm1, expm1(x))
UNARY(Log, log(x))
UNARY(Log1p, log1p(x))
UNARY(Log2, log2(x))
UNARY(Log10, log10(x))
UNARY(Sqrt, sqrt(x))
UNARY(Rsqrt, (C)1 / sqrt(x))
UNARY(Square, x * x)
UNARY(Sin, sin(x))
UNARY(Cos, cos(x))
UNARY(Tan, tan(x))
UNARY(Sinh, sinh(x))
UNARY(Cosh, cosh(x))
UNARY(Arctan, atan(x))
UNARY(Tanh, tanh(x))
UNARY(Erf, erf(x))
UNARY(LogicalNot, x == 0)
UNARY(IsNan, x != x)
UNARY(IsInf, x == infinity<C>() || x == -infinity<C>())
UNARY(IsFinite, x - x == 0)
// NaN stays NaN.
UNARY(Relu, x < 0 ? (C)0 : x)
// Computed with tanh, since exp(-x) would overflow for large negative x.
UNARY(Sigmoid, (C)0.5 * tanh((C)0.5 * x) + (C)0.5)

BINARY(Add, x + y)
BINARY(Sub, x - y)
BINARY(Mul, x * y)
BINARY(Div, x / y)
BINARY(Eq, x == y)
BINARY(Ne, x != y)
BINARY(Lt, x < y)
BINARY(Le, x <= y)
BINARY(Gt, x > y)
BINARY(Ge, x >= y)
BINARY(LogicalAnd, x != 0 && y != 0)
BINARY(LogicalOr, x != 0 || y != 0)
BINARY(LogicalXor, (x != 0) != (y != 0))
BINARY(Maximum, Most::of(x, y))
BINARY(Minimum, Least::of(x, y))
// x is the cotangent, y the tensor from which each activation's gradient is computed.
BINARY(ReluGrad, y <= 0 ? (C)0 : x)
BINARY(TanhGrad, x * ((C)1 - y * y))
BINARY(SigmoidGrad, x * y * ((C)1 - y))

// Python's remainder has the sign of the divisor; integers divided by 0 give 0, as in NumPy.
template <typename C> __device__ __forceinline__ C modulo(C x, C y) {
    C r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r == 0 ? copysign((C)0, y) : r;
}
template <> __device__ __forceinline__ i64 modulo(i64 x, i64 y) {
    i64 r = y == 0 || y == -1 ? 0 : x % y;
    return r && (r < 0) != (y < 0) ? r + y : r;
}
template <typename C> __device__ __forceinline__ C floored(C x, C y) {
    if (y == 0) return x / y;
    C r = fmod(x, y), q = (x - r) / y;
    if (r != 0 && (r < 0) != (y < 0)) q -= 1;
    // The quotient is an integer except for rounding.
    C f = floor(q);
    return q == 0 ? copysign((C)0, x / y) : q - f > (C)0.5 ? f + 1 : f;
}
template <> __device__ __forceinline__ i64 floored(i64 x, i64 y) {
    if (!y) return 0;
    if (y == -1) return (i64)(0 - (u64)x);
    i64 q = x / y;
    return x % y && (x < 0) != (y < 0) ? q - 1 : q;
}
template <typename C> __device__ __forceinline__ C power(C x, C y) { return y == 2 ? x * x : pow(x, y); }
template <> __device__ __forceinline__ i64 power(i64 x, i64 y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    u64 made = 1, base = (u64)x;
    for (; y; y >>= 1, base *= base)
        if (y & 1) made *= base;
    return (i64)made;
}
BINARY(Remainder, modulo(x, y))
BINARY(FloorDivide, floored(x, y))
BINARY(Pow, power(x, y))

template <typename C> __device__ __forceinline__ C normal_below(C x) { return (C)0.5 * ((C)1 + erf(x * (C)0.7071067811865476)); }
// tanh(sqrt(2 / pi) (x + 0.044715 x^3))
template <typename C> __device__ __forceinline__ C bent(C x) { return tanh((C)0.7978845608028654 * (x + (C)0.044715 * x * x * x)); }
UNARY(Gelu, x * normal_below(x))
UNARY(GeluTanh, (C)0.5 * x * ((C)1 + bent(x)))
// With fma, since the compiler chooses by what else a kernel computes which product of a sum it fuses: a gradient has the same bits
// alone and in `with_slopes`.
BINARY(GeluGrad, x * fma(y * exp((C)-0.5 * y * y), (C)0.3989422804014327, normal_below(y)))
struct GeluTanhGrad {
    template <typename C> static __device__ __forceinline__ C of(C dy, C x) {
        C t = bent(x), slope = (C)0.7978845608028654 * ((C)1 + (C)0.134145 * x * x);
        return dy * fma((C)0.5 * x * ((C)1 - t * t), slope, (C)0.5 * ((C)1 + t));
    }
};

struct Where {
    template <typename C> static __device__ __forceinline__ C of(C condition, C x, C y) { return condition != 0 ? x : y; }
};
struct Clamp {
    template <typename C> static __device__ __forceinline__ C of(C x, C low, C high) { return Least::of(Most::of(x, low), high); }
};
struct MseGrad {
    template <typename C> static __device__ __forceinline__ C of(C dy, C x, C target, C scale) { return (x - target) * scale * dy; }
};

// Losses: x is an error, a probability or a logit; y is the width of the quadratic part, or the target.
struct Huber {
    template <typename C> static __device__ __forceinline__ C of(C x, C y) {
        C a = x < 0 ? -x : x, m = Least::of(a, y);
        return m * (a - (C)0.5 * m);
    }
};
struct Bce {
    template <typename C> static __device__ __forceinline__ C of(C x, C y) {
        return (y - (C)1) * Most::of(log1p(-x), (C)-100) - y * Most::of(log(x), (C)-100);
    }
};
BINARY(BceLogits, log1p(exp(x < 0 ? x : -x)) + x * ((x > 0 ? (C)1 : (C)0) - y))
#include "pointwise.cuh"
#include "gamma.cuh"

UNARY(Lgamma, lgamma(x))
UNARY(Erfinv, erfinv(x))
UNARY(Digamma, (C)digamma_of((double)x))
BINARY(Polygamma, (C)polygamma_of((double)x, (int)y))
BINARY(Gammainc, (C)incomplete_of((double)x, (double)y, false))
BINARY(Gammaincc, (C)incomplete_of((double)x, (double)y, true))

// F after G, in one pass: Then<Relu, Add> is a bias and its activation.
template <typename F, typename G> struct Then {
    template <typename... C> static __device__ __forceinline__ auto of(C... x) { return F::of(G::of(x...)); }
};

// -- operands: a tensor, a number, a tensor of one element, a row that repeats ---------------------------------------------

template <typename T> struct Number { T of; };
template <typename T> struct Cell { const T* of; };
template <typename T> struct Same { const T* of; };  // a tensor of which N neighbors read one element
template <typename T> struct Row { const T* of; i64 width; };

template <typename C, int N, typename T>
__device__ __forceinline__ Pack<C, N> load(const T* x, i64 i) {
    Pack<T, N> found = *(const Pack<T, N>*)(x + i);
    Pack<C, N> made;
#pragma unroll
    for (int k = 0; k < N; ++k) made.of[k] = (C)found.of[k];
    return made;
}
template <typename C, int N, typename T>
__device__ __forceinline__ Pack<C, N> load(const Number<T>& x, i64) {
    Pack<C, N> made;
#pragma unroll
    for (int k = 0; k < N; ++k) made.of[k] = (C)x.of;
    return made;
}
template <typename C, int N, typename T>
__device__ __forceinline__ Pack<C, N> load(const Cell<T>& x, i64) { return load<C, N>(Number<T>{*x.of}, 0); }
template <typename C, int N, typename T>
__device__ __forceinline__ Pack<C, N> load(const Same<T>& x, i64 i) { return load<C, N>(Number<T>{x.of[i]}, 0); }
template <typename C, int N, typename T>
__device__ __forceinline__ Pack<C, N> load(const Row<T>& x, i64 i) {
    i64 at = (u64)(i | x.width) >> 32 ? i % x.width : (i64)((u32)i % (u32)x.width);
    if (!((u32)x.width & (N - 1)) && !((u64)x.of & (sizeof(T) * N - 1))) return load<C, N>(x.of, at);
    Pack<C, N> made;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        made.of[k] = (C)x.of[at];
        if (++at == x.width) at = 0;
    }
    return made;
}

template <typename Op, typename Out, int N, typename... A>
__device__ __forceinline__ void store(Out* out, const A&... x) {
    Pack<Out, N> made;
#pragma unroll
    for (int k = 0; k < N; ++k) made.of[k] = stored<Out>(Op::of(x.of[k]...));
    *(Pack<Out, N>*)out = made;
}

template <typename Op, typename Out, typename C, int N> __device__ __forceinline__ void put(Out* out, Pack<C, N> (&x)[1]) {
    store<Op, Out, N>(out, x[0]);
}
template <typename Op, typename Out, typename C, int N> __device__ __forceinline__ void put(Out* out, Pack<C, N> (&x)[2]) {
    store<Op, Out, N>(out, x[0], x[1]);
}
template <typename Op, typename Out, typename C, int N> __device__ __forceinline__ void put(Out* out, Pack<C, N> (&x)[3]) {
    store<Op, Out, N>(out, x[0], x[1], x[2]);
}
template <typename Op, typename Out, typename C, int N> __device__ __forceinline__ void put(Out* out, Pack<C, N> (&x)[4]) {
    store<Op, Out, N>(out, x[0], x[1], x[2], x[3]);
}
template <typename Op, typename Out, typename C, int N> __device__ __forceinline__ void put(Out* out, Pack<C, N> (&x)[5]) {
    store<Op, Out, N>(out, x[0], x[1], x[2], x[3], x[4]);
}

// -- the kernels -------------------------------------------------------------------------------------------------------

template <typename Op, typename C, int N, typename Out, typename... P>
__global__ void map(i64 n, Out* out, P... x) {
    i64 whole = n / N;
    EACH(i, whole) store<Op, Out, N>(out + i * N, load<C, N>(x, i * N)...);
    // The elements after the last full access, one per thread.
    i64 i = whole * N + (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (N > 1 && i < n) store<Op, Out, 1>(out + i, load<C, 1>(x, i)...);
}

// A function of x, and, in place of a cotangent, its product with the function's derivative: 2 tensors read, 2 written.
template <typename F, typename G, typename C, int N, typename T>
__global__ void with_slopes(i64 n, T* out, T* slopes, const T* x) {
    i64 whole = n / N;
    EACH(i, whole) {
        Pack<C, N> dy = load<C, N>(slopes, i * N), v = load<C, N>(x, i * N);
        store<F, T, N>(out + i * N, v);
        store<G, T, N>(slopes + i * N, dy, v);
    }
    i64 i = whole * N + (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (N > 1 && i < n) {
        Pack<C, 1> dy = load<C, 1>(slopes, i), v = load<C, 1>(x, i);
        store<F, T, 1>(out + i, v);
        store<G, T, 1>(slopes + i, dy, v);
    }
}

// Tensor 0 of the axes is out; the others are the operands in order. n counts groups of N neighbors, and so does the last
// dimension of the axes.
template <typename Op, typename C, int N, typename Out, typename... P>
__global__ void map_strided(i64 n, const __grid_constant__ Axes axes, Out* out, P... x) {
    EACH(i, n) {
        i64 where[1 + sizeof...(P)];
        locate(axes, i, where);
        int k = 0;
        Pack<C, N> values[] = {load<C, N>(x, where[++k])...};
        put<Op>(out + where[0], values);
    }
}

// Where a block of the kernels below begins: its place in the matrix, and in out and x, which are tensors 0 and 1 of the axes of
// the other dimensions. Its tile has `side` rows and columns.
struct Tile {
    i64 row, column, start[2];
    __device__ __forceinline__ Tile(const Axes& axes, i64 rows, i64 columns, int side) {
        u32 down = (u32)((rows + side - 1) / side), over = (u32)((columns + side - 1) / side), above = blockIdx.x / over;
        row = (i64)(above % down) * side;
        column = (i64)(blockIdx.x - above * over) * side;
        locate(axes, above / down, start);
    }
};

// Copies x[.., j, i] to out[.., i, j]; i, which runs along x's adjacent elements, has `rows` values. Tiles of 64 x 64 go through
// shared memory, so that both tensors are accessed contiguously.
template <typename C, typename Out, typename T>
__global__ void turn(Out* out, const T* x, const __grid_constant__ Axes axes, i64 rows, i64 columns, i64 out_row, i64 x_column) {
    // Padded by a bank, so that a column of the tile lies in different ones.
    __shared__ T room[64][64 + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
    Tile tile(axes, rows, columns, 64);
    int lane = threadIdx.x & 63, first = threadIdx.x >> 6;
    x += tile.start[1] + tile.row + lane + tile.column * x_column;
    out += tile.start[0] + tile.row * out_row + tile.column + lane;
    // A thread's reads are in flight together: without conditions if the tile is whole.
    if (tile.row + 64 <= rows && tile.column + 64 <= columns) {
#pragma unroll
        for (int k = 0; k < 64; k += 4) room[first + k][lane] = x[(first + k) * x_column];
    } else {
#pragma unroll
        for (int k = 0; k < 64; k += 4)
            if (tile.row + lane < rows && tile.column + first + k < columns) room[first + k][lane] = x[(first + k) * x_column];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 64; k += 4)
        if (tile.row + first + k < rows && tile.column + lane < columns)
            out[(first + k) * out_row] = stored<Out>((C)room[lane][first + k]);
}

// The same where N elements can be accessed at once in both tensors: a thread turns a square of N x N in registers, so that
// nothing waits at a barrier. A warp has 8 squares along x's adjacent elements and 4 along those of out, a block 16 x 16.
template <typename C, typename Out, typename T, int N>
__global__ void turn_squares(Out* out, const T* x, const __grid_constant__ Axes axes, i64 rows, i64 columns, i64 out_row,
                             i64 x_column) {
    Tile tile(axes, rows, columns, 16 * N);
    int t = threadIdx.x;
    i64 row = tile.row + ((t & 7) | (t >> 2 & 8)) * N, column = tile.column + ((t >> 3 & 3) | (t >> 4 & 12)) * N;
    if (row >= rows || column >= columns) return;
    // All is counted in accesses: NVRTC would split stores to an address of whose alignment it is not certain.
    const Pack<T, N>* from = (const Pack<T, N>*)x + (tile.start[1] + column * x_column + row) / N;
    Pack<Out, N>* to = (Pack<Out, N>*)out + (tile.start[0] + row * out_row + column) / N;
    Pack<T, N> found[N];
#pragma unroll
    for (int k = 0; k < N; ++k) found[k] = from[k * (x_column / N)];
#pragma unroll
    for (int k = 0; k < N; ++k) {
        Pack<Out, N> made;
#pragma unroll
        for (int j = 0; j < N; ++j) made.of[j] = stored<Out>((C)found[j].of[k]);
        to[k * (out_row / N)] = made;
    }
}
