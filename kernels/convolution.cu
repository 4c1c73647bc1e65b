// Two-dimensional convolution and its two gradients, as matrix products whose operands are never materialized in memory.
//
// Blocks compute tiles of the product, and gather the operands from the images on their way into shared memory (implicit GEMM:
// Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759).
// Traffic in bytes, a product of (m, k) by (k, n) with elements of s, by tiles of M x N: reads m k s for each N columns and n k s
// for each M rows, overlapping windows from cache, and writes m n s; the weight's gradient writes a partial result for each share
// of k, with that of the bias, and reads them again for their sums.

#include "common.cuh"
#include "windows.cuh"
#include "cores.cuh"
#include "tiles.cuh"
#include "slices.cuh"

// -- without tiles ------------------------------------------------------------------------------------------------------

// A product of up to four rows and 64 steps, as of a group with one channel, which would leave most of a tile empty: a thread
// computes all rows of four columns, from the steps and the rows in shared memory. The arguments are those of a tile.
template <typename Step, typename T, typename Steps, typename Column, typename Right, typename Where>
__device__ __forceinline__ void few_rows(i64 rows, i64 columns, int deep, i64 block, const T* left, i64 stride, const Steps& steps,
                                         const Column& column, const Right& right, const T* bias, T* out, i64 step,
                                         const Where& where) {
    typedef WIDE(T) A;
    __shared__ Step places[64];
    __shared__ Pack<A, 4> own[64];
    for (int k = threadIdx.x; k < deep; k += 128) {
        i64 offset;
        places[k] = steps(k, offset);
        for (int m = 0; m < 4; ++m) own[k].of[m] = m < rows ? (A)left[m * stride + offset] : (A)0;
    }
    __syncthreads();
    for (int j = 0; j < 4; ++j) {
        i64 n = block * 512 + j * 128 + threadIdx.x;
        if (n >= columns) return;
        auto place = column(n);
        A made[4] = {};
        for (int k = 0; k < deep; ++k) {
            A value = (A)right(place, places[k]);
            Pack<A, 4> mine = own[k];
#pragma unroll
            for (int m = 0; m < 4; ++m) made[m] += mine.of[m] * value;
        }
        i64 at = where(n);
#pragma unroll
        for (int m = 0; m < 4; ++m)
            if (m < rows) out[m * step + at] = (T)(made[m] + (bias ? (A)bias[m] : (A)0));
    }
}

// A product of few elements with many steps: a block sums up one row of four columns.
template <typename Step, typename T, typename A, typename Steps, typename Column, typename Right>
__device__ __forceinline__ void few_elements(i64 rows, i64 columns, i64 from, i64 to, i64 block, const T* left, i64 stride,
                                             const Steps& steps, const Column& column, const Right& right, A* out) {
    __shared__ A shares[4][4];
    i64 m = block % rows, first = block / rows * 4;
    decltype(column(0)) places[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) places[j] = column(first + j < columns ? first + j : columns - 1);
    A made[4] = {};
    for (i64 k = from + threadIdx.x; k < to; k += 128) {
        i64 offset;
        Step step = steps(k, offset);
        A value = (A)left[m * stride + offset];
#pragma unroll
        for (int j = 0; j < 4; ++j) made[j] += value * (A)right(places[j], step);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        for (int offset = 16; offset; offset >>= 1) made[j] += __shfl_xor_sync(0xffffffffu, made[j], offset);
        if (!(threadIdx.x & 31)) shares[threadIdx.x >> 5][j] = made[j];
    }
    __syncthreads();
    int j = threadIdx.x;
    if (j < 4 && first + j < columns) out[m * columns + first + j] = shares[0][j] + shares[1][j] + shares[2][j] + shares[3][j];
}

// -- kernels ------------------------------------------------------------------------------------------------------------
// M is the number of rows of a tile, or 1: there are no tiles. Cores: half and bfloat, or float rounded to TF32, by tensor cores.

// The blocks of one group.
template <int M, typename A>
__device__ __forceinline__ i64 blocks_of(i64 rows, i64 columns) {
    if (M == 1) return (columns + 511) / 512;
    const int N = width<M, A>();
    return (rows + M - 1) / M * ((columns + N - 1) / N);
}

template <int M, bool Cores, typename T, typename Steps, typename Column, typename Right, typename Where>
__device__ __forceinline__ void multiply(i64 rows, i64 columns, i64 deep, i64 block, const T* left, i64 stride, const Steps& steps,
                                         const Column& column, const Right& right, const T* bias, T* out, i64 step,
                                         const Where& where) {
    if constexpr (M == 1)
        few_rows<Near>(rows, columns, (int)deep, block, left, stride, steps, column, right, bias, out, step, where);
    else
        tile<M, Cores && HAS_CORES, false, Near>(rows, columns, 0, deep, block, left, stride, steps, column, right, bias, out, step,
                                          where);
}

template <typename T, int M, bool Cores>
__global__ void __launch_bounds__(128, 4) conv2d(const T* x, const T* weight, const T* bias, T* out,
                                                 const __grid_constant__ Windows w) {
    i64 deep = w.channels * w.kernel[0] * w.kernel[1], plane = w.height * w.width, columns = w.images * w.rows * w.columns;
    i64 blocks = blocks_of<M, WIDE(T)>(w.outputs, columns), group = blockIdx.x / blocks;
    Planes windows(w.rows, w.columns);
    Taps taps(w);
    auto steps = [&](i64 k, i64& offset) -> Near {
        int y, x;
        i64 channel = taps.split((u32)k, y, x);
        offset = k;
        y *= (int)w.dilation[0];
        x *= (int)w.dilation[1];
        return {(u32)(channel * plane + y * w.width + x), y, x};
    };
    auto column = [&](i64 n) -> Far {
        u32 row, column;
        i64 image = windows.split(n, row, column);
        int y = (int)(row * w.stride[0] - w.padding[0]), x = (int)(column * w.stride[1] - w.padding[1]);
        return {(image * w.groups + group) * w.channels * plane + y * w.width + x, y, x};
    };
    auto where = [&](i64 n) {
        u32 row, column;
        i64 image = windows.split(n, row, column);
        return (image * w.groups + group) * w.outputs * windows.area + row * w.columns + column;
    };
    multiply<M, Cores>(w.outputs, columns, deep, blockIdx.x % blocks, weight + group * w.outputs * deep, deep, steps, column,
                Seen<T>{x, (u32)w.height, (u32)w.width}, bias ? bias + group * w.outputs : bias, out, windows.area, where);
}

// The gradient of a window whose place is in steps of the input, 0 between the windows. `at` are the elements of whole planes.
template <typename T>
struct Between {
    const T* dy;
    u32 rows, columns;
    Divisor down, across;
    __device__ __forceinline__ T operator()(Far image, Near within) const {
        u32 row = (u32)(image.y + within.y), column = (u32)(image.x + within.x);
        bool before = (row | column) >> 31;
        // Both become windows.
        u32 between = down.rest(row) | across.rest(column);
        bool inside = !before & !between & (row < rows) & (column < columns);
        T found = (T)(WIDE(T))0;
        if (inside) found = kept(dy + image.at)[within.at + row * columns + column];
        return found;
    }
};

// For each element of the input, the sum over the windows that read it. Adjacent: the stride is 1.
template <typename T, int M, bool Cores, bool Adjacent>
__global__ void __launch_bounds__(128, 4) conv2d_input_grad(const T* dy, const T* weight, T* out,
                                                            const __grid_constant__ Windows w) {
    i64 area = w.rows * w.columns, size = w.kernel[0] * w.kernel[1], columns = w.images * w.height * w.width;
    i64 blocks = blocks_of<M, WIDE(T)>(w.channels, columns), group = blockIdx.x / blocks;
    // Elements between the first tap and the last one: steps count from the last one, so that none is negative.
    i64 reach = Adjacent ? (w.kernel[0] - 1) * w.dilation[0] * w.columns + (w.kernel[1] - 1) * w.dilation[1] : 0;
    Planes images(w.height, w.width);
    Taps taps(w);
    auto steps = [&](i64 k, i64& offset) -> Near {
        int y, x;
        i64 output = taps.split((u32)k, y, x);
        offset = k + output * (w.channels - 1) * size;
        y *= -(int)w.dilation[0];
        x *= -(int)w.dilation[1];
        return {(u32)(output * area + reach + (Adjacent ? y * w.columns + x : 0)), y, x};
    };
    auto column = [&](i64 n) -> Far {
        u32 row, column;
        i64 first = (images.split(n, row, column) * w.groups + group) * w.outputs * area - reach;
        int y = (int)(row + w.padding[0]), x = (int)(column + w.padding[1]);
        return {first + (Adjacent ? y * w.columns + x : 0), y, x};
    };
    auto where = [&](i64 n) {
        u32 y, x;
        i64 image = images.split(n, y, x);
        return (image * w.groups + group) * w.channels * images.area + y * w.width + x;
    };
    auto compute = [&](const auto& right) {
        multiply<M, Cores>(w.channels, columns, w.outputs * size, blockIdx.x % blocks,
                           weight + group * w.outputs * w.channels * size, size, steps, column, right, (const T*)0, out,
                           images.area, where);
    };
    if constexpr (Adjacent) compute(Seen<T>{dy, (u32)w.rows, (u32)w.columns});
    else compute(Between<T>{dy, (u32)w.rows, (u32)w.columns, Divisor(w.stride[0]), Divisor(w.stride[1])});
}

// The columns of a block's tile.
template <int M, bool Cores, typename A>
__device__ __forceinline__ constexpr int weight_width() { return M == 1 ? 4 : Cores ? width<M, A>() : Slices<M, A>::N; }

// `parts` blocks per tile, each with its share of all windows; made is [parts, outputs, channels, kernel], group after group. With
// `sums`, [parts, outputs], the tiles of the first columns add up dy.
template <typename T, int M, bool Cores>
__global__ void __launch_bounds__(M == 1 || Cores ? 128 : 512, M == 1 || Cores ? 4 : 1)
conv2d_weight_grad(const T* dy, const T* x, WIDE(T)* made, WIDE(T)* sums, const __grid_constant__ Windows w, int parts) {
    i64 deep = w.channels * w.kernel[0] * w.kernel[1], plane = w.height * w.width, all = w.images * w.rows * w.columns;
    // A share begins where a warp reads a whole line of dy.
    i64 part = blockIdx.x % parts, each = ((all + parts - 1) / parts + 31) / 32 * 32, block = blockIdx.x / parts;
    const int N = weight_width<M, Cores, WIDE(T)>();
    i64 blocks = (w.outputs + M - 1) / M * ((deep + N - 1) / N), group = block / blocks;
    Planes windows(w.rows, w.columns);
    Taps taps(w);
    i64 made_image = w.groups * w.outputs * windows.area, seen_image = w.groups * w.channels * plane;
    auto steps = [&](i64 k, i64& offset) -> Far {
        u32 row, column;
        i64 image = windows.split(k, row, column);
        offset = image * made_image + row * w.columns + column;
        int y = (int)(row * w.stride[0] - w.padding[0]), x = (int)(column * w.stride[1] - w.padding[1]);
        return {image * seen_image + y * w.width + x, y, x};
    };
    auto column = [&](i64 n) -> Near {
        int y, x;
        i64 channel = group * w.channels + taps.split((u32)n, y, x);
        y *= (int)w.dilation[0];
        x *= (int)w.dilation[1];
        return {(u32)(channel * plane + y * w.width + x), y, x};
    };
    i64 first = each * part, end = first + each < all ? first + each : all;
    Seen<T> seen = {x, (u32)w.height, (u32)w.width};
    auto right = [&](Near within, Far image) { return seen(image, within); };
    dy += group * w.outputs * windows.area;
    made += (part * w.groups + group) * w.outputs * deep;
    block %= blocks;
    sums = sums && block * M < w.outputs ? sums + (part * w.groups + group) * w.outputs : 0;
    if constexpr (M == 1) few_elements<Far>(w.outputs, deep, first, end, block, dy, windows.area, steps, column, right, made);
    else if constexpr (!Cores)
        slices<M>(w.outputs, deep, first, end, block, dy, windows.area, steps, column, right, made, sums);
    else tile<M, HAS_CORES, true, Far>(w.outputs, deep, first, end, block, dy, windows.area, steps, column, right, (const T*)0,
                                       made, deep, [](i64 n) { return n; }, sums);
}

// The sums of what the shares have for the weight, [parts, size], and for the bias, [parts, biases]; eight warps take 32 of them.
template <typename T>
__global__ void conv2d_weight_total(const WIDE(T)* slopes, const WIDE(T)* levels, T* out, T* bias, i64 size, i64 biases, int parts) {
    typedef WIDE(T) A;
    __shared__ A room[8][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 column = (i64)blockIdx.x * 32 + lane, width = column < size ? size : biases;
    const A* made = column < size ? slopes + column : levels + (column - size);
    A total = 0;
    if (column < size + biases)
#pragma unroll 8
        for (int k = warp; k < parts; k += 8) total += made[k * width];
    room[warp][lane] = total;
    __syncthreads();
    if (warp || column >= size + biases) return;
    for (int k = 1; k < 8; ++k) total += room[k][lane];
    if (column < size) out[column] = (T)total;
    else bias[column - size] = (T)total;
}
