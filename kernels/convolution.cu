// Two-dimensional convolution and its two gradients, as matrix products whose operands are never materialised in memory.
//
// A block computes 64 x 64 elements of the product, 16 deep at a time. It gathers the operands from the images on their
// way into shared memory (implicit GEMM: Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759).
// Traffic in bytes, a product of (m, k) by (k, n) with elements of s: reads m k s for each 64 columns and n k s for each 64
// rows, overlapping windows from cache, and writes m n s; the weight's gradient writes a partial result for each share of k.

#include "common.cuh"

struct Windows {
    i64 images, groups, channels, height, width, outputs, rows, columns;  // channels and outputs are those of one group
    i64 kernel[2], stride[2], padding[2], dilation[2];
};

// All sizes within one image fit into 32 bits. Repeated divisions by the same number multiply by its reciprocal, rounded down, so
// that a quotient is at most one too small: a quarter of the instructions.
struct Divisor {
    u32 n, reciprocal;
    __device__ explicit Divisor(i64 n) : n((u32)n), reciprocal(0xffffffffu / (u32)n) {}
    // Returns the remainder of i; i becomes the quotient.
    __device__ __forceinline__ u32 rest(u32& i) const {
        u32 q = __umulhi(i, reciprocal), r = i - q * n;
        bool small = r >= n;
        i = q + small;
        return small ? r - n : r;
    }
};

// The image that contains position i of all images, with as many positions each as `by` says.
__device__ __forceinline__ i64 image_of(i64 i, const Divisor& by) {
    u32 image = (u32)i;
    if (i >> 32) return i / by.n;
    by.rest(image);
    return image;
}

struct Place { i64 base; int y, x; };

// The element of the image [H, W] at base that tap (i, j) of the window at this row and column reads.
template <typename A, typename T>
__device__ __forceinline__ A seen(const T* x, const Windows& w, i64 base, i64 row, i64 column, i64 i, i64 j) {
    i64 y = row * w.stride[0] + i * w.dilation[0] - w.padding[0], z = column * w.stride[1] + j * w.dilation[1] - w.padding[1];
    return y < 0 || y >= w.height || z < 0 || z >= w.width ? (A)0 : (A)x[base + y * w.width + z];
}

// 64 x 64 elements of a product: left(m, k), right.column(n) and right(k, column), store(m, n, value). Each row of the shared
// arrays is one step of k.
template <typename A, typename Left, typename Right, typename Store>
__device__ __forceinline__ void tile(i64 rows, i64 columns, i64 from, i64 to, i64 tile_row, i64 tile_column, const Left& left,
                                     const Right& right, const Store& store) {
    __shared__ Pack<A, 4> a[16][17], b[16][17];
    int t = threadIdx.x, across = t % 16, down = t / 16;
    i64 n = tile_column * 64 + t % 64;
    auto column = right.column(n < columns ? n : 0);
    A made[4][4] = {};
    for (i64 k = from; k < to; k += 16) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            i64 m = tile_row * 64 + down + 16 * j, deep = k + t / 64 + 4 * j;
            a[across][down / 4 + 4 * j].of[down % 4] = m < rows && k + across < to ? left(m, k + across) : (A)0;
            b[t / 64 + 4 * j][t % 64 / 4].of[t % 4] = n < columns && deep < to ? right(deep, column) : (A)0;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            Pack<A, 4> u = a[d][down], v = b[d][across];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) made[i][j] += u.of[i] * v.of[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            i64 m = tile_row * 64 + down * 4 + i, c = tile_column * 64 + across * 4 + j;
            if (m < rows && c < columns) store(m, c, made[i][j]);
        }
}

// The tile and group that a block computes: consecutive blocks take tiles of one column, so that they share what they read.
struct Share {
    i64 group, row, column;
    __device__ __forceinline__ Share(i64 block, i64 rows, i64 columns) {
        i64 down = (rows + 63) / 64, over = (columns + 63) / 64;
        row = block % down;
        column = block / down % over;
        group = block / down / over;
    }
};

template <typename T>
__global__ void conv2d(const T* x, const T* weight, const T* bias, T* out, const __grid_constant__ Windows w) {
    typedef WIDE(T) A;
    i64 area = w.rows * w.columns, deep = w.channels * w.kernel[0] * w.kernel[1], plane = w.height * w.width;
    Share share(blockIdx.x, w.outputs, w.images * area);
    i64 first = share.group * w.outputs;

    struct Left {
        const T* weight;
        i64 deep;
        __device__ A operator()(i64 m, i64 k) const { return (A)weight[m * deep + k]; }
    } left{weight + first * deep, deep};

    struct Right {
        const T* x;
        const Windows& w;
        i64 group, area, plane;
        Divisor across, down;
        __device__ Place column(i64 n) const {
            i64 image = n / area;
            u32 i = (u32)(n - image * area);
            int column = (int)Divisor(w.columns).rest(i);
            return {(image * w.groups + group) * w.channels * plane, (int)i, column};
        }
        __device__ A operator()(i64 k, const Place& at) const {
            u32 i = (u32)k;
            i64 z = across.rest(i), y = down.rest(i);
            return seen<A>(x, w, at.base + i * plane, at.y, at.x, y, z);
        }
    } right{x, w, share.group, area, plane, Divisor(w.kernel[1]), Divisor(w.kernel[0])};

    tile<A>(w.outputs, w.images * area, 0, deep, share.row, share.column, left, right, [&](i64 m, i64 n, A value) {
        i64 image = n / area;
        if (bias) value += (A)bias[first + m];
        out[(image * w.groups * w.outputs + first + m) * area + n - image * area] = (T)value;
    });
}

// For each element of the input, the sum over the windows that read it.
template <typename T>
__global__ void conv2d_input_grad(const T* dy, const T* weight, T* out, const __grid_constant__ Windows w) {
    typedef WIDE(T) A;
    i64 area = w.rows * w.columns, taps = w.kernel[0] * w.kernel[1], plane = w.height * w.width;
    Share share(blockIdx.x, w.channels, w.images * plane);

    struct Left {
        const T* weight;
        i64 taps, channels;
        Divisor by;
        __device__ A operator()(i64 m, i64 k) const {
            u32 i = (u32)k, tap = by.rest(i);
            return (A)weight[(i * channels + m) * taps + tap];
        }
    } left{weight + share.group * w.outputs * w.channels * taps, taps, w.channels, Divisor(taps)};

    struct Right {
        const T* dy;
        const Windows& w;
        i64 group, area, plane;
        Divisor across, down;
        __device__ Place column(i64 n) const {
            i64 image = n / plane;
            u32 i = (u32)(n - image * plane);
            int column = (int)Divisor(w.width).rest(i);
            return {(image * w.groups + group) * w.outputs * area, (int)i, column};
        }
        __device__ A operator()(i64 k, const Place& at) const {
            u32 i = (u32)k;
            int z = (int)across.rest(i), y = (int)down.rest(i), steps = (int)w.stride[0], strides = (int)w.stride[1];
            int below = at.y + (int)w.padding[0] - y * (int)w.dilation[0];
            int beside = at.x + (int)w.padding[1] - z * (int)w.dilation[1];
            int row = steps == 1 ? below : below / steps, column = strides == 1 ? beside : beside / strides;
            bool seen = below >= 0 && beside >= 0 && row * steps == below && column * strides == beside
                && row < w.rows && column < w.columns;
            return seen ? (A)dy[at.base + i * area + row * w.columns + column] : (A)0;
        }
    } right{dy, w, share.group, area, plane, Divisor(w.kernel[1]), Divisor(w.kernel[0])};

    tile<A>(w.channels, w.images * plane, 0, w.outputs * taps, share.row, share.column, left, right,
            [&](i64 m, i64 n, A value) {
                i64 image = n / plane;
                out[((image * w.groups + share.group) * w.channels + m) * plane + n - image * plane] = (T)value;
            });
}

// `parts` blocks per tile, each with its share of all windows; made is [parts, outputs, channels, kernel], group after group.
template <typename T>
__global__ void conv2d_weight_grad(const T* dy, const T* x, WIDE(T)* made, const __grid_constant__ Windows w, int parts) {
    typedef WIDE(T) A;
    i64 area = w.rows * w.columns, deep = w.channels * w.kernel[0] * w.kernel[1], plane = w.height * w.width;
    i64 part = blockIdx.x % parts, all = w.images * area, each = (all + parts - 1) / parts;
    Share share(blockIdx.x / parts, w.outputs, deep);

    struct Left {
        const T* dy;
        i64 area, step;
        Divisor by;
        __device__ A operator()(i64 m, i64 k) const {
            i64 image = image_of(k, by);
            return (A)dy[image * step + m * area + k - image * area];
        }
    } left{dy + share.group * w.outputs * area, area, w.groups * w.outputs * area, Divisor(area)};

    struct Right {
        const T* x;
        const Windows& w;
        i64 group, area, plane;
        Divisor by, across;
        __device__ Place column(i64 n) const {
            u32 i = (u32)n;
            int z = (int)Divisor(w.kernel[1]).rest(i), y = (int)Divisor(w.kernel[0]).rest(i);
            return {(group * w.channels + i) * plane, y, z};
        }
        __device__ A operator()(i64 k, const Place& at) const {
            i64 image = image_of(k, by);
            u32 i = (u32)(k - image * area);
            i64 column = across.rest(i);
            return seen<A>(x, w, at.base + image * w.groups * w.channels * plane, i, column, at.y, at.x);
        }
    } right{x, w, share.group, area, plane, Divisor(area), Divisor(w.columns)};

    i64 end = each * (part + 1) < all ? each * (part + 1) : all;
    made += (part * w.groups + share.group) * w.outputs * deep;
    tile<A>(w.outputs, deep, each * part, end, share.row, share.column, left, right,
            [&](i64 m, i64 n, A value) { made[m * deep + n] = value; });
}
